//! The world in force: what its successor changes for processes, replicas and in-memory checkpoints.
//!
//! Which world comes next is decided by a strategy.

use super::in_memory_checkpoints::Memory;
use super::shrunk_periods::SmallerTimes;
use crate::job::{Counted, Domain, JobTime, Member, Rank, Role, World};
use crate::recover::{CommandOutcome, TargetReply};
use crate::state::{Proc, ProcStatus, Replicas, View};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Puts worlds in force.
pub(super) struct Worlds<'a> {
    pub(super) now: JobTime,
    pub(super) world: &'a mut Arc<World>,
    pub(super) procs: &'a mut BTreeMap<Role, Proc>,
    pub(super) replicas: &'a mut Replicas,
    pub(super) memory: &'a mut Memory,
    pub(super) smaller: &'a mut SmallerTimes,
}

impl Worlds<'_> {
    pub(super) fn enter(&mut self, world: Arc<World>) {
        for (rank, member) in world.members() {
            let known = self.procs.get_mut(&Role::Rank(*rank));
            if let Some(known) = known.filter(|k| k.incarnation == member.incarnation) {
                known.generation = world.generation(); // the process survives into the new world
            }
        }
        let before = self.world.members();
        let lives_on = |(rank, member): (&Rank, &Member)| {
            before.get(rank).is_some_and(|was| was.incarnation == member.incarnation)
        };
        if !world.members().iter().any(lives_on) {
            self.replicas.start_again();
        }
        *self.world = world;
        self.memory.new_world();
        self.smaller.entered(self.world, self.now);
    }
}

/// Records the checksums that ranks reported in a stage.
pub(super) fn hear_digests(done: &[CommandOutcome], world: &World, replicas: &mut Replicas) {
    for (target, result) in done.iter().flat_map(|done| &done.results) {
        if let (Domain::Process(Role::Rank(rank)), Ok(TargetReply::Directive(answered))) = (target, result)
            && let Some(digest) = &answered.digest
        {
            replicas.hear(*rank, digest, world.absent());
        }
    }
}

/// Returns the world that consists of the processes that another system has started, if it is a new one. All that are
/// reported together enter one world.
pub(super) fn observed<'a>(told: impl IntoIterator<Item = &'a ProcStatus>, view: &View) -> Option<World> {
    let newer = |status: &&ProcStatus| {
        let known = view.procs.get(&status.proc.role).map(|known| known.incarnation);
        known < Some(status.proc.incarnation)
    };
    let mut members = view.world.members().clone();
    for ProcStatus { proc, node, .. } in told.into_iter().filter(newer) {
        if let Some(member) = proc.role.rank().and_then(|rank| members.get_mut(&rank)) {
            member.incarnation = proc.incarnation;
            member.node = node.clone().or(member.node.take());
        }
    }
    (members != *view.world.members()).then(|| view.world.successor(Counted::No, |old| *old = members))
}
