//! A training job as calls of collectives in process groups, in steps of ten milliseconds.
//!
//! It knows no detector.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use taskd_core::trace::{Call, GroupPosition, RECENT_CALLS, point_to_point_name};

pub(crate) const TICK: Duration = Duration::from_millis(10);
const TICK_MS: u64 = 10;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The rank's process is stopped.
    Stop,
    /// The rank leaves out one call.
    Skip,
    /// The rank calls with another size, or something else.
    Mismatch,
    /// The rank is at work on something else, and does not come back for long.
    Away,
}

/// One call in a rank's program, or the wait for one.
#[derive(Clone, Debug, PartialEq)]
struct Op {
    group: usize,
    operation: &'static str,
    elements: u64,
    until: Until,
}

/// How long a rank waits at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// Until the operation is over.
    Over,
    /// Until this operation and the others of its bucket are over, at the last of them.
    BucketOver,
    /// The rank continues while the operation is under way.
    Posted,
    /// This is no call: the rank waits for the oldest posted one of the group.
    PostedOver,
}

struct Rank {
    step: u64,
    /// The next call of its step.
    at: usize,
    busy_until_ms: u64,
    /// By group: its calls.
    calls: BTreeMap<usize, Vec<Made>>,
    /// The calls that it waits for before it continues.
    awaits: Vec<(usize, usize)>,
    /// By group: the number of posted calls that it has waited for.
    waited: BTreeMap<usize, usize>,
}

struct Made {
    op: Op,
    begun_ms: u64,
    over_ms: Option<u64>,
    was_reported: bool,
}

/// Stages of replicas: rank = stage * replicas + replica.
#[derive(Clone, Copy, Debug)]
struct Pipeline {
    stages: u32,
    replicas: u32,
    micro_batches: u32,
    /// True if receives are posted at the begin of the step.
    posts_receives: bool,
}

pub(crate) struct Job {
    rng: StdRng,
    pub(crate) now_ms: u64,
    pub(crate) ranks: u32,
    names: Vec<String>,
    members: Vec<Vec<u32>>,
    pipeline: Option<Pipeline>,
    all: Vec<Rank>,
    /// How long a collective takes when all are in it.
    pub(crate) takes_ms: u64,
    compute_ms: u64,
    trouble: Option<(u32, Trouble, u64)>,
    /// When the trouble began.
    pub(crate) began_ms: Option<u64>,
    frozen: BTreeSet<u32>,
}

impl Job {
    /// All in one group, or rows and columns of at least three ranks.
    pub(crate) fn new(seed: u64) -> Job {
        let mut rng = StdRng::seed_from_u64(seed);
        let is_grid = rng.random_bool(0.5);
        let (rows, columns) = (rng.random_range(3..=4), rng.random_range(3..=4));
        let ranks = if is_grid { rows * columns } else { rng.random_range(3..=16) };
        let mut names = vec!["default".to_owned()];
        let mut members = vec![(0..ranks).collect::<Vec<u32>>()];
        if is_grid {
            for row in 0..rows {
                names.push(format!("tp_{row}"));
                members.push((row * columns..(row + 1) * columns).collect());
            }
            for column in 0..columns {
                names.push(format!("dp_{column}"));
                members.push((column..ranks).step_by(columns as usize).collect());
            }
        }
        Job::of(rng, ranks, names, members, None)
    }

    /// Two to four stages of two or three replicas, which send and receive micro-batches, all forward and then all
    /// backward. Half of the jobs post their receives before they compute.
    pub(crate) fn pipeline(seed: u64) -> Job {
        let mut rng = StdRng::seed_from_u64(seed);
        let (stages, replicas) = (rng.random_range(2..=4), rng.random_range(2..=3));
        let (micro_batches, posts_receives) = (rng.random_range(1..=3), rng.random_bool(0.5));
        let ranks = stages * replicas;
        let (mut names, mut members) = (vec!["default".to_owned()], vec![(0..ranks).collect::<Vec<u32>>()]);
        for stage in 0..stages {
            names.push(format!("dp_{stage}"));
            members.push((stage * replicas..(stage + 1) * replicas).collect());
        }
        for first in 0..ranks - replicas {
            for (from, to) in [(first, first + replicas), (first + replicas, first)] {
                names.push(point_to_point_name("default", from, to));
                members.push(vec![from, to]);
            }
        }
        Job::of(rng, ranks, names, members, Some(Pipeline { stages, replicas, micro_batches, posts_receives }))
    }

    fn of(mut rng: StdRng, ranks: u32, names: Vec<String>, members: Vec<Vec<u32>>, pipeline: Option<Pipeline>) -> Job {
        let (calls, awaits, waited) = (BTreeMap::new, Vec::new, BTreeMap::new);
        let rank = |_| Rank { step: 0, at: 0, busy_until_ms: 0, calls: calls(), awaits: awaits(), waited: waited() };
        let all = (0..ranks).map(rank).collect();
        let compute_ms = rng.random_range(20..60);
        let (takes_ms, trouble, began_ms, frozen) = (10, None, None, BTreeSet::new());
        Job { rng, now_ms: 0, ranks, names, members, pipeline, all, takes_ms, compute_ms, trouble, began_ms, frozen }
    }

    pub(crate) fn dice(&mut self) -> &mut StdRng {
        &mut self.rng
    }

    /// From that step on something goes wrong.
    pub(crate) fn inject(&mut self, rank: u32, trouble: Trouble, step: u64) {
        self.trouble = Some((rank, trouble, step));
    }

    pub(crate) fn is_frozen(&self, rank: u32) -> bool {
        self.frozen.contains(&rank)
    }

    pub(crate) fn step_of(&self, rank: u32) -> u64 {
        self.all[rank as usize].step
    }

    /// What a rank of a pipeline calls in each step.
    fn stage_program(&self, rank: u32, pipeline: Pipeline) -> Vec<Op> {
        let Pipeline { stages, replicas, micro_batches, posts_receives } = pipeline;
        let stage = rank / replicas;
        let next = (stage + 1 < stages).then_some(rank + replicas);
        let previous = (stage > 0).then(|| rank - replicas);
        let exchange = |from: u32, to: u32, until| {
            let group = self.members.iter().skip(1 + stages as usize).position(|pair| *pair == [from, to]);
            let group = group.expect("neighbours exchange data") + 1 + stages as usize;
            Op { group, operation: "send and receive", elements: 0, until }
        };
        let mut ops = Vec::new();
        for (source, target) in [(previous, next), (next, previous)] {
            let receive = |until| source.map(|source| exchange(source, rank, until));
            if posts_receives {
                ops.extend((0..micro_batches).filter_map(|_| receive(Until::Posted)));
            }
            for _ in 0..micro_batches {
                ops.extend(receive(if posts_receives { Until::PostedOver } else { Until::Over }));
                ops.extend(target.map(|target| exchange(rank, target, Until::Over)));
            }
        }
        let gradients = 1 + stage as usize;
        ops.push(Op { group: gradients, operation: "allreduce", elements: 50_000, until: Until::Over });
        ops.push(Op { group: 0, operation: "allreduce", elements: 1, until: Until::Over });
        ops
    }

    /// What a rank calls in each step.
    fn program(&self, rank: u32) -> Vec<Op> {
        if let Some(pipeline) = self.pipeline {
            return self.stage_program(rank, pipeline);
        }
        let op = |group, operation, elements, is_async| {
            let until = if is_async { Until::BucketOver } else { Until::Over };
            Op { group, operation, elements, until }
        };
        let mut ops = Vec::new();
        for group in 1..self.names.len() {
            if self.members[group].contains(&rank) && self.names[group].starts_with("tp") {
                ops.extend((1..4).map(|layer| op(group, "allreduce", 1000 + layer, false)));
            }
        }
        let data_parallel =
            (1..self.names.len()).find(|g| self.names[*g].starts_with("dp") && self.members[*g].contains(&rank));
        ops.extend((1..4).map(|bucket| op(data_parallel.unwrap_or(0), "allreduce", 50_000 * bucket, true)));
        ops.push(op(0, "allreduce", 1, false));
        ops.push(op(0, "barrier", 0, false));
        ops
    }

    pub(crate) fn tick(&mut self) {
        self.now_ms += TICK_MS;
        for rank in 0..self.ranks {
            if !self.frozen.contains(&rank) {
                self.advance(rank);
            }
        }
        self.complete();
    }

    /// Advances a rank if it can continue.
    fn advance(&mut self, rank: u32) {
        let state = &self.all[rank as usize];
        let is_over = |(group, at): &(usize, usize)| {
            let call = state.calls.get(group).and_then(|calls| calls.get(*at)); // none: its post was left out
            call.is_some_and(|call| call.over_ms.is_some_and(|over| over <= self.now_ms))
        };
        if state.busy_until_ms > self.now_ms || !state.awaits.iter().all(is_over) {
            return;
        }
        let program = self.program(rank);
        let Some(mut op) = program.get(state.at).cloned() else {
            let busy = self.compute_ms + self.rng.random_range(0..20);
            let state = &mut self.all[rank as usize];
            (state.step, state.at, state.busy_until_ms) = (state.step + 1, 0, self.now_ms + busy);
            return;
        };
        let (step, at) = (state.step, state.at);
        if let Some((_, trouble, _)) = self.trouble.filter(|(victim, _, from)| (*victim, *from) == (rank, step)) {
            let chosen = (step * 7 + u64::from(rank)) % program.len() as u64;
            // A program that posts no receive cannot wait for it.
            let is_possible = trouble != Trouble::Skip || matches!(op.until, Until::Over | Until::BucketOver);
            if at as u64 >= chosen && self.began_ms.is_none() && is_possible {
                self.began_ms = Some(self.now_ms);
                match trouble {
                    Trouble::Stop => {
                        self.frozen.insert(rank);
                        return;
                    }
                    Trouble::Away => {
                        self.all[rank as usize].busy_until_ms = self.now_ms + 60_000;
                        return;
                    }
                    Trouble::Skip => {
                        self.all[rank as usize].at += 1;
                        return;
                    }
                    Trouble::Mismatch if op.operation == "barrier" => op.operation = "broadcast",
                    Trouble::Mismatch => op.elements = op.elements * 2 + 1,
                }
            }
        }
        let is_last = program.get(at + 1).is_none_or(|next| next.until != Until::BucketOver);
        let state = &mut self.all[rank as usize];
        (state.at, state.busy_until_ms) = (state.at + 1, self.now_ms + TICK_MS);
        let (group, until) = (op.group, op.until);
        if until == Until::PostedOver {
            let waited = state.waited.entry(group).or_default();
            state.awaits = vec![(group, *waited)];
            *waited += 1;
            return;
        }
        let calls = state.calls.entry(group).or_default();
        calls.push(Made { op, begun_ms: self.now_ms, over_ms: None, was_reported: false });
        let awaited = match until {
            Until::Over => 1,
            Until::BucketOver if is_last => 3,
            _ => 0,
        };
        state.awaits = (calls.len().saturating_sub(awaited)..calls.len()).map(|at| (group, at)).collect();
    }

    /// A collective is over when all members have called the same.
    fn complete(&mut self) {
        for (group, members) in self.members.clone().into_iter().enumerate() {
            let calls = |rank: &u32| self.all[*rank as usize].calls.get(&group).map_or(0, Vec::len);
            let all_called = members.iter().map(calls).min().unwrap_or_default();
            for at in (0..all_called).rev() {
                let call = |rank: &u32| &self.all[*rank as usize].calls[&group][at];
                if call(&members[0]).over_ms.is_some() {
                    break;
                }
                let first = call(&members[0]).op.clone();
                // One side of an exchange may post its receive.
                let is_same = |op: &Op| (op.operation, op.elements) == (first.operation, first.elements);
                if members.iter().all(|rank| is_same(&call(rank).op)) {
                    let over = self.now_ms + self.takes_ms;
                    for rank in &members {
                        if let Some(calls) = self.all[*rank as usize].calls.get_mut(&group) {
                            calls[at].over_ms = Some(over);
                        }
                    }
                }
            }
        }
    }

    /// Calls that have been under way for a second, each once: rank, group, number.
    pub(crate) fn pending(&mut self) -> Vec<(u32, String, u64)> {
        let mut reported = Vec::new();
        for (rank, state) in (0..).zip(&mut self.all) {
            for (group, calls) in &mut state.calls {
                let oldest = calls.len().saturating_sub(RECENT_CALLS);
                for (at, made) in calls.iter_mut().enumerate().skip(oldest) {
                    let is_pending = made.over_ms.is_none_or(|over| over > self.now_ms);
                    if is_pending && !made.was_reported && self.now_ms - made.begun_ms >= 1_000 {
                        made.was_reported = true;
                        reported.push((rank, self.names[*group].clone(), at as u64));
                    }
                }
            }
        }
        reported
    }

    /// Where a rank stands.
    pub(crate) fn positions(&self, rank: u32) -> Vec<GroupPosition> {
        let call = |(at, made): (usize, &Made)| Call {
            sequence: at as u64,
            operation: made.op.operation.into(),
            elements: made.op.elements,
            data_type: "f32".into(),
            begun: Duration::from_millis(self.now_ms - made.begun_ms),
            is_pending: made.over_ms.is_none_or(|over| over > self.now_ms),
        };
        let position = |(group, calls): (&usize, &Vec<Made>)| {
            let evicted = calls.len().saturating_sub(RECENT_CALLS);
            let recent = calls.iter().enumerate().skip(evicted).map(call).collect();
            GroupPosition { group: self.names[*group].clone(), members: self.members[*group].clone(), recent }
        };
        self.all[rank as usize].calls.iter().map(position).collect()
    }
}
