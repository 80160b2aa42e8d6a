//! Orders to a launcher to start processes.

use crate::job::{NodeId, ProcId, WorkerSpec, World};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The host on which a process is to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Place {
    /// Run on this host. Use this variant wherever the launcher lists its hosts, so that the job's log contains the
    /// choice.
    On(NodeId),
    /// Run on any host except these; the launcher chooses the host.
    AnyBut(BTreeSet<NodeId>),
}

impl Place {
    /// Returns the place that allows the launcher to choose any host.
    #[must_use]
    pub const fn anywhere() -> Place {
        Place::AnyBut(BTreeSet::new())
    }
}

/// An order to start one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StartOrder {
    /// Identifier of the process to start: the key by which a repeated order is recognised.
    pub proc: ProcId,
    /// The host on which the process is to run.
    pub place: Place,
    /// The command to run, with its environment and settings.
    pub spec: Arc<WorkerSpec>,
}

impl StartOrder {
    /// Creates an order to start this process on that host.
    #[must_use]
    pub const fn new(proc: ProcId, place: Place, spec: Arc<WorkerSpec>) -> StartOrder {
        StartOrder { proc, place, spec }
    }

    /// Sets the host on which the process is to run.
    #[must_use]
    pub fn with_place(mut self, place: Place) -> StartOrder {
        self.place = place;
        self
    }

    /// Sets the command to run and its settings.
    #[must_use]
    pub fn with_spec(mut self, spec: Arc<WorkerSpec>) -> StartOrder {
        self.spec = spec;
        self
    }
}

/// Orders to start several processes together in the same world.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct StartBatch {
    /// The world that the processes belong to: the set of ranks that train together.
    pub world: Arc<World>,
    /// The start orders, one for each process.
    #[serde(with = "Orders")]
    #[serde(alias = "orders")]
    pub starts: Vec<StartOrder>,
}

impl StartBatch {
    /// Creates a batch of start orders for processes of this world.
    #[must_use]
    pub const fn new(world: Arc<World>, starts: Vec<StartOrder>) -> StartBatch {
        StartBatch { world, starts }
    }

    /// Returns the world from which the batch's processes derive their numbers, given `world`, that of the batch with more
    /// hosts known. Processes that join running ranks count the absent ranks; others form their process group among
    /// themselves.
    #[must_use]
    #[doc(hidden)]
    pub fn layout<'a>(&self, world: &'a World) -> Cow<'a, World> {
        let joins = |order: &StartOrder| order.spec.env.contains_key(super::JOIN_VARIABLE);
        match world.absent().is_empty() || self.starts.iter().any(joins) {
            true => Cow::Borrowed(world),
            false => Cow::Owned(world.without_absent()),
        }
    }
}

/// Serialised form of start orders in a log or on a wire: an order whose specification equals that of the order before
/// it leaves it out, so that 10,000 ranks do not repeat one command line 10,000 times.
struct Orders;

/// One serialised start order.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JobSpec, Rank};

    #[test]
    fn a_batch_encodes_repeated_specifications_once_and_round_trips() {
        let world = Arc::new(JobSpec::new("job", 4, WorkerSpec::new(["train"])).first_world());
        let specs = ["a", "a", "b", "a"].map(|program| Arc::new(WorkerSpec::new([program.repeat(1000)])));
        let order = |(rank, spec): (u32, &Arc<WorkerSpec>)| StartOrder {
            proc: world.proc(Rank(rank)).expect("a member"),
            place: Place::anywhere(),
            spec: Arc::clone(spec),
        };
        let batch = StartBatch { world: Arc::clone(&world), starts: (0..4).zip(&specs).map(order).collect() };
        let bytes = postcard::to_stdvec(&batch).expect("it has a form");
        assert!((3000..4000).contains(&bytes.len()), "three of the four: {}", bytes.len());
        let back: StartBatch = postcard::from_bytes(&bytes).expect("it was encoded");
        assert_eq!(back, batch);
        assert!(Arc::ptr_eq(&back.starts[0].spec, &back.starts[1].spec), "and is shared again");
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
