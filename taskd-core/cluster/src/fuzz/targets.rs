//! The parsers: messages of agents and managers, sessions of frames, bodies of calls, the job's record, messages of voters,
//! and their log.

use super::Target;
use crate::clock_offset::{HostClocks, Reading, RoundTrip};
use crate::session::{Taken, Window, WindowBounds};
use crate::wire::proto::{
    Answer, Call, Cancel, Chunk, Confirm, Frame, Hello, LeaseGrant, LeaseRequest, ToAgent, ToManager, Welcome, answer,
    frame::Body, to_agent, to_manager,
};
use crate::wire::{
    CollectArguments, DirectiveArguments, FactsEntry, FactsItem, FactsMessage, NextArguments, PrepareArguments,
    SourceFailure, StartArguments, StopArguments, decode, encode, method,
};
use crate::{consensus, manager};
use prost::Message;
use serde::{Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use taskd_runtime::job::{CommandId, Domain, Generation, NodeId, ProcId, Rank, Role, World};
use taskd_runtime::launch::{
    Change, DirectiveBatch, LaunchError, LauncherInfo, Listing, NodeState, NodeStatus, Place, PrepareOptions, Revision,
    StartBatch, StartOrder,
};
use taskd_runtime::trace::{Fact, PROCESS_STATE, Probe, ProbeResult, Signal, SourceInfo};

/// All parsers.
pub const TARGETS: &[Target] = &[
    Target { name: "to-manager", seeds: to_manager_seeds, read: read_to_manager },
    Target { name: "to-agent", seeds: to_agent_seeds, read: read_to_agent },
    Target { name: "forwarded", seeds: forwarded_seeds, read: read_forwarded },
    Target { name: "session", seeds: session_seeds, read: read_session },
    Target { name: "bodies", seeds: body_seeds, read: read_body },
    Target { name: "record", seeds: manager::fuzz::records, read: manager::fuzz::read_record },
    Target { name: "voters", seeds: consensus::fuzz::messages, read: consensus::fuzz::read_message },
    Target { name: "voter-log", seeds: consensus::fuzz::stored, read: consensus::fuzz::read_stored },
];

fn hello() -> Hello {
    let bytes = |value: &SourceInfo| encode(value).unwrap_or_default();
    Hello {
        version_min: 1,
        version_max: 1,
        job: "job".into(),
        host: "host-1".into(),
        instance: "17-4.000000001-0".into(),
        epoch: 3,
        session: 2,
        received: 9,
        launcher: encode(&LauncherInfo::new("local")).unwrap_or_default(),
        sources: vec![
            bytes(&SourceInfo::new("heartbeats").with_probe(PROCESS_STATE)),
            bytes(&SourceInfo::new("steps")),
        ],
        labels: BTreeMap::from([("leaf".to_owned(), "l3".to_owned())]).into_iter().collect(),
        unix_nanos: 1_790_857_026_000_000_000,
        peer_address: ":9602".into(),
    }
}

fn frames() -> Vec<Frame> {
    let arguments = encode(&()).unwrap_or_default();
    let call = Call { id: 1, epoch: 3, method: method::LIST.into(), arguments, ..Call::default() };
    let value = encode(&Listing::new(Revision { epoch: 1, seq: 7 }, Vec::new(), Vec::new())).unwrap_or_default();
    let bodies = [
        Body::Call(call),
        Body::Cancel(Cancel { call: 1 }),
        Body::Answer(Answer { call: 1, result: Some(answer::Result::Value(value)) }),
        Body::Answer(Answer { call: 2, result: Some(answer::Result::UnknownMethod("launcher.fly".into())) }),
    ];
    let numbered = (1..).zip(bodies);
    let mut frames: Vec<Frame> =
        numbered.map(|(number, body)| Frame { number, received: number / 2, body: Some(body) }).collect();
    frames.push(Frame { number: 0, received: 2, body: Some(Body::Confirm(Confirm {})) });
    frames
}

fn to_manager_seeds() -> Vec<Vec<u8>> {
    let lease = LeaseRequest {
        sent: 1_000_000,
        received: 3,
        unix_nanos: 1_790_857_026_000_000_000,
        granted: 900,
        granted_at: 950,
    };
    let frames = frames().into_iter().map(to_manager::Message::Frame);
    let messages = [to_manager::Message::Hello(hello()), to_manager::Message::Lease(lease)].into_iter().chain(frames);
    messages.map(|message| ToManager { message: Some(message) }.encode_to_vec()).collect()
}

fn read_to_manager(input: &[u8]) -> Result<(), String> {
    let message = ToManager::decode(input).map_err(|error| error.to_string())?.message;
    match message {
        Some(to_manager::Message::Hello(hello)) => manager::fuzz::read_hello(hello),
        Some(to_manager::Message::Lease(request)) => {
            clocks(&request);
            Ok(())
        }
        Some(to_manager::Message::Frame(_) | to_manager::Message::Leave(_)) | None => Ok(()),
    }
}

/// Computes with the clocks that a request states, whatever they are.
fn clocks(request: &LeaseRequest) {
    let LeaseRequest { sent, received, unix_nanos, granted, granted_at } = *request;
    let mut clocks = HostClocks::default();
    clocks.calendar(sent, unix_nanos);
    for returned in [received, u64::MAX, granted.saturating_add(1000)] {
        clocks.add(RoundTrip { sent: granted, received: granted_at, replied: sent, returned });
    }
    let now = Reading { own_nanos: granted, calendar_nanos: unix_nanos, apart_nanos: received };
    let _ = clocks.offset(now, u32::MAX).map(|offset| offset.to_string());
    let _ = clocks.passed(sent, received, 1000);
}

fn to_agent_seeds() -> Vec<Vec<u8>> {
    let welcome = Welcome {
        version: 1,
        epoch: 3,
        session: 2,
        received: 4,
        lease_interval_ms: 150,
        lease_ms: 1700,
        relay_key: "5f2a754c".into(),
    };
    let grant = LeaseGrant { sent: 1_000_000, epoch: 3, anchor_age_nanos: 12, received: 3, manager_nanos: 7 };
    let frames = frames().into_iter().map(to_agent::Message::Frame);
    let messages = [to_agent::Message::Welcome(welcome), to_agent::Message::Lease(grant)].into_iter().chain(frames);
    messages.map(|message| ToAgent { message: Some(message) }.encode_to_vec()).collect()
}

fn read_to_agent(input: &[u8]) -> Result<(), String> {
    ToAgent::decode(input).map(drop).map_err(|error| error.to_string())
}

fn forwarded_seeds() -> Vec<Vec<u8>> {
    vec![Chunk { job: "job".into(), generation: 4, data: vec![7; 40].into() }.encode_to_vec()]
}

fn read_forwarded(input: &[u8]) -> Result<(), String> {
    Chunk::decode(input).map(drop).map_err(|error| error.to_string())
}

fn session_seeds() -> Vec<Vec<u8>> {
    let one_after_the_other = frames().iter().flat_map(Message::encode_length_delimited_to_vec).collect();
    let again = frames().iter().chain(&frames()).flat_map(Message::encode_length_delimited_to_vec).collect();
    vec![one_after_the_other, again]
}

/// Takes frames, one after the other, into a window that has sent some itself.
fn read_session(input: &[u8]) -> Result<(), String> {
    let mut window = Window::new(WindowBounds::default());
    for call in 0..4 {
        window.push(Body::Cancel(Cancel { call }));
    }
    let (mut rest, mut confirmed) = (input, 0);
    while !rest.is_empty() {
        let frame = Frame::decode_length_delimited(&mut rest).map_err(|error| error.to_string())?;
        let (before, received) = (window.taken(), frame.received);
        let taken = window.take(frame);
        let after = window.taken();
        assert!(after == before || after == before + 1, "frame {after} was taken after frame {before}");
        if let Taken::Broken(why) = taken {
            return Err(why.to_owned());
        }
        confirmed = received.max(confirmed);
        assert!(received <= 4, "a confirmation of {received} frames was taken, and 4 were sent");
        assert!(window.resume(confirmed).is_some(), "what was confirmed cannot be resumed");
    }
    Ok(())
}

fn start() -> StartArguments {
    let spec = Arc::new(taskd_runtime::job::WorkerSpec::new(["train", "--fast"]).with_env("A", "b"));
    let starts = vec![
        StartOrder::new(ProcId::rank(0, 1), Place::anywhere(), Arc::clone(&spec)),
        StartOrder::new(ProcId::rank(1, 3), Place::On(NodeId("host-1".into())), spec),
    ];
    let batch = StartBatch::new(Arc::new(World::first(BTreeMap::new())), starts);
    let (rendezvous, secret, address) = ("10.0.0.1:9602".into(), "secret".into(), "10.0.0.2".into());
    let copies = BTreeMap::from([(Rank(0), Rank(1))]);
    StartArguments { batch, rendezvous: Some(rendezvous), secret: Some(secret), address: Some(address), copies }
}

fn facts() -> FactsMessage {
    let about = Domain::Process(Role::Rank(Rank(3)));
    let signals = [
        Signal::Heartbeat,
        Signal::Progress { step: 12 },
        Signal::Lost { count: 3 },
        Signal::Metric { name: "loss".into(), value: f64::NAN },
        Signal::CollectivePending { group: "dp".into(), sequence: 4, nanos: 800_000_000 },
    ];
    let fact =
        |signal| Fact::new(about.clone(), signal).with_age(Duration::from_millis(40)).with_generation(Generation(2));
    let facts = FactsItem::Facts(signals.into_iter().map(fact).collect());
    let items = [facts, FactsItem::Failed(SourceFailure::Failed("no".into())), FactsItem::Ended(None)];
    let entry = |(number, item)| FactsEntry { number, source: 0, item };
    FactsMessage { sent_nanos: 17, entries: (1..).zip(items).map(entry).collect() }
}

/// Decodes a body.
type Decode = fn(&[u8]) -> Result<(), String>;

/// Forms of a body: the first byte of an input is the number of one.
const BODIES: &[Decode] = &[
    body::<StartArguments>,
    body::<PrepareArguments>,
    body::<StopArguments>,
    body::<DirectiveArguments>,
    body::<Listing>,
    body::<(Vec<Change>, Revision)>,
    body::<LaunchError>,
    body::<NextArguments>,
    body::<FactsMessage>,
    body::<CollectArguments>,
    body::<Vec<(Domain, Result<ProbeResult, SourceFailure>)>>,
    body::<LauncherInfo>,
    body::<SourceInfo>,
];

fn body_seeds() -> Vec<Vec<u8>> {
    let world = Arc::new(World::first(BTreeMap::new()));
    let directives =
        DirectiveArguments { id: CommandId(4), batch: DirectiveBatch::new(world, Vec::new()), rendezvous: None };
    let node = NodeStatus::new(NodeId("host-1".into()), NodeState::Ready, 8);
    let probe = Probe::new("hang", PROCESS_STATE, Vec::new(), Duration::from_millis(400)).with_tag(4);
    let about = vec![Domain::Process(Role::Rank(Rank(3))), Domain::Node(NodeId("host-1".into()))];
    let replies: Vec<(Domain, Result<ProbeResult, SourceFailure>)> = vec![
        (Domain::Job, Ok(ProbeResult::Text("state=T".into()))),
        (Domain::Process(Role::Service("store".into())), Err(SourceFailure::Unavailable("gone".into()))),
    ];
    let revision = Revision { epoch: 1, seq: 7 };
    let bodies = [
        encode(&start()),
        encode(&PrepareArguments::new(start(), &PrepareOptions::new().with_in_loop(true))),
        encode(&StopArguments { procs: vec![ProcId::rank(3, 2)], grace: Duration::from_secs(3) }),
        encode(&directives),
        encode(&Listing::new(revision, Vec::new(), vec![node.clone()])),
        encode(&(vec![Change::Node(node)], revision)),
        encode(&LaunchError::Unreachable("no route".into())),
        encode(&NextArguments { after: 17 }),
        encode(&facts()),
        encode(&CollectArguments { probe, about }),
        encode(&replies),
        encode(&LauncherInfo::new("local")),
        encode(&SourceInfo::new("steps").with_probe(PROCESS_STATE)),
    ];
    (0..).zip(bodies).map(|(form, body)| [&[form], &*body.unwrap_or_default()].concat()).collect()
}

fn read_body(input: &[u8]) -> Result<(), String> {
    let (form, body) = input.split_first().ok_or("there is no body")?;
    let read = BODIES.get(usize::from(*form)).ok_or_else(|| format!("there is no form {form}"))?;
    read(body)
}

/// Reads a body; what was read has one form.
fn body<T: Serialize + DeserializeOwned>(input: &[u8]) -> Result<(), String> {
    let value: T = decode(input).map_err(|error| error.to_string())?;
    let Ok(bytes) = encode(&value) else { panic!("what was read cannot be written") };
    let Ok(again) = decode::<T>(&bytes) else { panic!("what was read cannot be read again") };
    assert!(encode(&again) == Ok(bytes), "what was read changes when it is read again");
    Ok(())
}
