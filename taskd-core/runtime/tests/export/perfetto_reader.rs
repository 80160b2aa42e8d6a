//! A reader of Perfetto's format that takes nothing for granted: every field has to be one of `perfetto_trace.proto`,
//! with its type; every event has to be on a track that was described before; and ranges have to nest.

use std::collections::BTreeMap;

/// What a trace shows.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    pub(crate) slices: Vec<Slice>,
    /// Process, track, name, time.
    pub(crate) instants: Vec<(String, String, String, u64)>,
    /// Process, track, time, value.
    pub(crate) counters: Vec<(String, String, u64, f64)>,
    /// How often the trace contains it.
    pub(crate) processes: usize,
}

/// A range on a track.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Slice {
    pub(crate) process: String,
    pub(crate) track: String,
    /// Which of the tracks of this name.
    pub(crate) lane: u64,
    pub(crate) name: String,
    pub(crate) begin: u64,
    /// `None`: it has no end.
    pub(crate) end: Option<u64>,
    pub(crate) arguments: BTreeMap<String, String>,
}

#[derive(Clone, Debug)]
struct Track {
    process: String,
    name: String,
    is_counter: bool,
}

#[derive(Debug)]
struct Occurrence {
    nanos: u64,
    what: u64,
    track: u64,
    name: String,
    value: Option<f64>,
    arguments: BTreeMap<String, String>,
}

#[derive(Clone, Debug)]
enum Value<'a> {
    Number(u64),
    Double(f64),
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    fn number(&self) -> u64 {
        let Value::Number(number) = self else { panic!("{self:?} is to be a number") };
        *number
    }

    fn bytes(&self) -> &'a [u8] {
        let Value::Bytes(bytes) = self else { panic!("{self:?} is to have a length") };
        bytes
    }

    fn text(&self) -> String {
        str::from_utf8(self.bytes()).expect("texts are UTF-8").to_owned()
    }
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().expect("a number is whole");
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return value;
        }
    }
    panic!("a number has ten bytes at most");
}

fn fields(mut bytes: &[u8]) -> Vec<(u64, Value<'_>)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let value = match tag & 7 {
            0 => Value::Number(varint(&mut bytes)),
            1 => {
                let (value, rest) = bytes.split_first_chunk().expect("a figure is whole");
                bytes = rest;
                Value::Double(f64::from_le_bytes(*value))
            }
            2 => {
                let length = usize::try_from(varint(&mut bytes)).unwrap();
                let (value, rest) = bytes.split_at_checked(length).expect("a message is whole");
                bytes = rest;
                Value::Bytes(value)
            }
            other => panic!("wire type {other}"),
        };
        fields.push((tag >> 3, value));
    }
    fields
}

/// Reads a whole file.
pub(crate) fn read(file: &[u8]) -> Shown {
    let mut shown = Shown::default();
    let (mut tracks, mut interned) = (BTreeMap::new(), BTreeMap::new());
    let mut occurrences = Vec::new();
    for (at, (field, packet)) in fields(file).into_iter().enumerate() {
        assert_eq!(field, 1, "a trace consists of packets");
        let mut nanos = None;
        let packet = fields(packet.bytes());
        assert!(packet.iter().any(|(field, value)| (*field, value.number_or(0)) == (10, 1)), "of the one sequence");
        let flags = packet.iter().find(|(field, _)| *field == 13).map(|(_, value)| value.number());
        assert_eq!(flags, Some(if at == 0 { 1 } else { 2 }), "only the first packet begins the sequence's state");
        for (field, value) in packet {
            match field {
                6 | 59 | 87 => assert!(at < 2, "written once"),
                8 => nanos = Some(value.number()),
                10 | 13 => {}
                11 => occurrences.push(occurrence(value.bytes(), nanos.expect("the time stands first"), &interned)),
                12 => intern(value.bytes(), &mut interned),
                60 => shown.processes += usize::from(describe(value.bytes(), &mut tracks)),
                other => panic!("a packet has no field {other}"),
            }
        }
        if let Some(event) = occurrences.last() {
            assert!(tracks.contains_key(&event.track), "a track is described before its events");
        }
    }
    replay(occurrences, &tracks, &mut shown);
    shown
}

impl Value<'_> {
    fn number_or(&self, other: u64) -> u64 {
        if let Value::Number(number) = self { *number } else { other }
    }
}

fn intern(bytes: &[u8], interned: &mut BTreeMap<u64, String>) {
    for (field, name) in fields(bytes) {
        assert_eq!(field, 3, "only the names of annotations are interned");
        let [(1, number), (2, name)] = &fields(name.bytes())[..] else { panic!("a number and its name") };
        assert!(interned.insert(number.number(), name.text()).is_none() && number.number() > 0);
    }
}

/// Whether it is that of a process.
fn describe(bytes: &[u8], tracks: &mut BTreeMap<u64, Track>) -> bool {
    let mut track = Track { process: String::new(), name: String::new(), is_counter: false };
    let (mut id, mut is_process) = (0, false);
    for (field, value) in fields(bytes) {
        match field {
            1 => id = value.number(),
            2 => track.name = value.text(),
            3 => {
                let [(1, pid), (6, name)] = &fields(value.bytes())[..] else {
                    panic!("a process has an id and a name")
                };
                assert!((1..=i32::MAX as u64).contains(&pid.number()), "process {}", pid.number());
                (track.process, is_process) = (name.text(), true);
            }
            5 => track.process = tracks[&value.number()].process.clone(),
            8 => track.is_counter = true,
            11 | 12 | 19 => assert!(value.number() <= i32::MAX as u64),
            other => panic!("a track has no field {other}"),
        }
    }
    assert!(tracks.insert(id, track).is_none(), "track {id} is described once");
    is_process
}

fn occurrence(bytes: &[u8], nanos: u64, interned: &BTreeMap<u64, String>) -> Occurrence {
    assert!(i64::try_from(nanos).is_ok(), "times have a sign");
    let mut event =
        Occurrence { nanos, what: 0, track: 0, name: String::new(), value: None, arguments: BTreeMap::new() };
    for (field, value) in fields(bytes) {
        match (field, value) {
            (4, Value::Bytes(annotation)) => {
                let [(1, name), value] = &fields(annotation)[..] else { panic!("a name and a value") };
                let text = match value {
                    (2, Value::Number(1)) => "true".to_owned(),
                    (3, Value::Number(number)) => number.to_string(),
                    (5, Value::Double(value)) => value.to_string(),
                    (6, text) => text.text(),
                    other => panic!("{other:?} is no value"),
                };
                let repeated = event.arguments.insert(interned[&name.number()].clone(), text);
                assert_eq!(repeated, None, "an argument is written once");
            }
            (9, what) => event.what = what.number(),
            (11, track) => event.track = track.number(),
            (23, name) => event.name = name.text(),
            (44, Value::Double(value)) => event.value = Some(value),
            other => panic!("an event has no {other:?}"),
        }
    }
    event
}

/// What the trace processor makes of the events: it sorts them by time, and an end ends what began last on its track.
fn replay(mut occurrences: Vec<Occurrence>, tracks: &BTreeMap<u64, Track>, shown: &mut Shown) {
    occurrences.sort_by_key(|event| event.nanos);
    let mut open: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for event in occurrences {
        let track = &tracks[&event.track];
        assert_eq!(track.is_counter, event.what == 4, "figures, and only they, stand on a counter's track");
        let (process, name) = (track.process.clone(), track.name.clone());
        match event.what {
            1 => {
                let open = open.entry(event.track).or_default();
                assert_eq!(open.len(), 0, "ranges of one track do not overlap");
                open.push(shown.slices.len());
                shown.slices.push(Slice {
                    process,
                    track: name,
                    lane: event.track,
                    name: event.name,
                    begin: event.nanos,
                    end: None,
                    arguments: event.arguments,
                });
            }
            2 => {
                let ended = open.get_mut(&event.track).and_then(Vec::pop).expect("something is open that can end");
                shown.slices[ended].end = Some(event.nanos);
                shown.slices[ended].arguments.extend(event.arguments);
            }
            3 => shown.instants.push((process, name, event.name, event.nanos)),
            4 => shown.counters.push((process, name, event.nanos, event.value.expect("a figure"))),
            other => panic!("an event has no type {other}"),
        }
    }
}
