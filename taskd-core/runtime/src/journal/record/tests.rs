//! Property tests with arbitrary bytes, corrupted logs and arbitrary inputs: the reader never panics, always advances,
//! never accepts a wrong checksum, and returns what was written.

use super::super::form::{read_compact, read_named, write_compact, write_named};
use super::super::steps::{InputRecord, InputRecordRef};
use super::*;
use crate::detect::{Damage, Evidence, Fault, FaultClass, Suspect};
use crate::job::{CommandId, Domain, Exit, Generation, Incarnation, Name, NodeId, ProcId, Role, Termination};
use crate::kernel::Effect;
use crate::kernel::{Command, Input, Request, Snapshot};
use crate::launch::{
    Change, ControlLink, LinkStatus, Listing, LoopPosition, NodeState, NodeStatus, Phase, ProcStatus, Revision,
    WorkerEvent, WorkerMessage,
};
use crate::recover::{Action, Failure, TargetReply};
use crate::trace::switches::Requested;
use crate::trace::{Channel, DeviceTimes, Observation, ProbeResult, Signal, StepTimes, StepTransfers, TransferTime};
use proptest::collection::vec;
use proptest::prelude::*;
use std::time::Duration;

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// Returns all valid records of a buffer, read to its end.
fn read(bytes: &[u8]) -> Vec<Record<'_>> {
    let (mut at, mut records) = (0, Vec::new());
    loop {
        let found = find(bytes, at);
        match found {
            Found::End => return records,
            Found::Record(record) => records.push(record),
            Found::Bad { bytes, .. } => assert!(bytes > 0, "it must get on"),
        }
        at += found.len();
        assert!(at <= bytes.len());
    }
}

/// Checks the checksums of a record that was read, without using the reader's code.
fn assert_checked(bytes: &[u8], record: &Record<'_>) {
    let payload = record.payload.as_ptr() as usize - bytes.as_ptr() as usize;
    let frame = &bytes[payload - FRAME_BYTES..payload];
    assert_eq!(frame[28..32], crc32fast::hash(&frame[..28]).to_le_bytes());
    assert_eq!(frame[24..28], crc32fast::hash(record.payload).to_le_bytes());
    assert_eq!(frame[..4], u32::try_from(record.payload.len()).expect("small").to_le_bytes());
}

fn log(payloads: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (n, payload) in payloads.iter().enumerate() {
        let seq = Seq(n as u64);
        encode(&mut bytes, Kind::Step, seq, JobTime::START, |out| write_named(out, payload))
            .expect("bytes have a form");
    }
    bytes
}

/// A corruption: bytes flipped, lost or inserted.
#[derive(Clone, Debug)]
enum Accident {
    Flip(prop::sample::Index, u8),
    Cut(prop::sample::Index),
    Lose(prop::sample::Index, usize),
    Insert(prop::sample::Index, Vec<u8>),
    Zero(prop::sample::Index, usize),
}

impl Accident {
    fn happen(self, bytes: &mut Vec<u8>) {
        let len = bytes.len();
        let place = |index: prop::sample::Index| if len == 0 { 0 } else { index.index(len) };
        match self {
            Accident::Flip(index, mask) => bytes.iter_mut().skip(place(index)).take(1).for_each(|b| *b ^= mask),
            Accident::Cut(index) => bytes.truncate(place(index)),
            Accident::Lose(index, count) => {
                let at = place(index);
                bytes.drain(at..len.min(at + count));
            }
            Accident::Insert(index, more) => {
                let at = place(index);
                bytes.splice(at..at, more);
            }
            Accident::Zero(index, count) => bytes.iter_mut().skip(place(index)).take(count).for_each(|b| *b = 0),
        }
    }
}

fn accident() -> impl Strategy<Value = Accident> {
    let place = any::<prop::sample::Index>;
    prop_oneof![
        (place(), 1..=255_u8).prop_map(|(index, mask)| Accident::Flip(index, mask)),
        place().prop_map(Accident::Cut),
        (place(), 1..100_usize).prop_map(|(index, count)| Accident::Lose(index, count)),
        (place(), vec(any::<u8>(), 1..50)).prop_map(|(index, more)| Accident::Insert(index, more)),
        (place(), 1..100_usize).prop_map(|(index, count)| Accident::Zero(index, count)),
    ]
}

proptest! {
    #![proptest_config(cases(35_000))]

    #[test]
    fn any_bytes_are_read_to_their_end(bytes in vec(any::<u8>(), 0..100)) {
        for record in read(&bytes) {
            assert_checked(&bytes, &record);
        }
    }

    #[test]
    fn any_payload_decodes_or_not_but_never_panics(bytes in vec(any::<u8>(), 0..100)) {
        let _ = read_named::<InputRecord>(&bytes);
        let _ = read_named::<Snapshot>(&bytes);
        let _ = read_compact::<Vec<Observation>>(&bytes);
    }
}

proptest! {
    #![proptest_config(cases(14_000))]

    #[test]
    fn a_log_with_accidents_gives_only_records_that_were_written(
        payloads in vec(vec(any::<u8>(), 0..40), 1..6),
        accidents in vec(accident(), 1..4),
    ) {
        let mut bytes = log(&payloads);
        accidents.into_iter().for_each(|accident| accident.happen(&mut bytes));
        for record in read(&bytes) {
            assert_checked(&bytes, &record);
            let written = usize::try_from(record.seq.0).ok().and_then(|n| payloads.get(n));
            let found = read_named::<Vec<u8>>(record.payload).ok();
            prop_assert_eq!(found.as_ref(), written);
        }
    }

    #[test]
    fn a_flipped_byte_loses_one_record(
        payloads in vec(vec(any::<u8>(), 1..40), 3..6),
        place in any::<prop::sample::Index>(),
        mask in 1..=255_u8,
    ) {
        let mut bytes = log(&payloads);
        Accident::Flip(place, mask).happen(&mut bytes);
        prop_assert_eq!(read(&bytes).len(), payloads.len() - 1);
    }
}

proptest! {
    #![proptest_config(cases(2_000))]

    #[test]
    fn inputs_and_commands_come_back_as_they_were(input in input(), commands in vec(command(), 0..3)) {
        let write = |input: &Input, commands: &[Command]| {
            let reported = InputRecordRef { input, commands };
            let mut bytes = Vec::new();
            encode(&mut bytes, Kind::Step, Seq(7), JobTime::from_nanos(9), |out| write_named(out, &reported)).map(|()| bytes)
        };
        let bytes = write(&input, &commands).expect("it has a form");
        let [record] = read(&bytes)[..] else { panic!("one record") };
        prop_assert_eq!((record.kind, record.seq, record.now), (Kind::Step, Seq(7), JobTime::from_nanos(9)));
        let back: InputRecord = read_named(record.payload).expect("it was encoded");
        prop_assert_eq!(format!("{:?}", (&back.input, &back.commands)), format!("{:?}", (&input, &commands)));
        let again = write(&back.input, &back.commands).expect("it has a form");
        prop_assert!(again == bytes, "bit for bit, also where a figure is not a number");
    }

    #[test]
    fn observations_come_back_as_they_were(facts in vec(observation(), 0..5)) {
        let mut bytes = Vec::new();
        write_compact(&mut bytes, &facts).expect("they have a form");
        let back: Vec<Observation> = read_compact(&bytes).expect("they were encoded");
        prop_assert_eq!(format!("{back:?}"), format!("{facts:?}"));
        bytes.push(0);
        prop_assert!(read_compact::<Vec<Observation>>(&bytes).is_err(), "a byte too much");
    }
}

fn name() -> impl Strategy<Value = Name> {
    "[a-z.é-]{0,12}".prop_map(Name::from)
}

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![any::<u32>().prop_map(|r| Role::Rank(crate::job::Rank(r))), name().prop_map(Role::Service)]
}

fn proc() -> impl Strategy<Value = ProcId> {
    (role(), any::<u32>()).prop_map(|(role, n)| ProcId { role, incarnation: Incarnation(n) })
}

fn domain() -> impl Strategy<Value = Domain> {
    prop_oneof![
        Just(Domain::Job),
        name().prop_map(|n| Domain::Node(NodeId(n))),
        (name(), any::<u16>()).prop_map(|(n, index)| Domain::Device(NodeId(n), index)),
        role().prop_map(Domain::Process),
        name().prop_map(Domain::Plugin),
    ]
}

fn phase() -> impl Strategy<Value = Phase> {
    let how = prop_oneof![
        any::<i32>().prop_map(Termination::Code),
        (any::<i32>(), any::<bool>()).prop_map(|(number, core_dumped)| Termination::Signal { number, core_dumped }),
        Just(Termination::Unknown),
    ];
    prop_oneof![
        any::<String>().prop_map(Phase::Pending),
        Just(Phase::Running),
        how.clone().prop_map(Phase::Dead),
        (how, any::<String>(), any::<Option<u64>>()).prop_map(|(how, stderr_tail, step)| {
            Phase::Exited(Box::new(Exit::new(how).with_stderr_tail(stderr_tail).with_step(step)))
        }),
    ]
}

fn status() -> impl Strategy<Value = ProcStatus> {
    (proc(), proptest::option::of(name()), name(), any::<Option<u32>>(), phase()).prop_map(
        |(proc, node, instance, pid, phase)| {
            ProcStatus::new(proc, instance, phase).with_node(node.map(NodeId)).with_pid(pid)
        },
    )
}

fn node() -> impl Strategy<Value = NodeStatus> {
    let states = [NodeState::Ready, NodeState::Cordoned, NodeState::OutOfSight, NodeState::Left];
    (name(), prop::sample::select(states.to_vec()), any::<u32>())
        .prop_map(|(node, state, slots)| NodeStatus::new(NodeId(node), state, slots))
}

fn signal() -> impl Strategy<Value = Signal> {
    prop_oneof![
        phase().prop_map(Signal::Phase),
        Just(Signal::Heartbeat),
        any::<u64>().prop_map(|step| Signal::Progress { step }),
        // All bit patterns, including infinities and all kinds of NaN.
        (name(), any::<u64>()).prop_map(|(name, bits)| Signal::Metric { name, value: f64::from_bits(bits) }),
        (name(), Just(f64::NAN)).prop_map(|(name, value)| Signal::Metric { name, value }),
        any::<u64>().prop_map(|count| Signal::Lost { count }),
        any::<u64>().prop_map(|nanos| Signal::SupervisorSlept { nanos }),
        (any::<[u64; 4]>(), any::<Option<u64>>()).prop_map(|([step, wall_ns, wait_ns, lost], cpu_ns)| {
            Signal::Step(Box::new(StepTimes { step, wall_ns, wait_ns, lost, cpu_ns, ..StepTimes::default() }))
        }),
        any::<[u64; 5]>().prop_map(|[step, wall_ns, compute_ns, wait_ns, lost]| {
            Signal::DeviceStep(Box::new(DeviceTimes {
                step,
                wall_ns,
                compute_ns,
                wait_ns,
                lost,
                ..DeviceTimes::default()
            }))
        }),
        (any::<[u64; 5]>(), any::<[u32; 3]>(), any::<bool>(), 0..3_usize).prop_map(
            |([step, ended_unix_ns, shortest_ns, sequence, before_end_ns], [peer, group, left_out], is_send, times)| {
                let first = vec![TransferTime { sequence, before_end_ns }; times];
                let channels = vec![Channel { peer, is_send, group, calls: left_out, shortest_ns, first }];
                Signal::StepTransfers(Box::new(StepTransfers { step, ended_unix_ns, channels, left_out }))
            }
        ),
        (any::<String>(), any::<[u64; 2]>())
            .prop_map(|(group, [sequence, nanos])| { Signal::CollectivePending { group, sequence, nanos } }),
    ]
}

fn observation() -> impl Strategy<Value = Observation> {
    (any::<u64>(), domain(), any::<Option<u32>>(), any::<Option<u64>>(), signal()).prop_map(
        |(at, about, incarnation, generation, signal)| {
            Observation::new(JobTime::from_nanos(at), about, signal)
                .with_incarnation(incarnation.map(Incarnation))
                .with_generation(generation.map(Generation))
        },
    )
}

fn fault() -> impl Strategy<Value = Fault> {
    (name(), domain(), any::<String>(), any::<u64>(), name()).prop_map(|(by, domain, text, bits, class)| {
        let suspect = Suspect::certain(domain, FaultClass::Other(class), Damage::PROCESS_GONE);
        let clue = Evidence::figure(by.clone(), f64::from_bits(bits), None, text);
        Fault::new(by, JobTime::START, suspect).with_evidence(clue)
    })
}

fn result() -> impl Strategy<Value = Result<TargetReply, Failure>> {
    prop_oneof![
        Just(Ok(TargetReply::Accepted)),
        any::<String>().prop_map(|text| Ok(TargetReply::ProbeResult(ProbeResult::Text(text)))),
        Just(Err(Failure::TimedOut)),
        any::<String>().prop_map(|why| Err(Failure::Refused(why))),
    ]
}

fn input() -> impl Strategy<Value = Input> {
    let revision = (any::<u64>(), any::<u64>()).prop_map(|(epoch, seq)| Revision { epoch, seq });
    prop_oneof![
        (revision, vec(status(), 0..3), vec(node(), 0..3))
            .prop_map(|(revision, procs, nodes)| Input::Listed(Listing::new(revision, procs, nodes))),
        status().prop_map(|status| Input::Changed(Change::Proc(status))),
        node().prop_map(|node| Input::Changed(Change::Node(node))),
        (proc(), any::<u64>(), name()).prop_map(|(proc, generation, framework)| {
            let generation = Generation(generation);
            let capabilities = [framework.clone()].into();
            let linked = ControlLink::new(generation, framework, LoopPosition::Parked).with_capabilities(capabilities);
            Input::Changed(Change::Link(LinkStatus::new(proc, Some(linked))))
        }),
        (proc(), any::<u64>(), any::<String>()).prop_map(|(proc, id, why)| {
            let message = WorkerMessage::Reply { id: CommandId(id), result: Err(why) };
            Input::Changed(Change::Worker(WorkerEvent::new(proc, message)))
        }),
        (any::<u64>(), vec((domain(), result()), 0..3))
            .prop_map(|(id, results)| Input::Answered { id: CommandId(id), results }),
        fault().prop_map(|fault| Input::Requested(Request::Fault(Box::new(fault)))),
        vec(observation(), 0..5).prop_map(Input::Observed),
        Just(Input::Deadline),
        any::<u64>().prop_map(|nanos| Input::Slept { nanos }),
        any::<u64>().prop_map(|unix_ms| Input::WallClock { unix_ms }),
    ]
}

fn command() -> impl Strategy<Value = Command> {
    let action = prop_oneof![
        (vec(proc(), 0..3), any::<u32>(), any::<bool>()).prop_map(|(procs, ms, exact)| Effect::Act(Action::Stop {
            procs,
            grace: Duration::from_millis(u64::from(ms)),
            exact
        })),
        proc().prop_map(Effect::Acknowledge),
        (any::<bool>(), any::<bool>(), name()).prop_map(|(on, again, by)| Effect::Switch {
            kinds: Requested { step: on.into(), ..Requested::NONE },
            by,
            again
        }),
        (any::<bool>(), any::<String>()).prop_map(|(ok, reason)| Effect::Act(Action::Finish { ok, reason })),
    ];
    (any::<u64>(), any::<u64>(), action).prop_map(|(id, generation, effect)| Command {
        id: CommandId(id),
        generation: Generation(generation),
        incident: None,
        effect,
    })
}
