//! Logs that an earlier version wrote, read by this one.
//!
//! `tests/recorded/journal-N` holds the logs of the job below as version N of the format has them. Whoever raises
//! [`FORMAT_VERSION`] writes one more, once, and commits it; none is ever written again:
//! `TASKD_RECORD=taskd-core/tests/recorded/journal-N cargo test -p taskd-core --test journal_logs recorded`.

use crate::support::*;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use taskd_core::detect::*;
use taskd_core::job::*;
use taskd_core::journal::*;
use taskd_core::kernel::*;
use taskd_core::launch::*;
use taskd_core::recover::*;
use taskd_core::trace::switches::Requested;
use taskd_core::trace::*;

/// How many steps the job has. It is the same job for ever, with what a version has added.
const fn steps_of(version: u32) -> usize {
    match version {
        ..3 => 155,
        3 => 156,
        4 => 157,
        5 => 167,
        6..=8 => 169,
        _ => 170,
    }
}

fn recorded(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/recorded/journal-{version}"))
}

/// A kernel's life with some of everything that a log can hold.
fn eventful(dir: &Path) {
    let config = JournalConfig { decisions_segment_bytes: 16 << 10, snapshot_every_decisions: 40, ..small() };
    let mut job = Job::logged(plugins(), open(dir, config.clone()).0);
    every_input(FORMAT_VERSION).into_iter().for_each(|input| job.give(input));
    job.give(Input::Observed(every_observation(FORMAT_VERSION)));
    job.live();
    job.close();
    let (journal, recovered) = open(dir, config);
    let mut job = Job::go_on(recovered.resume(plugins()).unwrap().kernel, recovered.now, journal);
    job.live();
    job.give(Input::Requested(Request::Stop { reason: "enough".into(), grace: Some(Duration::from_millis(1500)) }));
    job.close();
}

fn every_input(version: u32) -> Vec<Input> {
    let node = |name, state, slots| NodeStatus::new(NodeId(Name::new(name)), state, slots);
    let nodes = vec![
        node("n0", NodeState::Ready, 4),
        node("n1", NodeState::Cordoned, 4),
        node("n2", NodeState::OutOfSight, 0),
        node("n3", NodeState::Left, 0),
    ];
    let suspect = Suspect::certain(device(), FaultClass::Device, Damage::default()).with_confidence_permille(300);
    let fault = Fault::new(Name::new("outside"), JobTime::from_nanos(7), suspect.clone())
        .with_suspect(Suspect::victim(group(), FaultClass::Other(Name::new("odd")), Damage::PROGRAM_BROKEN))
        .with_evidence(Evidence::figure("temperature", 97.5, 60.0, "97 degrees"))
        .with_error(Some(Box::new(error())))
        .with_advice(Name::new("restart"))
        .with_incarnation(Some(Incarnation(1)));
    let stale = CommandId(u64::MAX);
    let results = vec![
        (Domain::Job, Ok(TargetReply::Accepted)),
        (group(), Ok(TargetReply::ProbeResult(ProbeResult::Unavailable("nobody knows".into())))),
        (device(), Err(Failure::TimedOut)),
        (Domain::Plugin(Name::new("p")), Err(Failure::Refused("not now".into()))),
        (Domain::Node(NodeId(Name::new("n0"))), Err(Failure::Unreachable("no way".into()))),
        (Domain::Process(Role::Service(Name::new("store"))), Err(Failure::Gone)),
    ];
    let revision = Revision { epoch: 3, seq: 1 << 40 };
    vec![
        Input::Changed(Change::Node(nodes[0].clone())),
        Input::Listed(Listing::new(revision, every_status(), nodes)),
        Input::Answered { id: stale, results },
        Input::Requested(Request::Fault(Box::new(fault))),
        Input::Requested(Request::PluginFailed { plugin: Name::new("p"), what: "it panicked".into() }),
        Input::Slept { nanos: 5_000_000_000 },
        Input::Deadline,
    ]
    .into_iter()
    .chain(every_order(version))
    .chain(every_word(version))
    .chain((version >= 6).then_some(Input::WallClock { unix_ms: 1_782_875_564_123 }))
    .chain((version >= 9).then(|| Input::HostHistory(Box::new(host_history()))))
    .collect()
}

/// All that control links bring.
fn every_word(version: u32) -> Vec<Input> {
    if version < 5 {
        return Vec::new();
    }
    let proc = ProcId::rank(1, 1);
    let link = |linked| Input::Changed(Change::Link(LinkStatus::new(proc.clone(), linked)));
    let linked = |at| {
        ControlLink::new(Generation(1), "pytorch", at)
            .with_capabilities([Name::new("abort")].into())
            .with_state_bytes(1 << 40)
            .with_unsupported_reason((at == LoopPosition::Parked).then(|| "it is sharded".into()))
            .with_sharded(vec!["optimizer".into()])
            .with_digest((version >= 6).then(|| Box::new(digest())))
    };
    let say = |what| Input::Changed(Change::Worker(WorkerEvent::new(proc.clone(), what)));
    let answer = |result| WorkerMessage::Reply { id: CommandId(u64::MAX), result };
    let state = |window| WorkerState {
        step: 12,
        committed: Some(11),
        window,
        layout: "abc".into(),
        buckets: vec![1 << 33, 0],
        bytes: 9,
        sharded: vec!["optimizer".into()],
    };
    let answered = |window| {
        Box::new(
            DirectiveReply::default()
                .with_state(state(window))
                .with_figures([(Name::new("ms"), 0.5)].into())
                .with_shard(CheckpointShard { file: "part.pt".into(), bytes: 1 << 40, sha256: "0a".repeat(32) })
                .with_digest((version >= 6).then(digest)),
        )
    };
    let windows = [Window::Before, Window::Torn, Window::Closed].map(|window| say(answer(Ok(answered(window)))));
    let links = [LoopPosition::BeforeLoop, LoopPosition::InLoop, LoopPosition::Parked].map(|at| link(Some(linked(at))));
    let failed = say(WorkerMessage::Failed(Box::new(step_failure(FailureKind::Step))));
    let is_back = link(Some(linked(LoopPosition::BeforeLoop)));
    let since_6 = [say(WorkerMessage::ErrorRecorded(Box::new(error())))].into_iter().filter(|_| version >= 6);
    let words = links.into_iter().chain(windows);
    words.chain([say(answer(Err("no".into()))), failed, link(None), is_back]).chain(since_6).collect()
}

fn digest() -> StateDigest {
    StateDigest {
        loop_number: 1,
        step: 12,
        digest: "0a".repeat(32),
        group: Some("dp".into()),
        took_us: u64::MAX,
        first_of_kind: true,
    }
}

fn step_failure(kind: FailureKind) -> StepFailure {
    let (op, group) = (Some("allreduce".into()), Some("default".into()));
    StepFailure::new(Generation(1), kind, "connection reset").with_step(12).with_op(op).with_group(group)
}

fn every_order(version: u32) -> impl Iterator<Item = Input> {
    let node = || NodeId(Name::new("n0"));
    let incident = IncidentId(77);
    let strategies = BTreeMap::from([(Name::new("restart"), Permission::Ask)]);
    let orders = [
        Order::Pause,
        Order::Drain { node: node() },
        Order::Uncordon { node: node() },
        Order::Restart { ranks: BTreeSet::from([Rank(0), Rank(3)]) },
        Order::Checkpoint,
        Order::Allow { strategies },
        Order::Approve { incident },
        Order::Decline { incident },
        Order::Allow { strategies: BTreeMap::from([(Name::new("restart"), Permission::Auto)]) },
        Order::Resume,
    ];
    let since_3 = Some(Order::SwitchTrace { kinds: Requested::USUAL }).filter(|_| version >= 3);
    let since_4 = Some(Order::SwitchTrace { kinds: Requested::ALL }).filter(|_| version >= 4);
    orders.into_iter().chain(since_3).chain(since_4).zip(1..).map(|(order, n)| {
        let (by, reason) = (Name::new("host"), "because".to_owned());
        Input::Ordered(Box::new(OrderEnvelope { id: OrderId(n), by, reason, order }))
    })
}

fn every_status() -> Vec<ProcStatus> {
    let status = |rank, phase| {
        ProcStatus::new(ProcId::rank(rank, 1), "i", phase).with_node(NodeId(Name::new("n0"))).with_pid(100 + rank)
    };
    let aborted = Termination::Signal { number: 6, core_dumped: true };
    let stderr_tail = "terminate called".to_owned();
    let exit = Exit::new(aborted).with_stderr_tail(stderr_tail).with_step(12).with_error(Box::new(error()));
    let service = ProcId::service(Name::new("store"), 1);
    vec![
        status(0, Phase::Pending("no place".into())),
        status(1, Phase::Running),
        status(2, Phase::Dead(Termination::Unknown)),
        status(3, Phase::Exited(Box::new(exit))),
        ProcStatus::new(service, "i", Phase::Dead(Termination::Code(-3))),
    ]
}

fn device() -> Domain {
    Domain::Device(NodeId(Name::new("n0")), 3)
}

fn group() -> Domain {
    Domain::Group(GroupId { kind: GroupKind::Other(Name::new("moe")), index: 9 })
}

fn error() -> ErrorReport {
    ErrorReport::new("nccl", "remote", "remote process exited").with_follow_up(true).with_step(11)
}

struct Note;

impl Extension for Note {
    const NAME: Name = Name::new("acme.note");
    fn encode(&self) -> Bytes {
        Bytes::from_static(b"\x00\xff\x01")
    }
    fn decode(body: &[u8]) -> Option<Note> {
        (body == b"\x00\xff\x01").then_some(Note)
    }
}

/// Every kind of signal, of every kind of domain. The compact form of these never changes.
fn every_observation(version: u32) -> Vec<Observation> {
    let rank = Domain::Process(Role::Rank(Rank(1)));
    let evidence = |exhibit| {
        let probe = Probe::new("silence", PROCESS_STATE, Vec::new(), Duration::ZERO).with_tag(5);
        Signal::ProbeReply(Arc::new(ProbeReply::new(&probe, rank.clone(), exhibit)))
    };
    let kinds = [GroupKind::Dp, GroupKind::Tp, GroupKind::Pp, GroupKind::Ep, GroupKind::Cp];
    let groups = kinds.into_iter().zip(0..).map(|(kind, index)| Domain::Group(GroupId { kind, index }));
    let phases = every_status().into_iter().map(|status| (rank.clone(), Signal::Phase(status.phase)));
    let others = [
        (rank.clone(), Signal::Heartbeat),
        (rank.clone(), Signal::Progress { step: 1 << 33 }),
        (Domain::Job, Signal::Metric { name: Name::new("loss"), value: -0.25 }),
        (Domain::Process(Role::Service(Name::new("store"))), Signal::Error(Box::new(error()))),
        (Domain::Plugin(Name::new("p")), Signal::Lost { count: 3 }),
        (Domain::Node(NodeId(Name::new("n0"))), evidence(ProbeResult::Text("sleeps".into()))),
        (device(), evidence(ProbeResult::Ext(Ext::of(&Note)))),
        (group(), evidence(ProbeResult::Silence)),
        (rank.clone(), evidence(ProbeResult::Unavailable("no".into()))),
        (Domain::Job, Signal::SupervisorSlept { nanos: 9 }),
        (rank.clone(), Signal::Ext(Box::new(Ext::of(&Note)))),
    ];
    let position = GroupPosition {
        group: "default".into(),
        members: vec![0, 2],
        recent: vec![Call {
            sequence: 1 << 40,
            operation: "allreduce".into(),
            elements: 7,
            data_type: "f32".into(),
            begun: Duration::from_millis(1500),
            is_pending: true,
        }],
    };
    let times = StepTimes { step: 12, wall_ns: 1 << 33, cpu_ns: Some(5), wait_ns: 3, ..StepTimes::default() };
    let since_3 = [
        (rank.clone(), Signal::Step(Box::new(times))),
        (rank.clone(), Signal::CollectivePending { group: "default".into(), sequence: 4, nanos: 1 << 32 }),
        (rank.clone(), evidence(ProbeResult::Groups(vec![position]))),
    ];
    let since_3 = since_3.into_iter().filter(|_| version >= 3);
    let kinds = [FailureKind::Collective, FailureKind::Step];
    let since_5 = kinds.map(|kind| (rank.clone(), Signal::StepFailed(Box::new(step_failure(kind)))));
    let since_5 = since_5.into_iter().filter(|_| version >= 5);
    let since_6 = [(rank.clone(), Signal::FailureRecorded(Box::new(error())))].into_iter().filter(|_| version >= 6);
    let device = DeviceTimes { step: 12, wall_ns: 1 << 33, compute_ns: 1 << 32, spans: 900, ..DeviceTimes::default() };
    let since_9 = [(rank.clone(), Signal::DeviceStep(Box::new(device)))].into_iter().filter(|_| version >= 9);
    let time = TransferTime { sequence: 1 << 40, before_end_ns: 1 << 21 };
    let channels = vec![Channel { peer: 2, is_send: true, first: vec![time], ..Channel::default() }];
    let transfers = StepTransfers { step: 12, ended_unix_ns: 1 << 60, channels, left_out: 3 };
    let since_10 = (version >= 10).then(|| (rank.clone(), Signal::StepTransfers(Box::new(transfers))));
    let all = others.into_iter().chain(groups.map(|g| (g, Signal::Heartbeat))).chain(phases);
    let all = all.chain(since_3).chain(since_5).chain(since_6).chain(since_9).chain(since_10);
    let observation = |((about, signal), n): ((Domain, Signal), u64)| {
        Observation::new(JobTime::from_nanos(n), about, signal)
            .with_incarnation((n % 2 == 0).then_some(Incarnation(1)))
            .with_generation((n % 3 == 0).then_some(Generation(1)))
    };
    all.zip(0..).map(observation).collect()
}

#[test]
fn a_recording_can_be_made() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = std::env::var_os("TASKD_RECORD").map_or(scratch.path().to_owned(), |dir| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        root.join(dir)
    });
    eventful(&dir);
    std::fs::remove_file(dir.join("lock")).unwrap();
    assert_is_the_job(&dir, FORMAT_VERSION);
    assert!(recorded(FORMAT_VERSION).is_dir(), "record this version of the format, as this file's head says");
}

#[test]
fn logs_of_each_released_version_are_read_replayed_and_resumed() {
    for version in FORMAT_VERSION_MIN..=FORMAT_VERSION {
        assert_is_the_job(&recorded(version), version);
    }
}

fn assert_is_the_job(dir: &Path, version: u32) {
    let history = History::open(dir).unwrap();
    assert_eq!(history.problems(), []);
    let [life] = history.lives() else { panic!("one life: {}", history.lives().len()) };
    assert_eq!(life.starts().count(), 2);
    let mut steps = life.steps(Seq(0));
    let read: Vec<Entry> = steps.by_ref().collect();
    assert_eq!((steps.problems(), steps.gaps()), (vec![], vec![]));
    let inputs: Vec<&Input> = read.iter().map(input).collect();
    assert_eq!(inputs.len(), steps_of(version));
    for given in every_input(version) {
        assert!(inputs.contains(&&given), "{given:?}");
    }
    let Some(Input::Observed(facts)) = inputs.iter().find(|i| matches!(i, Input::Observed(_))) else { panic!() };
    assert_eq!(*facts, every_observation(version));
    let snapshots: Vec<Seq> = life.snapshots().collect();
    assert!(snapshots.len() > 1 && snapshots.iter().all(|seq| life.snapshot(*seq).unwrap().unwrap().seq() == *seq));

    let report = replay(dir, ReplayFrom::Start, plugins).unwrap();
    assert_eq!((report.problems.as_slice(), report.missing.as_slice()), (&[][..], &[][..]));
    assert!(report.first_difference.is_none(), "{report}");
    assert_eq!(report.compared, steps_of(version) as u64);
    let mut text = Vec::new();
    dump(dir, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("plugin p failed: it panicked") && text.contains("decided: restart"), "{text}");
    assert!(!text.contains("\n! "), "{text}");
}

fn input(entry: &Entry) -> &Input {
    match entry {
        Entry::Step(Step { input: Some(input), commands: Some(_), .. }) => input,
        other => panic!("a whole step: {other:?}"),
    }
}

#[test]
fn a_restart_goes_on_from_the_recordings_of_every_version() {
    for version in FORMAT_VERSION_MIN..=FORMAT_VERSION {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in files(&recorded(version)) {
            std::fs::write(dir.path().join(name), bytes).unwrap();
        }
        let (_journal, recovered) = open(dir.path(), small());
        assert_eq!((recovered.problems.as_slice(), recovered.differences.as_slice()), (&[][..], &[][..]));
        assert_eq!(recovered.upto, Seq(steps_of(version) as u64));
        let resumed = recovered.resume(plugins()).unwrap();
        assert!(resumed.divergence.is_none() && resumed.cold.is_empty());
        assert_eq!(resumed.kernel.seq(), Seq(steps_of(version) as u64));
        assert!(resumed.kernel.report().reason.contains("enough"), "{:?}", resumed.kernel.report());
    }
}

/// The recordings of this version, with another version in their heads.
fn claiming(version: u32, dir: &Path) {
    for (name, mut bytes) in files(&recorded(FORMAT_VERSION)) {
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        std::fs::write(dir.join(name), bytes).unwrap();
    }
}

#[test]
fn a_log_of_a_newer_version_is_refused_with_instructions() {
    let dir = tempfile::tempdir().unwrap();
    claiming(FORMAT_VERSION + 1, dir.path());
    let refusal = dump_error(dir.path());
    assert!(
        refusal.contains(
            "has version 11 of the log format, this program reads up to 10: use the version of this program \
                          that wrote it or a newer one, or move it away"
        ),
        "{refusal}"
    );
    let (_journal, recovered) = open(dir.path(), small());
    assert!(!recovered.has_state() && !recovered.is_empty());
}

#[test]
fn a_version_that_was_never_released_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    claiming(FORMAT_VERSION_MIN - 1, dir.path());
    let refusal = dump_error(dir.path());
    assert!(refusal.contains("has version 1 of the log format, which was never released: move it away"), "{refusal}");
}

fn dump_error(dir: &Path) -> String {
    replay(dir, ReplayFrom::Start, plugins).unwrap_err().to_string()
}

#[test]
fn an_unknown_record_is_left_out_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    for (name, mut bytes) in files(&recorded(FORMAT_VERSION)) {
        if name.to_string_lossy() == "decisions-000001-00000000000000000001.log" {
            crate::edit::replace(&mut bytes, b"\xa8deadline", b"\xa8birthday");
        }
        std::fs::write(dir.path().join(name), bytes).unwrap();
    }
    let report = replay(dir.path(), ReplayFrom::Start, plugins).unwrap();
    let [problem] = &report.problems[..] else { panic!("{report}") };
    let said = problem.to_string();
    assert!(said.contains("is unknown to this program (unknown variant `birthday`, expected one of `start`"));
    assert!(said.ends_with("and is skipped: read it with the program that wrote it"), "{said}");
    assert!(report.compared > 0 && report.first_difference.is_none(), "the rest is replayed: {report}");
}
