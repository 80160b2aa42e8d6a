//! The ledger: what happened, and whether it was allowed.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use taskd_cluster::consensus::{Epoch, Version};
use taskd_runtime::job::{CommandId, Generation, NodeId, ProcId, Rank, World};

/// Events that are kept to explain a violation.
const NOTES_MAX: usize = 400;

/// What a violation is about, the gravest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Property {
    /// Of the hosts: two worlds, an order of an epoch that is over, a rank beside its successor, a command carried out
    /// twice.
    Job,
    /// Of the consensus engine: two epochs in force, a record that was lost.
    Engine,
    /// Of time, and of processes that end by themselves: nothing is unsafe.
    Progress,
}

/// What happened in one simulation.
#[derive(Default)]
pub(crate) struct Ledger {
    notes: VecDeque<String>,
    /// First violation of the gravest property.
    pub(crate) violation: Option<(Property, String)>,
    worlds: BTreeMap<Generation, World>,
    managers: BTreeMap<Epoch, String>,
    started: BTreeMap<ProcId, NodeId>,
    directives: BTreeMap<(CommandId, NodeId), u32>,
    /// Epochs of the managers that sent the commands, by their numbers.
    sent: BTreeMap<CommandId, Epoch>,
    /// Greatest epoch of which a host has carried out an order.
    obeyed: BTreeMap<NodeId, Epoch>,
    /// Ranks that faults of the simulation have ended.
    pub(crate) killed: Vec<ProcId>,
    /// Greatest version of the record that was written or read.
    pub(crate) version: Version,
    /// Last time at which a manager carried out an order.
    pub(crate) served: Duration,
    pub(crate) counts: BTreeMap<&'static str, u64>,
}

impl Ledger {
    pub(crate) fn note(&mut self, now: Duration, what: String) {
        tracing::info!(target: "simulation", "{:.3} {what}", now.as_secs_f64());
        if self.notes.len() == NOTES_MAX {
            self.notes.pop_front();
        }
        self.notes.push_back(format!("{:9.3} {what}", now.as_secs_f64()));
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub(crate) fn notes(&self) -> impl Iterator<Item = &String> {
        self.notes.iter()
    }

    pub(crate) fn violate(&mut self, now: Duration, property: Property, what: String) {
        if self.violation.as_ref().is_none_or(|(known, _)| property < *known) {
            self.note(now, format!("VIOLATION ({property:?}): {what}"));
            self.violation = Some((property, what));
        }
    }

    /// A process became the manager.
    pub(crate) fn elected(&mut self, now: Duration, epoch: Epoch, host: &str) {
        self.note(now, format!("{host} is the manager in epoch {epoch}"));
        self.count("epochs");
        if let Some(other) = self.managers.insert(epoch, host.to_owned()) {
            self.violate(now, Property::Engine, format!("{other} and {host} are managers in epoch {epoch}"));
        }
    }

    /// Returns the greatest epoch, and the host of its manager.
    pub(crate) fn manager(&self) -> Option<(Epoch, &String)> {
        self.managers.last_key_value().map(|(epoch, host)| (*epoch, host))
    }

    /// A host carries out an order of the manager of an epoch.
    pub(crate) fn obeys(&mut self, now: Duration, host: &NodeId, epoch: Epoch) {
        let newest = self.obeyed.entry(host.clone()).or_default();
        if epoch < *newest {
            let text = format!("{host} carries out an order of epoch {epoch} after one of epoch {newest}");
            return self.violate(now, Property::Job, text);
        }
        *newest = epoch;
    }

    /// Returns the greatest epoch of which a host has carried out an order.
    pub(crate) fn obeyed(&self, host: &str) -> Epoch {
        self.obeyed.iter().find(|(name, _)| name.0.as_str() == host).map_or(Epoch(0), |(_, epoch)| *epoch)
    }

    /// A host got an order for a world.
    pub(crate) fn ordered(&mut self, now: Duration, world: &World) {
        match self.worlds.get(&world.generation()) {
            Some(known) if known != world => {
                let text = format!("two worlds, {}: {} and {}", world.generation(), short(known), short(world));
                self.violate(now, Property::Job, text);
            }
            Some(_) => {}
            None => _ = self.worlds.insert(world.generation(), world.clone()),
        }
    }

    /// A process starts on a host; `beside` is a live process of the same rank elsewhere.
    pub(crate) fn started(&mut self, now: Duration, proc: &ProcId, host: &NodeId, beside: Option<(ProcId, NodeId)>) {
        self.note(now, format!("{proc} starts on {host}"));
        self.count("starts");
        if let Some((other, there)) = beside {
            let text = format!("{proc} starts on {host} beside {other}, which runs on {there}");
            self.violate(now, Property::Job, text);
        }
        if let Some(before) = self.started.insert(proc.clone(), host.clone()) {
            self.violate(now, Property::Job, format!("{proc} starts on {host}, and had started on {before}"));
        }
    }

    /// Returns a number of a command of the manager of an epoch, which no other command has.
    pub(crate) fn next_directive(&mut self, epoch: Epoch) -> CommandId {
        let id = CommandId(1_000_000 + self.sent.len() as u64);
        self.sent.insert(id, epoch);
        id
    }

    /// A host carries out a command.
    pub(crate) fn carried_out(&mut self, now: Duration, id: CommandId, host: &NodeId) {
        if let Some(epoch) = self.sent.get(&id).copied() {
            self.obeys(now, host, epoch);
        }
        let times = self.directives.entry((id, host.clone())).or_default();
        *times += 1;
        if *times > 1 {
            let text = format!("{host} carries out command {} {times} times", id.0);
            self.violate(now, Property::Job, text);
        }
    }

    /// Returns the newest world that a host got an order for.
    pub(crate) fn newest(&self) -> Option<&World> {
        self.worlds.last_key_value().map(|(_, world)| world)
    }

    /// Returns the ranks of a world that are ended and not replaced.
    pub(crate) fn lost_faults(&self) -> Vec<ProcId> {
        let Some(world) = self.newest() else { return Vec::new() };
        let in_world =
            |proc: &&ProcId| proc.role.rank().and_then(|rank: Rank| world.proc(rank)).as_ref() == Some(*proc);
        self.killed.iter().filter(in_world).cloned().collect()
    }
}

fn short(world: &World) -> String {
    let member = |(rank, member): (&Rank, &taskd_runtime::job::Member)| {
        let node = member.node.as_ref().map_or("?", |node| node.0.as_str());
        format!("{rank:?}:{:?}@{node}", member.incarnation)
    };
    world.members().iter().map(member).collect::<Vec<_>>().join(" ")
}
