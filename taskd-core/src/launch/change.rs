//! What a launcher is told to start, and what it tells of it.

use super::{LinkStatus, WorkerSaid};
use crate::job::{Exit, Name, NodeId, ProcId, Termination, WorkerSpec, World};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// Where a process is to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Place {
    /// On this host. The form to use wherever the launcher lists nodes: then the choice stands in the log.
    On(NodeId),
    /// On any host but these: the launcher chooses.
    AnyBut(BTreeSet<NodeId>),
}

impl Place {
    /// Anywhere.
    #[must_use]
    pub const fn anywhere() -> Place {
        Place::AnyBut(BTreeSet::new())
    }
}

/// One process to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartOrder {
    /// The process: the key under which starting it again is no second start.
    pub proc: ProcId,
    /// Where.
    pub place: Place,
    /// How.
    pub spec: Arc<WorkerSpec>,
}

/// Processes that are started together, with one world for all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StartBatch {
    /// The world that they start into.
    pub world: Arc<World>,
    /// The processes.
    #[serde(with = "Orders")]
    pub orders: Vec<StartOrder>,
}

/// Orders in a log or on a wire: one whose specification is that of the order before it leaves it out, so that 10,000
/// ranks do not repeat one command line 10,000 times.
struct Orders;

/// One of them.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Order<P, L, S> {
    proc: P,
    place: L,
    spec: Option<S>,
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Orders {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "StartOrders".into()
    }
    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        Vec::<Order<ProcId, Place, WorkerSpec>>::json_schema(generator)
    }
}

impl Orders {
    fn serialize<S: Serializer>(orders: &[StartOrder], s: S) -> Result<S::Ok, S::Error> {
        let mut last = None;
        s.collect_seq(orders.iter().map(|StartOrder { proc, place, spec }| {
            let repeated = last.replace(spec) == Some(spec);
            Order { proc, place, spec: (!repeated).then_some(spec) }
        }))
    }

    fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<StartOrder>, D::Error> {
        let mut last = None;
        let orders = Vec::<Order<ProcId, Place, Arc<WorkerSpec>>>::deserialize(d)?.into_iter();
        let whole = orders.map(|Order { proc, place, spec }| {
            last = spec.or(last.take());
            let spec = last.clone().ok_or_else(|| D::Error::custom("the first order has no specification"))?;
            Ok(StartOrder { proc, place, spec })
        });
        whole.collect()
    }
}

/// Where a process is in its life. It only ever moves forward in this order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Accepted, not running yet, and why.
    Pending(String),
    /// It runs.
    Running,
    /// It has ended for the training job: fast knowledge, from the lifeline. Memory and ports may still be in use.
    ///
    /// [`Termination::Unknown`] where it could not be read: provisional until [`Phase::Exited`].
    Dead(Termination),
    /// It is gone: exact, and reported exactly once, also when the start itself failed.
    Exited(Box<Exit>),
}

impl Phase {
    /// Whether the process has ended, as far as is known.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self, Phase::Dead(_) | Phase::Exited(_))
    }

    /// Whether the process is gone for certain.
    #[must_use]
    pub const fn is_exited(&self) -> bool {
        matches!(self, Phase::Exited(_))
    }

    /// How it ended, if it has.
    #[must_use]
    pub fn termination(&self) -> Option<Termination> {
        match self {
            Phase::Dead(how) => Some(*how),
            Phase::Exited(exit) => Some(exit.how),
            Phase::Pending(_) | Phase::Running => None,
        }
    }

    /// Its exact end, where it has come to that.
    #[must_use]
    pub fn exit(&self) -> Option<&Exit> {
        match self {
            Phase::Exited(exit) => Some(exit),
            Phase::Pending(_) | Phase::Running | Phase::Dead(_) => None,
        }
    }

    /// Rank in the order of life, for "only forward".
    #[must_use]
    pub const fn order(&self) -> u8 {
        match self {
            Phase::Pending(_) => 0,
            Phase::Running => 1,
            Phase::Dead(_) => 2,
            Phase::Exited(_) => 3,
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Phase::Pending(why) => write!(f, "pending: {why}"),
            Phase::Running => f.write_str("running"),
            Phase::Dead(how) => write!(f, "dead: {how}"),
            Phase::Exited(exit) => write!(f, "exited: {}", exit.how),
        }
    }
}

/// One process as its launcher sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcStatus {
    /// Which process.
    pub proc: ProcId,
    /// On which host, once that is known.
    pub node: Option<NodeId>,
    /// Tells two processes apart that a platform ran under one incarnation: pid and start time, or a pod's uid.
    pub instance: Name,
    /// The process id on its host, once it runs and where there is one.
    pub pid: Option<u32>,
    /// Where it is in its life.
    pub phase: Phase,
}

/// Whether a host can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum NodeState {
    /// It can.
    Ready,
    /// It runs what it runs, but nothing new is to start there.
    Cordoned,
    /// It does not answer: what runs there is unknown, not dead.
    OutOfSight,
    /// It is gone for good: what ran there has ended.
    Left,
}

/// One host as its launcher sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodeStatus {
    /// Which host.
    pub node: NodeId,
    /// Whether it can be used.
    pub state: NodeState,
    /// How many ranks it can hold.
    pub slots: u32,
}

/// Whether the guard of a host's processes can be relied on: the process that starts, stops and reaps them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum GuardState {
    /// It answers.
    Answers,
    /// It is there and does not answer, with what is known of why: what it guards goes on, and nothing can be started or stopped there.
    Silent(String),
    /// It is gone, or ends although its owner has not asked for that, with what is known of why: what it guards ends with it.
    Gone(GuardEnd),
}

/// How a guard has ended, where its owner had not asked for that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GuardEnd {
    /// What is known of it, in one sentence.
    pub why: String,
    /// It ended as it had been told to, because no owner came back in time: recoveries from that are free.
    #[serde(default)]
    pub was_agreed: bool,
}

/// The guard of one host's processes, as its launcher sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GuardStatus {
    /// Whose processes it guards.
    pub node: NodeId,
    /// Tells one guard from the next: its pid and start time. What an earlier one guarded has ended with that one.
    pub instance: Name,
    /// Its process id.
    pub pid: u32,
    /// Whether it can be relied on.
    pub state: GuardState,
    /// How the one before it on this host has ended, where that is known.
    #[serde(default)]
    pub before: Option<GuardEnd>,
}

/// One thing that changed at a launcher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// A process.
    Proc(ProcStatus),
    /// A host.
    Node(NodeStatus),
    /// The link to a process.
    Link(LinkStatus),
    /// What a process says of itself. Told once: no listing repeats it.
    Said(WorkerSaid),
    /// The guard of a host's processes. One that is gone comes before the ends of what it guarded.
    Guard(GuardStatus),
}

/// A place in a launcher's history. `epoch` changes when that history begins anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Revision {
    /// Which history.
    pub epoch: u64,
    /// How many changes of it.
    pub seq: u64,
}

/// Everything a launcher knows, at one revision.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Listing {
    /// The place in the history from which `watch` goes on.
    pub revision: Revision,
    /// All processes that run, and all exits that were not acknowledged.
    pub procs: Vec<ProcStatus>,
    /// All hosts.
    pub nodes: Vec<NodeStatus>,
    /// The links to processes that run.
    #[serde(default)]
    pub links: Vec<LinkStatus>,
    /// The guards of the hosts' processes, where the launcher has such.
    #[serde(default)]
    pub guards: Vec<GuardStatus>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JobSpec, Rank};

    #[test]
    fn a_batch_holds_each_specification_once_in_a_row_and_comes_back_as_it_was() {
        let world = Arc::new(JobSpec::new("job", 4, WorkerSpec::new(["train"])).first_world());
        let specs = ["a", "a", "b", "a"].map(|program| Arc::new(WorkerSpec::new([program.repeat(1000)])));
        let order = |(rank, spec): (u32, &Arc<WorkerSpec>)| StartOrder {
            proc: world.proc(Rank(rank)).expect("a member"),
            place: Place::anywhere(),
            spec: Arc::clone(spec),
        };
        let batch = StartBatch { world: Arc::clone(&world), orders: (0..4).zip(&specs).map(order).collect() };
        let bytes = postcard::to_stdvec(&batch).expect("it has a form");
        assert!((3000..4000).contains(&bytes.len()), "three of the four: {}", bytes.len());
        let back: StartBatch = postcard::from_bytes(&bytes).expect("it was encoded");
        assert_eq!(back, batch);
        assert!(Arc::ptr_eq(&back.orders[0].spec, &back.orders[1].spec), "and is shared again");
        let json = serde_json::to_string(&batch).expect("it has a form");
        assert_eq!(serde_json::from_str::<StartBatch>(&json).expect("it was encoded"), batch);
    }

    #[test]
    fn orders_without_a_specification_are_refused() {
        let orders = "{\"world\":{\"generation\":1,\"restarts\":0,\"members\":{},\"groups\":{}},\"orders\":[{\"proc\":{\"role\":{\"rank\":0},\"incarnation\":1},\"place\":{\"any-but\":[]}}]}";
        let error = serde_json::from_str::<StartBatch>(orders).expect_err("no specification");
        assert!(error.to_string().contains("no specification"), "{error}");
    }
}
