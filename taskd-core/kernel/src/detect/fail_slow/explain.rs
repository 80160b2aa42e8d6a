//! Decides what a shift means: which component has it, and why.
//!
//! The smallest component that contains all suspicious ranks is named. Where two components have the same ranks, such
//! as a host that runs a whole stage, none is blamed.

use super::channel::{Channel, Level};
use super::engine::{Row, Series};
use super::layout::Layout;
use super::track::{Limits, Run};
use super::verdict::{Cause, Component, Verdict};
use crate::job::{GroupId, GroupKind};
use std::collections::BTreeSet;

/// Fraction of the other members of a component that must be suspicious as well.
const MEMBERS: f32 = 0.8;
/// Fraction of them from which the decision is put off: the others may follow.
const MEMBERS_LATER: f32 = 0.3;
/// Number of values above the minimum for which a decision is put off.
const LATER_COUNT: u32 = 4;
/// Number of values above the minimum for which longer transfers wait for the verdict on a member that may be slow.
const SLOW_RANK_LATER_COUNT: u32 = 16;
/// Number of values above the minimum for which longer transfers between two ranks are no verdict yet: one of the ranks
/// may be held up.
const HELD_UP_LATER_COUNT: u32 = 8;
/// Fraction of all ranks above which a shift is an uneven load.
const WIDE: f32 = 0.5;
/// Minimum excess of the peers' wait over the rank's own wait, as a fraction of the excess of its own time.
const WAITED_FOR: f32 = 0.4;
/// A rank is not slower if its peers have become faster by more than this part of its shift.
const PEERS_FASTER: f32 = 0.5;
/// Number of further standard errors for each unit of scatter: a large scatter is known less exactly.
const ERRORS_PER_SIGMA: f32 = 10.0;
/// Minimum shift of a whole job, stage or replica (natural logarithm).
const WIDE_SHIFT_MIN: f32 = 0.08;
/// Minimum time in milliseconds that a slow-down must have cost since its onset. In training of short steps, machines
/// have bursts of other work of some hundred milliseconds: many steps long, correlated, and no fault.
const LOST_MIN_MS: f32 = 200.0;

/// Result of an examination.
pub(super) enum Explanation {
    /// The units that the verdict covers.
    Verdict(Verdict, Vec<u32>),
    /// Not a slow-down, or not certain enough.
    None,
    /// More steps will tell.
    Later,
}

/// What is known in a step.
pub(super) struct Context<'a> {
    pub(super) channel: &'a Channel,
    /// The channel of computation.
    pub(super) compute: &'a Channel,
    pub(super) layout: &'a Layout,
    pub(super) scale: &'a [f32],
    pub(super) has_waits: bool,
    pub(super) first_step: u64,
    /// Usual CPU time and usual forward time of each rank.
    pub(super) usual: [&'a [f32]; 2],
    pub(super) rows: &'a [Row],
    pub(super) limits: Limits,
}

impl Context<'_> {
    pub(super) fn explain(&self, level: Level, unit: usize, run: &Run, is_weak: bool) -> Explanation {
        let tuning = &self.channel.tuning;
        let shift_min = if level == Level::Rank { tuning.shift_min } else { tuning.shift_min.max(WIDE_SHIFT_MIN) };
        if run.count < tuning.count_min + u32::from(is_weak) {
            return Explanation::Later;
        }
        let track = self.channel.track(level);
        let errors = tuning.errors + ERRORS_PER_SIGMA * track.sigma(unit);
        let certain = run.shift() - errors * track.error(unit, run);
        if run.shift() < shift_min || certain < shift_min / 2.0 {
            return Explanation::None;
        }
        if self.lost_ms(level, unit, run) < LOST_MIN_MS {
            return Explanation::Later;
        }
        match level {
            Level::Job => self.job(run),
            Level::Pool => self.pool(unit, run),
            Level::Replica => self.replica(unit, run),
            Level::Rank => self.rank(unit, run),
        }
    }

    fn job(&self, run: &Run) -> Explanation {
        let everyone: Vec<u32> = (0..).take(self.layout.len()).collect();
        let known = everyone.iter().map(|rank| *rank as usize).find(|rank| self.channel.level[*rank].is_finite());
        let Some(rank) = known.filter(|rank| self.is_large(*rank, run)) else { return Explanation::None };
        if self.may_wait_for_a_slow_rank(&everyone, run) || self.may_wait_for_slower_peers(rank, run) {
            return Explanation::Later;
        }
        let cause = match self.channel.series {
            Series::Compute => Cause::GlobalSlowdown,
            Series::Data => Cause::SlowInput,
            Series::Checkpoint => Cause::SlowCheckpoint,
            _ => Cause::SlowLink,
        };
        let covering = self.layout.groups.iter().find(|group| group.ranks.len() == everyone.len());
        let component = match covering {
            Some(group) if cause == Cause::SlowLink => Component::Group(group.id.clone()),
            _ => Component::Job,
        };
        self.verdict(component, cause, everyone, run, vec![0])
    }

    /// A role or a stage is slower than the other ones: never a fault of a component.
    fn pool(&self, pool: usize, run: &Run) -> Explanation {
        let layout = self.layout;
        let Some(rank) = layout.pools.ranks(pool).first() else { return Explanation::None };
        let stage = layout.stages.of[*rank as usize];
        let limits = self.channel.limits(Level::Pool);
        let of_stage: BTreeSet<u32> =
            layout.stages.ranks(stage as usize).iter().map(|rank| layout.pools.of[*rank as usize]).collect();
        let others = of_stage.iter().filter(|other| **other as usize != pool);
        let (slow, of) = count(others.map(|other| self.channel.pools.is_suspicious(*other as usize, &limits)));
        if fraction(slow, of) >= MEMBERS && layout.stages.count() > 1 {
            let ranks = layout.stages.ranks(stage as usize).to_vec();
            let component = Component::Stage(layout.places[*rank as usize].stage);
            return self.verdict(component, Cause::SlowStage, ranks, run, of_stage.into_iter().collect());
        }
        if self.is_early(run) && slow > 0 {
            return Explanation::Later;
        }
        let ranks = layout.pools.ranks(pool).to_vec();
        self.verdict(Component::Job, Cause::UnevenLoad, ranks, run, one(pool))
    }

    fn replica(&self, replica: usize, run: &Run) -> Explanation {
        let layout = self.layout;
        let ranks = layout.replicas.ranks(replica);
        let hosts: BTreeSet<u32> = ranks.iter().map(|rank| layout.hosts.of[*rank as usize]).collect();
        let Some(host) = hosts.first().filter(|_| hosts.len() == 1 && layout.hosts.count() > 1) else {
            let component = Component::Replica(ranks.first().map_or(0, |rank| layout.places[*rank as usize].replica));
            return self.verdict(component, Cause::UnevenLoad, ranks.to_vec(), run, one(replica));
        };
        let here = layout.hosts.ranks(*host as usize);
        let units: BTreeSet<u32> = here.iter().map(|rank| layout.replicas.of[*rank as usize]).collect();
        let limits = self.channel.limits(Level::Replica);
        let others = units.iter().filter(|other| **other as usize != replica);
        let (slow, of) = count(others.map(|other| self.channel.replicas.is_suspicious(*other as usize, &limits)));
        if of == 0 || fraction(slow, of) >= MEMBERS {
            if !self.is_waited_for(run, run.shift()) {
                return Explanation::None;
            }
            let component = Component::Host(layout.places[here[0] as usize].host);
            return self.verdict(component, Cause::SlowHost, here.to_vec(), run, units.into_iter().collect());
        }
        if self.is_early(run) && slow > 0 {
            return Explanation::Later;
        }
        let component = Component::Replica(layout.places[ranks[0] as usize].replica);
        self.verdict(component, Cause::UnevenLoad, ranks.to_vec(), run, one(replica))
    }

    fn rank(&self, rank: usize, run: &Run) -> Explanation {
        match self.channel.series {
            Series::Compute => self.compute(rank, run),
            Series::Transfer => self.transfer(rank, run),
            Series::Send => self.send(rank, run),
            Series::Checkpoint => self.own(rank, run, Cause::SlowCheckpoint, Cause::SlowCheckpoint),
            _ => self.own(rank, run, Cause::SlowInput, Cause::SlowInput),
        }
    }

    fn compute(&self, rank: usize, run: &Run) -> Explanation {
        if self.have_peers_sped_up(rank, run.shift()) || !self.is_waited_for(run, run.shift()) {
            return Explanation::None;
        }
        let stage = self.layout.stages.ranks(self.layout.stages.of[rank] as usize);
        let (slow, of) = self.others(rank, stage);
        if self.layout.stages.count() > 1 && of > 0 && fraction(slow, of) >= MEMBERS {
            let component = Component::Stage(self.layout.places[rank].stage);
            return self.verdict(component, Cause::SlowStage, stage.to_vec(), run, self.suspicious(stage));
        }
        self.own(rank, run, Cause::SlowRank, Cause::SlowHost)
    }

    /// Names the rank, its host, or its group.
    fn own(&self, rank: usize, run: &Run, of_rank: Cause, of_host: Cause) -> Explanation {
        if !self.is_large(rank, run) {
            return Explanation::None;
        }
        let everyone: Vec<u32> = (0..).take(self.layout.len()).collect();
        let all = self.suspicious(&everyone);
        if fraction(all.len(), everyone.len()) > WIDE {
            let cause = if of_rank == Cause::SlowRank { Cause::UnevenLoad } else { of_rank };
            return self.verdict(Component::Job, cause, all.clone(), run, all);
        }
        // Without a waiting peer the job loses nothing. A slower computation was examined for this already.
        if of_rank != Cause::SlowRank && !self.is_waited_for(run, self.excess(rank, run)) {
            return Explanation::None;
        }
        let mut is_open = false;
        let host = self.layout.hosts.ranks(self.layout.hosts.of[rank] as usize);
        let (slow, of) = self.others(rank, host);
        if of > 0 && self.layout.hosts.count() > 1 {
            if fraction(slow, of) >= MEMBERS {
                let component = Component::Host(self.layout.places[rank].host);
                return self.verdict(component, of_host, host.to_vec(), run, self.suspicious(host));
            }
            is_open |= fraction(slow, of) >= MEMBERS_LATER;
        }
        let sync = [GroupKind::Tp, GroupKind::Cp];
        for group in self.groups(rank).filter(|(id, _)| sync.contains(&id.kind)) {
            let (slow, of) = self.others(rank, group.1);
            if fraction(slow, of) >= MEMBERS && of_rank == Cause::SlowRank {
                let component = Component::Group(group.0.clone());
                return self.verdict(component, Cause::UnevenLoad, group.1.to_vec(), run, self.suspicious(group.1));
            }
            is_open |= fraction(slow, of) >= MEMBERS_LATER;
        }
        if is_open && self.is_early(run) {
            return Explanation::Later;
        }
        self.verdict(Component::Rank(narrow(rank)), of_rank, vec![narrow(rank)], run, vec![narrow(rank)])
    }

    /// Names the group in which all members have longer transfers.
    fn transfer(&self, rank: usize, run: &Run) -> Explanation {
        if !self.is_large(rank, run) {
            return Explanation::None;
        }
        let slow = self.groups(rank).filter(|(_, ranks)| {
            let (slow, of) = self.others(rank, ranks);
            of > 0 && fraction(slow, of) >= MEMBERS
        });
        let Some((id, ranks)) = slow.max_by_key(|(_, ranks)| ranks.len()) else { return Explanation::None };
        if self.may_wait_for_a_slow_rank(ranks, run) {
            return Explanation::Later;
        }
        self.verdict(Component::Group(id.clone()), Cause::SlowLink, ranks.to_vec(), run, self.suspicious(ranks))
    }

    /// Names the connection of two neighbours in a pipeline.
    fn send(&self, rank: usize, run: &Run) -> Explanation {
        if !self.is_large(rank, run) {
            return Explanation::None;
        }
        let Some((_, chain)) = self.groups(rank).find(|(id, _)| id.kind == GroupKind::Pp) else {
            return Explanation::None;
        };
        let Some(at) = chain.iter().position(|other| *other as usize == rank) else { return Explanation::None };
        let (before, after) = (at.checked_sub(1).and_then(|at| chain.get(at)), chain.get(at + 1));
        let is_slow = |other: &&u32| self.channel.ranks.is_suspicious(**other as usize, &self.limits);
        let both = [after, before].into_iter().flatten().filter(is_slow).copied().next();
        // A neighbour with usual transfers is not at the slow link. Only one with unknown transfers may be.
        let is_unknown = |other: &&u32| !self.is_early(run) && !self.channel.level[**other as usize].is_finite();
        let alone = || [after, before].into_iter().flatten().find(is_unknown).copied();
        let Some(other) = both.or_else(alone) else { return Explanation::Later };
        let mut ranks = vec![narrow(rank), other];
        ranks.sort_unstable();
        if self.may_be_held_up(&ranks, run) {
            return Explanation::Later;
        }
        let component = Component::Link(ranks[0], ranks[1]);
        let units = self.suspicious(&ranks);
        self.verdict(component, Cause::SlowLink, ranks, run, units)
    }

    /// Returns true if longer transfers between two ranks may come from one of them: a rank that lacks its CPU also
    /// sends and receives late. Its computation takes longer then, which may be found a few steps later.
    fn may_be_held_up(&self, ranks: &[u32], run: &Run) -> bool {
        let limits = self.compute.limits(Level::Rank);
        let is_slow = |rank: &u32| self.compute.ranks.is_suspicious(*rank as usize, &limits);
        run.count < self.channel.tuning.count_min + HELD_UP_LATER_COUNT || ranks.iter().any(is_slow)
    }

    /// Returns true if longer transfers may come from a slow member: a rank that lacks its CPU also sends late.
    fn may_wait_for_a_slow_rank(&self, ranks: &[u32], run: &Run) -> bool {
        if self.channel.series != Series::Transfer || !self.compute.is_learned {
            return false;
        }
        let limits = self.compute.limits(Level::Rank);
        let is_undecided = run.count < self.channel.tuning.count_min + SLOW_RANK_LATER_COUNT;
        ranks.iter().map(|rank| *rank as usize).any(|rank| {
            let ranks = &self.compute.ranks;
            ranks.is_blamed(rank) || is_undecided && ranks.is_suspicious(rank, &limits)
        })
    }

    /// Returns true if longer waits may come from peers that all compute longer: where ranks wait for each other inside a
    /// step, also the shortest wait is as long as a part of the computation. Measured transfers have no such part.
    fn may_wait_for_slower_peers(&self, rank: usize, run: &Run) -> bool {
        let is_derived = || self.rows.iter().all(|row| !row[Series::Transfer as usize].is_finite());
        if self.channel.series != Series::Transfer || !self.layout.is_split() || !is_derived() {
            return false;
        }
        let (job, limits) = (self.compute.track(Level::Job), self.compute.limits(Level::Job));
        job.is_suspicious(0, &limits) && self.excess(rank, run) <= job.size(0).exp_m1()
    }

    fn groups(&self, rank: usize) -> impl Iterator<Item = (&GroupId, &[u32])> {
        let rank = narrow(rank);
        let groups = self.layout.groups.iter().map(|group| (&group.id, group.ranks.as_slice()));
        groups.filter(move |(_, ranks)| ranks.contains(&rank))
    }

    /// Returns the number of suspicious ranks among the other members, and the number of other members.
    fn others(&self, rank: usize, ranks: &[u32]) -> (usize, usize) {
        let others = ranks.iter().filter(|other| **other as usize != rank);
        count(others.map(|other| self.is_suspicious(*other)))
    }

    fn suspicious(&self, ranks: &[u32]) -> Vec<u32> {
        ranks.iter().filter(|rank| self.is_suspicious(**rank)).copied().collect()
    }

    /// Returns true if the rank is slower than its peers, and than its own past.
    fn is_suspicious(&self, rank: u32) -> bool {
        let (rank, ranks) = (rank as usize, &self.channel.ranks);
        ranks.is_suspicious(rank, &self.limits) && !self.have_peers_sped_up(rank, ranks.shift(rank))
    }

    /// Returns true if peers that became faster explain the shift of a rank's computation. Ranks that wait longer for a
    /// slow one seem to compute less, where their computation overlaps a collective that is pending for longer.
    fn have_peers_sped_up(&self, rank: usize, shift: f32) -> bool {
        self.channel.series == Series::Compute && self.channel.peers_now(rank, self.layout) < -PEERS_FASTER * shift
    }

    /// Returns true if the run is so short that further ranks may follow.
    fn is_early(&self, run: &Run) -> bool {
        run.count < self.channel.tuning.count_min + LATER_COUNT
    }

    /// Returns the excess as a fraction of the usual computation.
    fn excess(&self, rank: usize, run: &Run) -> f32 {
        let of = |values: &[f32]| values.get(rank).copied().unwrap_or(f32::NAN);
        let is_log = self.channel.tuning.is_log;
        if is_log { run.size().exp_m1() * of(&self.channel.level).exp() / of(self.scale) } else { run.shift() }
    }

    /// Returns the time that the slow-down has cost the job since its onset: that of one rank, for which the others wait.
    #[allow(clippy::cast_precision_loss, reason = "a count of steps, of which only the first digits matter")]
    fn lost_ms(&self, level: Level, unit: usize, run: &Run) -> f32 {
        let rank = match level {
            Level::Job => self.channel.level.iter().position(|level| level.is_finite()),
            Level::Pool => self.layout.pools.ranks(unit).first().map(|rank| *rank as usize),
            Level::Replica => self.layout.replicas.ranks(unit).first().map(|rank| *rank as usize),
            Level::Rank => Some(unit),
        };
        let scale = rank.and_then(|rank| self.scale.get(rank)).copied().unwrap_or(f32::NAN);
        run.count as f32 * self.excess(rank.unwrap_or_default(), run) * scale
    }

    /// Returns true if the excess matters beside the computation of a step.
    fn is_large(&self, rank: usize, run: &Run) -> bool {
        let tuning = &self.channel.tuning;
        !tuning.is_log || self.excess(rank, run) >= tuning.share_min
    }

    /// Returns true if the peers wait longer than the unit, by a part of its excess.
    fn is_waited_for(&self, run: &Run, excess: f32) -> bool {
        !self.has_waits || run.wait() >= WAITED_FOR * excess
    }
}

fn count(suspicious: impl Iterator<Item = bool>) -> (usize, usize) {
    suspicious.fold((0, 0), |(slow, of), is_slow| (slow + usize::from(is_slow), of + 1))
}

#[allow(clippy::cast_precision_loss, reason = "a count of ranks, of which only the first digits matter")]
fn fraction(part: usize, of: usize) -> f32 {
    part as f32 / of.max(1) as f32
}

fn narrow(rank: usize) -> u32 {
    u32::try_from(rank).unwrap_or(u32::MAX)
}

fn one(unit: usize) -> Vec<u32> {
    vec![narrow(unit)]
}
