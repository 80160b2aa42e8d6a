//! Control links to training processes, and the reports that have yet to arrive on them.
//!
//! It decides nothing, and handles no message: those are passed on by `ingest`.

use super::incidents::Open;
use super::{Counts, DropReason};
use crate::job::{Incarnation, JobTime, ProcId, Rank, Role, World};
use crate::state::{LinkStatus, LoopPosition, Proc, Replicas, View};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a decision waits for a report of a rank whose link has closed.
///
/// It may take a while to release the memory of a process before its end is reported.
pub(super) const WORD_WITHIN: Duration = Duration::from_secs(1);

/// Handles the state of control links.
pub(super) struct Links<'a> {
    pub(super) now: JobTime,
    pub(super) world: &'a World,
    pub(super) procs: &'a mut BTreeMap<Role, Proc>,
    pub(super) replicas: &'a mut Replicas,
    pub(super) unread: &'a mut BTreeMap<Role, (Incarnation, JobTime)>,
    pub(super) counts: &'a mut Counts,
}

/// What a change of a link means for others.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkNews {
    /// True if a report for which decisions wait may have arrived.
    pub(super) has_report: bool,
    /// True if the process is parked.
    pub(super) is_parked: bool,
}

impl Links<'_> {
    /// A link was opened or closed, or the loop position of its process changed.
    pub(super) fn linked(&mut self, status: &LinkStatus) -> LinkNews {
        let LinkStatus { proc, link: linked } = status;
        let has_report = linked.is_none() && forget_unread(self.unread, proc);
        let news = LinkNews { has_report, is_parked: false };
        let known = self.procs.get_mut(&proc.role);
        let Some(known) = known.filter(|known| known.incarnation == proc.incarnation) else {
            self.counts.drop(DropReason::OldIncarnation);
            return news;
        };
        if known.link == *linked {
            self.counts.drop(DropReason::RepeatedChange);
            return news;
        }
        known.unlinked_at = if linked.is_none() { Some(self.now) } else { None };
        known.link.clone_from(linked);
        if let (Some(rank), Some(digest)) = (proc.role.rank(), linked.as_ref().and_then(|link| link.digest.as_deref()))
        {
            self.replicas.hear(rank, digest, self.world.absent());
        }
        let is_parked = linked.as_ref().is_some_and(|link| link.position == LoopPosition::Parked);
        LinkNews { has_report: true, is_parked }
    }

    /// Closes the links that are not listed: they do not exist. For example, after a supervisor was replaced, there are
    /// no links until the processes reconnect.
    pub(super) fn close_unlisted(&mut self, links: &[LinkStatus]) {
        let listed: BTreeSet<&ProcId> = links.iter().map(|status| &status.proc).collect();
        for (role, known) in self.procs.iter_mut().filter(|(_, known)| known.link.is_some()) {
            let proc = ProcId { role: role.clone(), incarnation: known.incarnation };
            if !listed.contains(&proc) {
                (known.link, known.unlinked_at) = (None, Some(self.now));
            }
        }
    }

    /// A process that has ended has no link.
    pub(super) fn ended(&mut self, proc: &ProcId) {
        let known = self.procs.get_mut(&proc.role);
        if let Some(known) = known.filter(|known| known.incarnation == proc.incarnation) {
            if known.link.is_some() {
                self.unread.insert(proc.role.clone(), (proc.incarnation, self.now));
            }
            (known.link, known.unlinked_at) = (None, None);
        }
    }
}

/// Reads which ranks have yet to report.
pub(super) struct AwaitedReports<'a> {
    pub(super) view: &'a View,
    pub(super) unread: &'a BTreeMap<Role, (Incarnation, JobTime)>,
}

impl AwaitedReports<'_> {
    /// Returns the time until which a decision waits for a report of ranks whose link has just closed. If such a rank
    /// died, its end is reported soon; if it lives, it reconnects. Before that, it can receive no directive, and all
    /// ranks would have to restart.
    pub(super) fn delay(&self, open: &mut Open) -> Option<JobTime> {
        let view = self.view;
        let has_just_gone = |proc: &Proc| proc.unlinked_at.is_some_and(|at| view.now < at + WORD_WITHIN);
        let is_silent = |(rank, proc): (Rank, &Proc)| view.world.members().contains_key(&rank) && has_just_gone(proc);
        if !view.training().any(is_silent) && !self.is_one_under_way() {
            return None;
        }
        let until = *open.word_until.get_or_insert(view.now + WORD_WITHIN);
        (view.now < until).then_some(until)
    }

    /// Returns true if a rank has just ended, and only a report that it may have sent is missing to prove which ranks
    /// hold the same state.
    ///
    /// The end of a process can be known before its link was read to the end.
    fn is_one_under_way(&self) -> bool {
        let view = self.view;
        self.unread.iter().any(|(role, (incarnation, since))| {
            let rank = role.rank().filter(|_| view.now < *since + WORD_WITHIN);
            let is_of_world =
                |rank: &Rank| view.world.members().get(rank).is_some_and(|m| m.incarnation == *incarnation);
            rank.filter(is_of_world).is_some_and(|rank| view.replicas.lacks_report(rank))
        })
    }
}

/// Forgets an ended process whose link was read to its end. Returns false if it was forgotten before.
fn forget_unread(unread: &mut BTreeMap<Role, (Incarnation, JobTime)>, proc: &ProcId) -> bool {
    let is_of_it = unread.get(&proc.role).is_some_and(|(incarnation, _)| *incarnation == proc.incarnation);
    is_of_it && unread.remove(&proc.role).is_some()
}
