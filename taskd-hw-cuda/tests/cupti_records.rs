//! What the probe reads of CUPTI's records, against bindings that were made of NVIDIA's headers, and against any bytes.
//!
//! No GPU has made these records: they are the bindings' types, filled in here. `TASKD_SOAK=1` runs ten million cases.

#![allow(clippy::unwrap_used)] // helpers of tests are tests
#![allow(unsafe_code)] // the bindings' records are read as bytes

use cudarc::cupti::sys::*;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::mem::{MaybeUninit, offset_of};
use taskd_hw_cuda::cupti::probe::names::{Names, communication};
use taskd_hw_cuda::cupti::probe::record::{self, Record};
use taskd_hw_cuda::cupti::probe::records::{self, Activity, Address, Place, Span, at, read};
use taskd_hw_cuda::cupti::probe::translate::{Counts, Outside, Translator};

/// A record of which everything is zero but its kind.
fn zeroed<T>(kind: u32) -> T {
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: records are plain data whose first word is the kind; all other words may be zero.
    unsafe {
        value.as_mut_ptr().cast::<u32>().write(kind);
        value.assume_init()
    }
}

fn bytes<T>(record: &T) -> Vec<u8> {
    // SAFETY: the record is made of zeroed memory, so all of its bytes have a value.
    unsafe { std::slice::from_raw_parts((&raw const *record).cast(), size_of::<T>()) }.to_vec()
}

macro_rules! stands_at {
    ($($record:ident: $($field:ident = $at:expr),+;)+) => {$($(
        assert_eq!(offset_of!($record, $field), $at, concat!(stringify!($record), ".", stringify!($field)));
    )+)+};
}

#[test]
fn record_fields_have_the_same_offset_in_every_version() {
    use at::{api, copy, fill, kernel, marker, peer_copy};
    macro_rules! kernels {
        ($($record:ident),+) => {stands_at! { $($record: kind = at::KIND, start = kernel::START, end = kernel::END,
            deviceId = kernel::DEVICE, streamId = kernel::STREAM, correlationId = kernel::CORRELATION, name = kernel::NAME;)+ }};
    }
    macro_rules! copies {
        ($($record:ident),+) => {stands_at! { $($record: kind = at::KIND, copyKind = copy::COPY_KIND, bytes = copy::BYTES,
            start = copy::START, end = copy::END, deviceId = copy::DEVICE, streamId = copy::STREAM,
            correlationId = copy::CORRELATION;)+ }};
    }
    macro_rules! peer_copies {
        ($($record:ident),+) => {stands_at! { $($record: kind = at::KIND, bytes = copy::BYTES, start = copy::START,
            end = copy::END, deviceId = copy::DEVICE, streamId = copy::STREAM, correlationId = peer_copy::CORRELATION;)+ }};
    }
    macro_rules! fills {
        ($($record:ident),+) => {stands_at! { $($record: kind = at::KIND, bytes = fill::BYTES, start = fill::START,
            end = fill::END, deviceId = fill::DEVICE, streamId = fill::STREAM, correlationId = fill::CORRELATION;)+ }};
    }
    kernels!(
        CUpti_ActivityKernel4,
        CUpti_ActivityKernel5,
        CUpti_ActivityKernel6,
        CUpti_ActivityKernel7,
        CUpti_ActivityKernel8,
        CUpti_ActivityKernel9,
        CUpti_ActivityKernel10,
        CUpti_ActivityKernel11,
        CUpti_ActivityKernel12,
        CUpti_ActivityKernel13
    );
    copies!(
        CUpti_ActivityMemcpy,
        CUpti_ActivityMemcpy3,
        CUpti_ActivityMemcpy4,
        CUpti_ActivityMemcpy5,
        CUpti_ActivityMemcpy6,
        CUpti_ActivityMemcpy7
    );
    peer_copies!(
        CUpti_ActivityMemcpyPtoP,
        CUpti_ActivityMemcpyPtoP2,
        CUpti_ActivityMemcpyPtoP3,
        CUpti_ActivityMemcpyPtoP4
    );
    fills!(
        CUpti_ActivityMemset,
        CUpti_ActivityMemset2,
        CUpti_ActivityMemset3,
        CUpti_ActivityMemset4,
        CUpti_ActivityMemset5
    );
    stands_at! {
        CUpti_ActivityAPI: kind = at::KIND, cbid = api::FUNCTION, start = api::START, end = api::END, threadId = api::THREAD,
            correlationId = api::CORRELATION;
        CUpti_ActivityMarker2: kind = at::KIND, flags = marker::FLAGS, timestamp = marker::TIME, id = marker::ID,
            objectKind = marker::OBJECT_KIND, name = marker::NAME, domain = marker::DOMAIN;
    }
    assert_eq!(offset_of!(CUpti_ActivityMarker2, objectId) + 4, marker::THREAD, "the second word, behind the process");
}

#[test]
fn kinds_flags_and_results_are_nvidias() {
    use CUpti_ActivityKind as K;
    for (ours, theirs) in [
        (records::MEMCPY, K::CUPTI_ACTIVITY_KIND_MEMCPY),
        (records::MEMSET, K::CUPTI_ACTIVITY_KIND_MEMSET),
        (records::KERNEL, K::CUPTI_ACTIVITY_KIND_KERNEL),
        (records::RUNTIME, K::CUPTI_ACTIVITY_KIND_RUNTIME),
        (records::CONCURRENT_KERNEL, K::CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL),
        (records::MARKER, K::CUPTI_ACTIVITY_KIND_MARKER),
        (records::MEMCPY2, K::CUPTI_ACTIVITY_KIND_MEMCPY2),
    ] {
        assert_eq!(ours, theirs as u32, "{theirs:?}");
    }
    assert_eq!(records::MARKER_INSTANT, CUpti_ActivityFlag::CUPTI_ACTIVITY_FLAG_MARKER_INSTANTANEOUS as u32);
    assert_eq!(records::MARKER_START, CUpti_ActivityFlag::CUPTI_ACTIVITY_FLAG_MARKER_START as u32);
    assert_eq!(records::MARKER_END, CUpti_ActivityFlag::CUPTI_ACTIVITY_FLAG_MARKER_END as u32);
    assert_eq!(records::OBJECT_THREAD, CUpti_ActivityObjectKind::CUPTI_ACTIVITY_OBJECT_THREAD as u32);
    // Those that stand in files which are no part of this crate's library:
    assert_eq!(CUptiResult::CUPTI_SUCCESS as u32, 0);
    assert_eq!(CUptiResult::CUPTI_ERROR_INSUFFICIENT_PRIVILEGES as u32, 35);
    assert_eq!(CUptiResult::CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED as u32, 39);
    assert_eq!(CUptiResult::CUPTI_ERROR_HARDWARE_BUSY as u32, 26);
    assert_eq!(CUptiResult::CUPTI_ERROR_INVALID_KIND as u32, 21);
    assert_eq!(CUptiResult::CUPTI_ERROR_NOT_INITIALIZED as u32, 15);
    assert_eq!(CUptiResult::CUPTI_ERROR_NOT_COMPATIBLE as u32, 14);
    assert_eq!(CUpti_CallbackDomain::CUPTI_CB_DOMAIN_RUNTIME_API as u32, 2);
    assert_eq!(CUpti_ActivityThreadIdType::CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM as u32, 1);
}

fn kernel() -> CUpti_ActivityKernel9 {
    let mut kernel: CUpti_ActivityKernel9 = zeroed(records::CONCURRENT_KERNEL);
    (kernel.start, kernel.end, kernel.deviceId, kernel.streamId) = (1_000, 3_500, 2, 7);
    (kernel.correlationId, kernel.contextId, kernel.gridX) = (41, 9, 108);
    kernel.name = std::ptr::without_provenance(0x1000);
    kernel
}

#[test]
fn records_built_from_the_bindings_are_decoded() {
    let (span, place) = (Span { start: 1_000, end: 3_500 }, Place { device: 2, stream: 7, correlation: 41 });
    assert_eq!(read(&bytes(&kernel())), Some(Activity::Kernel { span, place, name: Address(0x1000) }));

    let mut copy: CUpti_ActivityMemcpy5 = zeroed(records::MEMCPY);
    (copy.copyKind, copy.bytes, copy.start, copy.end) = (1, 4096, 1_000, 3_500);
    (copy.deviceId, copy.streamId, copy.correlationId) = (2, 7, 41);
    assert_eq!(read(&bytes(&copy)), Some(Activity::Copy { span, place, bytes: 4096, copy_kind: 1 }));

    let mut peer: CUpti_ActivityMemcpyPtoP4 = zeroed(records::MEMCPY2);
    (peer.bytes, peer.start, peer.end, peer.dstDeviceId) = (8, 1_000, 3_500, 3);
    (peer.deviceId, peer.streamId, peer.correlationId) = (2, 7, 41);
    assert_eq!(read(&bytes(&peer)), Some(Activity::PeerCopy { span, place, bytes: 8 }));

    let mut fill: CUpti_ActivityMemset4 = zeroed(records::MEMSET);
    (fill.bytes, fill.start, fill.end, fill.value) = (64, 1_000, 3_500, 255);
    (fill.deviceId, fill.streamId, fill.correlationId) = (2, 7, 41);
    assert_eq!(read(&bytes(&fill)), Some(Activity::Fill { span, place, bytes: 64 }));

    let mut call: CUpti_ActivityAPI = zeroed(records::RUNTIME);
    (call.cbid, call.start, call.end, call.threadId, call.correlationId) = (211, 1_000, 3_500, 77, 41);
    assert_eq!(read(&bytes(&call)), Some(Activity::Api { span, function: 211, thread: 77, correlation: 41 }));

    let mut begin: CUpti_ActivityMarker2 = zeroed(records::MARKER);
    begin.flags = CUpti_ActivityFlag::CUPTI_ACTIVITY_FLAG_MARKER_START;
    begin.objectKind = CUpti_ActivityObjectKind::CUPTI_ACTIVITY_OBJECT_THREAD;
    begin.objectId.pt = CUpti_ActivityObjectKindId__bindgen_ty_1 { processId: 5, threadId: 77 };
    (begin.timestamp, begin.id) = (1_000, 3);
    (begin.name, begin.domain) = (std::ptr::without_provenance(0x10), std::ptr::without_provenance(0x20));
    let expected = Activity::Begin { at: 1_000, id: 3, thread: 77, name: Address(0x10), domain: Address(0x20) };
    assert_eq!(read(&bytes(&begin)), Some(expected));
    begin.flags = CUpti_ActivityFlag::CUPTI_ACTIVITY_FLAG_MARKER_END;
    assert_eq!(read(&bytes(&begin)), Some(Activity::End { at: 1_000, id: 3 }));

    assert_eq!(read(&[200, 0, 0, 0]), Some(Activity::Other { kind: 200 }));
    let whole = bytes(&kernel());
    assert!((0..112).all(|length| read(&whole[..length]).is_none()), "a cut record is none");
}

/// Texts by their addresses; names get numbers in their order.
#[derive(Default)]
struct Texts {
    numbers: RefCell<Vec<Vec<u8>>>,
    asked: Cell<usize>,
}

const KERNEL_NAME: &[u8] = b"_Z40ncclDevKernel_AllReduce_Sum_f32_RING_LLP11ncclDevCommmP8ncclWork";

impl Outside for Texts {
    fn text(&self, address: Address) -> &[u8] {
        match address.0 {
            0 => b"",
            1 => b"gemm",
            2 => KERNEL_NAME,
            3 => b"forward",
            4 => b"train",
            _ => b"another",
        }
    }

    fn function(&self, _: u32) -> &[u8] {
        b"cudaLaunchKernel_v7000"
    }

    fn number(&self, text: &[u8]) -> u32 {
        self.asked.set(self.asked.get() + 1);
        let mut numbers = self.numbers.borrow_mut();
        numbers.push(text.to_vec());
        u32::try_from(numbers.len()).unwrap()
    }
}

fn all_on() -> Translator {
    let mut translator = Translator::default();
    translator.switches = u64::MAX;
    translator
}

fn taken(translator: &mut Translator, texts: &Texts, activity: Activity) -> Option<Record> {
    translator.take(activity, texts);
    translator.out.pop()
}

#[test]
fn kernels_become_work_of_a_device_and_those_of_nccl_communication() {
    let (mut translator, texts) = (all_on(), Texts::default());
    let (span, place) = (Span { start: 1_000, end: 3_500 }, Place { device: 2, stream: 7, correlation: 41 });
    let told = taken(&mut translator, &texts, Activity::Kernel { span, place, name: Address(1) }).unwrap();
    let expected = Record {
        unix_nanos: 1_000,
        nanos: 2_500,
        kind: record::KERNEL,
        name: 1,
        event: record::SPAN,
        form: record::OF_A_DEVICE,
        device: 2,
        stream: 7,
        peer: record::NONE,
        number: 41,
        ..Record::default()
    };
    assert_eq!(told, expected);
    let nccl = Activity::Kernel { span, place, name: Address(2) };
    let told = taken(&mut translator, &texts, nccl).unwrap();
    assert_eq!(
        (told.kind, told.form, told.op, told.data_type),
        (record::COMMUNICATION, record::OF_A_DEVICES_COMMUNICATION, 1, 1)
    );
    taken(&mut translator, &texts, nccl).unwrap();
    assert_eq!(texts.asked.get(), 2, "a name is asked for once");
    translator.switches = record::bit(record::KERNEL);
    assert_eq!(taken(&mut translator, &texts, nccl).unwrap().kind, record::KERNEL, "while communication is off");
    translator.switches = 0;
    assert_eq!(taken(&mut translator, &texts, nccl), None);
    assert_eq!(translator.counts, Counts { records: 5, off: 1, ..Counts::default() });
}

#[test]
fn times_are_moved_to_the_calendar_and_what_has_none_is_counted() {
    let (mut translator, texts) = (all_on(), Texts::default());
    translator.shift = 1_700_000_000_000_000_000;
    let fill = |start, end| Activity::Fill { span: Span { start, end }, place: Place::default(), bytes: 1 };
    assert_eq!(taken(&mut translator, &texts, fill(5, 9)).unwrap().unix_nanos, 1_700_000_000_000_000_005);
    for (start, end) in [(0, 0), (9, 5), (u64::MAX, u64::MAX)] {
        assert_eq!(taken(&mut translator, &texts, fill(start, end)), None);
    }
    assert_eq!(translator.counts.untimed, 3);
}

#[test]
fn ranges_are_joined_by_their_ids_and_halves_are_counted() {
    let (mut translator, texts) = (all_on(), Texts::default());
    let begin = |id, at| Activity::Begin { at, id, thread: 77, name: Address(3), domain: Address(4) };
    assert_eq!(taken(&mut translator, &texts, begin(1, 100)), None);
    assert_eq!(taken(&mut translator, &texts, begin(2, 150)), None);
    let told = taken(&mut translator, &texts, Activity::End { at: 180, id: 2 }).unwrap();
    assert_eq!((told.unix_nanos, told.nanos, told.thread, told.kind), (150, 30, 77, record::MARKER));
    assert_eq!(taken(&mut translator, &texts, Activity::End { at: 300, id: 1 }).unwrap().nanos, 200);
    assert_eq!(texts.numbers.borrow().as_slice(), [b"train: forward".to_vec()]);
    assert_eq!(taken(&mut translator, &texts, Activity::End { at: 300, id: 1 }), None, "twice");
    taken(&mut translator, &texts, begin(5, 1));
    taken(&mut translator, &texts, begin(5 + (1 << 14), 1)); // takes the place of the one before
    assert_eq!(translator.counts.unjoined, 2);
    let moment = Activity::Instant { at: 9, thread: 1, name: Address(3), domain: Address(0) };
    assert_eq!(taken(&mut translator, &texts, moment).unwrap().event, record::INSTANT);
}

#[test]
fn nccls_kernels_are_known_by_their_names() {
    for (name, expected) in [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)", Some((1, 1))),
        ("_Z40ncclDevKernel_AllReduce_Sum_bf16_RING_LLP11ncclDevCommmP8ncclWork", Some((1, 3))),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", Some((1, 1))),
        ("ncclKernel_AllReduce_TREE_LL_Sum___nv_bfloat16(ncclWorkElem)", Some((1, 3))),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWorkElem)", Some((2, 5))),
        ("ncclDevKernel_ReduceScatter_Sum_f16_RING_LL", Some((3, 2))),
        ("ncclDevKernel_Broadcast_RING_LL", Some((4, 0))),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", Some((0, 5))),
        ("ncclDevKernel_Generic_1", Some((0, 0))),
        ("ncclDevKernel_", Some((0, 0))),
        ("ampere_sgemm_128x64_nn", None),
        ("my_nccl_kernel", None),
        ("", None),
    ] {
        assert_eq!(communication(name.as_bytes()), expected, "{name}");
    }
}

#[test]
fn a_name_that_lost_its_place_is_asked_for_again() {
    let (mut names, texts) = (Names::default(), Texts::default());
    for round in 0..2 {
        for i in 0..10_000_u32 {
            let name = format!("kernel_{i}");
            let number = names.get(name.as_bytes(), |text| texts.number(text)).number;
            assert_eq!(texts.numbers.borrow()[number as usize - 1], name.as_bytes(), "round {round}");
        }
    }
    assert_eq!(names.get(b"", |_| unreachable!()).number, 0);
}

fn cases() -> u32 {
    if std::env::var("TASKD_SOAK").is_ok_and(|soak| soak == "1") { 10_000_000 } else { 20_000 }
}

/// Records with foreign bytes in them, cut anywhere.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let kinds = prop_oneof![prop::sample::select(vec![1_u32, 2, 3, 5, 10, 12, 22]), any::<u32>()];
    let edits = prop::collection::vec((0..160_usize, any::<u8>()), 0..12);
    (kinds, 0..180_usize, edits).prop_map(|(kind, length, edits)| {
        let mut bytes = bytes(&kernel());
        bytes.resize(length, 0x5a);
        for (at, byte) in edits {
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        for (place, byte) in bytes.iter_mut().zip(kind.to_ne_bytes()) {
            *place = byte;
        }
        bytes
    })
}

#[test]
fn arbitrary_bytes_are_cut_decoded_or_counted() {
    let seen = RefCell::new(BTreeMap::<&str, u64>::new());
    let state = RefCell::new((all_on(), Texts::default()));
    let config = Config { cases: cases(), failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&mutated(), |bytes| {
        let (translator, texts) = &mut *state.borrow_mut();
        let before = translator.counts;
        let what = match read(&bytes) {
            None => {
                prop_assert!(bytes.len() < 112);
                translator.cut();
                "cut"
            }
            Some(activity) => {
                translator.take(activity, texts);
                match (translator.out.pop(), activity) {
                    (Some(told), _) => {
                        prop_assert!(told.unix_nanos != 0 && (5..=9).contains(&told.kind));
                        "told"
                    }
                    (None, Activity::Begin { .. }) => "begun",
                    (None, _) => "counted",
                }
            }
        };
        prop_assert!(translator.out.is_empty() && translator.counts.records == before.records + 1);
        if what == "counted" {
            prop_assert_ne!(translator.counts, Counts { records: before.records + 1, ..before });
        }
        if texts.numbers.borrow().len() > 100 {
            texts.numbers.borrow_mut().clear();
        }
        *seen.borrow_mut().entry(what).or_default() += 1;
        Ok(())
    });
    println!("{:?}", seen.borrow());
    result.unwrap_or_else(|error| panic!("{error}"));
}
