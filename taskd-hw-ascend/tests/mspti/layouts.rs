//! The vendor's layouts, written down a second time: sizes and offsets as the headers were measured, against what the probe reads.

use super::own::records::{Address, Marker, Part, Record, Span, Stream, first, size_of_kind};

/// A field, its offset, and how many bytes it has.
type Field = (&'static str, usize, usize);

/// Kind, size, and the fields.
const LAYOUTS: [(i32, usize, &[Field]); 8] = [
    (
        1,
        56,
        &[
            ("flag", 4, 4),
            ("source", 8, 4),
            ("at", 12, 8),
            ("id", 20, 8),
            ("object", 28, 8),
            ("name", 36, 8),
            ("domain", 44, 8),
        ],
    ),
    (
        2,
        56,
        &[("start", 4, 8), ("end", 12, 8), ("object", 20, 8), ("correlation", 28, 8), ("type", 36, 8), ("name", 44, 8)],
    ),
    (3, 48, &[("start", 4, 8), ("end", 12, 8), ("object", 20, 8), ("correlation", 28, 8), ("name", 36, 8)]),
    (
        4,
        56,
        &[("start", 4, 8), ("end", 12, 8), ("object", 20, 8), ("bandwidth", 28, 8), ("name", 36, 8), ("group", 44, 8)],
    ),
    (
        6,
        56,
        &[
            ("value", 4, 4),
            ("bytes", 8, 8),
            ("start", 16, 8),
            ("end", 24, 8),
            ("object", 32, 8),
            ("correlation", 40, 8),
        ],
    ),
    (
        7,
        56,
        &[
            ("value", 4, 4),
            ("bytes", 8, 8),
            ("start", 16, 8),
            ("end", 24, 8),
            ("object", 32, 8),
            ("correlation", 40, 8),
        ],
    ),
    (8, 24, &[]),
    (
        9,
        72,
        &[
            ("type", 4, 4),
            ("count", 8, 8),
            ("object", 16, 8),
            ("start", 24, 8),
            ("end", 32, 8),
            ("alg", 40, 8),
            ("name", 48, 8),
            ("group", 56, 8),
            ("correlation", 64, 8),
        ],
    ),
];

/// A record whose fields have these values, and all other bytes another.
fn laid_out(kind: i32, values: &[(&str, u64)]) -> Vec<u8> {
    let (_, size, fields) = LAYOUTS.iter().find(|(known, ..)| *known == kind).unwrap();
    let mut bytes = vec![0xee; *size];
    bytes[..4].copy_from_slice(&kind.to_ne_bytes());
    for (name, value) in values {
        let (_, at, length) = fields.iter().find(|(known, ..)| known == name).unwrap();
        bytes[*at..at + length].copy_from_slice(&value.to_ne_bytes()[..*length]);
    }
    bytes
}

fn read(kind: i32, values: &[(&str, u64)]) -> Record {
    let bytes = laid_out(kind, values);
    let (record, size) = first(&bytes).unwrap();
    assert_eq!(size, bytes.len());
    assert_eq!(first(&bytes[..size - 1]), None, "a record that is cut is none");
    record
}

#[test]
fn every_record_is_read_where_the_vendor_puts_it() {
    let object = 3 | 7 << 32;
    let (span, place) = (Span { start: 100, end: 250 }, Stream { device: 3, stream: 7 });
    let times = [("start", 100), ("end", 250), ("object", object)];
    let with = |more: &[(&'static str, u64)]| [&times[..], more].concat();
    let name = Address(0xabcd);
    assert_eq!(
        read(2, &with(&[("correlation", 9), ("name", 0xabcd)])),
        Record::Kernel { span, place, correlation: 9, name }
    );
    assert_eq!(
        read(3, &with(&[("correlation", 9), ("name", 0xabcd)])),
        Record::Api { span, thread: 7, correlation: 9, name }
    );
    let bandwidth = 12.5_f64;
    assert_eq!(
        read(4, &with(&[("bandwidth", bandwidth.to_bits()), ("name", 0xabcd), ("group", 5)])),
        Record::Hccl { span, place, bandwidth, name, group: Address(5) }
    );
    for (kind, is_fill) in [(6, true), (7, false)] {
        assert_eq!(
            read(kind, &with(&[("value", 2), ("bytes", 4096), ("correlation", 9)])),
            Record::Copy { is_fill, copy_kind: 2, span, place, correlation: 9, bytes: 4096 }
        );
    }
    assert_eq!(
        read(9, &with(&[("type", 11), ("count", 64), ("name", 0xabcd), ("group", 5), ("correlation", 9)])),
        Record::Communication { span, place, data_type: 11, count: 64, correlation: 9, name, group: Address(5) }
    );
    assert_eq!(read(8, &[]), Record::Other);
}

#[test]
fn a_marker_is_read_with_each_flag_of_host_and_device() {
    let flags = [
        (1, Some(Part::Instant), false),
        (2, Some(Part::Start), false),
        (4, Some(Part::End), false),
        (8, Some(Part::Instant), true),
        (16, Some(Part::Start), true),
        (32, Some(Part::End), true),
        (0, None, false),
        (3, None, false),
    ];
    for (flag, part, has_device) in flags {
        for source in [0, 1] {
            let values = [
                ("flag", flag),
                ("source", source),
                ("at", 77),
                ("id", 42),
                ("object", 3 | 7 << 32),
                ("name", 1),
                ("domain", 2),
            ];
            let place = (source == 1).then_some(Stream { device: 3, stream: 7 });
            let expected = part.map_or(Record::Other, |part| {
                let has_device = has_device || source == 1;
                let (name, domain) = (Address(1), Address(2));
                Record::Marker(Marker { part, has_device, place, thread: 7, at: 77, id: 42, name, domain })
            });
            assert_eq!(read(1, &values), expected, "flag {flag}");
        }
    }
}

#[test]
fn sizes_are_those_of_the_vendor_and_unknown_kinds_have_none() {
    for (kind, size, fields) in LAYOUTS {
        assert_eq!(size_of_kind(kind), Some(size));
        assert!(size.is_multiple_of(8) && fields.iter().all(|(_, at, length)| at + length <= size));
    }
    assert_eq!([5, 10, 11, 12].map(size_of_kind), [Some(64), Some(48), Some(48), Some(48)]);
    assert_eq!([0, 13, -1, i32::MAX].map(size_of_kind), [None; 4]);
}
