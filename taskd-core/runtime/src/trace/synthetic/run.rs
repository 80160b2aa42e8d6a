//! Simulation of a job: every rank executes its actions, and waits for the others where necessary.
//!
//! Injections are not visible here, only their effects: a collective ends once all members have made matching calls.

use super::SyntheticJob;
use super::program::{Act, WORLD};
use crate::job::{Incarnation, Rank};
use crate::trace::recorder::{Communication, DataType, Detail, Event, Kind, NameId, Op};
use crate::trace::{NameTable, Origin, RecordBatch, TimedRecord};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Start of the simulation, in nanoseconds since 1970.
const BEGIN: u64 = 1_700_000_000_000_000_000;
/// The training thread, and the thread on which communications end.
const MAIN: u32 = 1;
const WATCHER: u32 = 2;
const ALL_REDUCE: NameId = NameId(1);
const SEND: NameId = NameId(2);
const RECEIVE: NameId = NameId(3);
/// The name of group 0; those of the other groups follow.
const FIRST_GROUP: u32 = 4;

/// Iterator over the trace records of a [`SyntheticJob`]: one batch per rank and step, in the order in which the
/// ranks ended their steps. If ranks hang, their last batches contain the records up to the hang, and the iterator
/// ends.
///
/// Every batch is complete: a reducer that has received it can [settle](crate::trace::reduce::Observer::settle) all
/// records of the batch's process, with `u64::MAX` as the time.
#[derive(Debug)]
pub struct SyntheticRun {
    job: SyntheticJob,
    names: Arc<NameTable>,
    ranks: Vec<RankState>,
    /// Collectives that some members have not called yet, or whose end some members have not seen, by group and number.
    calls: BTreeMap<(u32, u64), Meeting>,
    /// Messages in transit, by sender and receiver: the times at which they can be received.
    messages: BTreeMap<(u32, u32), VecDeque<u64>>,
    /// End of the last collective per group.
    ended: BTreeMap<u32, u64>,
    /// Number of steps that all ranks have begun.
    step: u64,
    hangs: bool,
    ready: VecDeque<RecordBatch>,
}

#[derive(Debug)]
struct RankState {
    now: u64,
    /// CPU time since the step began.
    on_cpu: u64,
    /// The step that the rank is in; `None` between steps.
    step: Option<u64>,
    step_range: u64,
    acts: VecDeque<Act>,
    sequences: BTreeMap<u32, u64>,
    pending: Vec<(u32, u64, u64)>,
    ranges: u64,
    records: Vec<TimedRecord>,
    is_frozen: bool,
}

/// State of one collective.
#[derive(Debug, Default)]
struct Meeting {
    called: u32,
    /// Number of elements in the first call; `None` once a member has called with another number.
    elements: Option<u64>,
    last_at: u64,
    over_at: Option<u64>,
    seen_over: u32,
}

impl SyntheticRun {
    pub(super) fn new(job: SyntheticJob) -> SyntheticRun {
        let state = || RankState {
            now: BEGIN,
            on_cpu: 0,
            step: None,
            step_range: 0,
            acts: VecDeque::new(),
            sequences: BTreeMap::new(),
            pending: Vec::new(),
            ranges: 0,
            records: Vec::new(),
            is_frozen: false,
        };
        SyntheticRun {
            names: Arc::new(names(&job)),
            ranks: (0..job.ranks).map(|_| state()).collect(),
            job,
            calls: BTreeMap::new(),
            messages: BTreeMap::new(),
            ended: BTreeMap::new(),
            step: 0,
            hangs: false,
            ready: VecDeque::new(),
        }
    }

    /// Returns the start of the simulation, in nanoseconds since 1970.
    #[must_use]
    pub const fn began(&self) -> u64 {
        BEGIN
    }

    /// Runs all ranks through the next step, until they have ended it or wait.
    fn advance(&mut self) {
        self.step += 1;
        for rank in 0..self.job.ranks {
            self.begin_step(rank);
        }
        self.settle();
        self.hangs = self.ranks.iter().any(|state| state.step.is_some());
        if self.hangs {
            // Ranks that ended the step continue until they wait as well.
            for rank in 0..self.job.ranks {
                if self.rank(rank).is_some_and(|state| state.step.is_none()) {
                    self.begin_step(rank);
                }
            }
            self.settle();
        }
        let mut order: Vec<u32> = (0..self.job.ranks).collect();
        order.sort_by_key(|rank| self.ranks[*rank as usize].now);
        let batches: Vec<RecordBatch> = order.into_iter().filter_map(|rank| self.batch(rank)).collect();
        self.ready.extend(batches);
    }

    /// Runs all ranks until none can continue.
    fn settle(&mut self) {
        loop {
            let moved = (0..self.job.ranks).filter(|rank| self.go_on(*rank)).count();
            if moved == 0 {
                return;
            }
        }
    }

    fn begin_step(&mut self, rank: u32) {
        let step = self.step + u64::from(self.hangs);
        let acts = self.job.acts(rank, step);
        let Some(state) = self.rank(rank).filter(|state| !state.is_frozen) else { return };
        (state.step, state.acts, state.on_cpu) = (Some(step), acts, 0);
        state.step_range = state.begin(Kind::Step, NameId(0), Detail::Step { number: step, cpu_nanos: 0 });
    }

    /// Runs a rank until it waits. Returns false if it could not do anything.
    fn go_on(&mut self, rank: u32) -> bool {
        let mut has_moved = false;
        while let Some(act) = self.rank(rank).and_then(|state| state.acts.front().copied()) {
            if !self.act(rank, act) {
                return has_moved;
            }
            has_moved = true;
            let Some(state) = self.rank(rank) else { return true };
            state.acts.pop_front();
            if state.acts.is_empty() && !state.is_frozen {
                state.end_step();
            }
        }
        has_moved
    }

    /// Executes one action. Returns false if the rank has to wait.
    fn act(&mut self, rank: u32, act: Act) -> bool {
        match act {
            Act::Work { kind, nanos, on_cpu } => self.rank(rank).is_some_and(|state| state.work(kind, nanos, on_cpu)),
            Act::Call { group, elements } => self.call(rank, group, elements),
            Act::Wait => self.wait(rank),
            Act::Send { to } => self.send(rank, to),
            Act::Receive { from } => self.receive(rank, from),
            Act::Freeze => {
                self.see_ends(rank);
                self.rank(rank).is_some_and(RankState::freeze)
            }
        }
    }

    fn call(&mut self, rank: u32, group: u32, elements: u64) -> bool {
        let members = if group == WORLD { self.job.ranks } else { self.job.width() };
        let took = self.job.communication_ns(self.step);
        let Some(state) = self.ranks.get_mut(rank as usize) else { return false };
        let next = state.sequences.entry(group).or_default();
        let sequence = *next;
        *next += 1;
        let bytes = elements * 4;
        let what = communication(Op::AllReduce, group, elements, bytes, None, Some(sequence));
        let range = state.begin(Kind::Communication, ALL_REDUCE, what);
        state.pending.push((group, sequence, range));
        let now = state.now;
        let meeting = self.calls.entry((group, sequence)).or_default();
        meeting.elements = match meeting.called {
            0 => Some(elements),
            _ => meeting.elements.filter(|first| *first == elements),
        };
        meeting.called += 1;
        meeting.last_at = meeting.last_at.max(now);
        if meeting.called == members && meeting.elements.is_some() {
            let ended = self.ended.entry(group).or_default();
            *ended = meeting.last_at.max(*ended) + took;
            meeting.over_at = Some(*ended);
        }
        true
    }

    fn wait(&mut self, rank: u32) -> bool {
        let last = self.see_ends(rank);
        let Some(state) = self.rank(rank).filter(|state| state.pending.is_empty()) else { return false };
        state.now = state.now.max(last);
        true
    }

    /// Records the known ends of a rank's collectives, and returns the time of the last one.
    fn see_ends(&mut self, rank: u32) -> u64 {
        let Some(state) = self.ranks.get_mut(rank as usize) else { return 0 };
        let mut last = 0;
        let calls = &mut self.calls;
        let members = |group| if group == WORLD { self.job.ranks } else { self.job.width() };
        state.pending.retain(|(group, sequence, range)| {
            let Some(meeting) = calls.get_mut(&(*group, *sequence)) else { return true };
            let Some(over_at) = meeting.over_at else { return true };
            meeting.seen_over += 1;
            if meeting.seen_over == members(*group) {
                calls.remove(&(*group, *sequence));
            }
            last = last.max(over_at);
            state.records.push(ended(over_at, WATCHER, Kind::Communication, *range, Detail::None));
            false
        });
        last
    }

    fn send(&mut self, rank: u32, to: u32) -> bool {
        let took = self.job.communication_ns(self.step);
        let Some(state) = self.rank(rank) else { return false };
        state.transfer(SEND, Op::Send, to, state.now + took / 10);
        let arrives = state.now + took;
        self.messages.entry((rank, to)).or_default().push_back(arrives);
        true
    }

    fn receive(&mut self, rank: u32, from: u32) -> bool {
        let Some(arrives) = self.messages.get_mut(&(from, rank)).and_then(VecDeque::pop_front) else { return false };
        self.rank(rank).is_some_and(|state| {
            state.transfer(RECEIVE, Op::Recv, from, arrives.max(state.now));
            true
        })
    }

    fn batch(&mut self, rank: u32) -> Option<RecordBatch> {
        let names = Arc::clone(&self.names);
        self.see_ends(rank);
        let state = self.rank(rank)?;
        let mut records = std::mem::take(&mut state.records);
        records.sort_by_key(|record| record.unix_nanos);
        let origin = Origin { rank: Rank(rank), incarnation: Incarnation(1), pid: 1000 + rank };
        (!records.is_empty()).then_some(RecordBatch { origin, names, lost: 0, records })
    }

    fn rank(&mut self, rank: u32) -> Option<&mut RankState> {
        self.ranks.get_mut(rank as usize)
    }
}

impl Iterator for SyntheticRun {
    type Item = RecordBatch;

    fn next(&mut self) -> Option<RecordBatch> {
        while self.ready.is_empty() && !self.hangs && self.step < self.job.steps {
            self.advance();
        }
        self.ready.pop_front()
    }
}

impl RankState {
    fn begin(&mut self, kind: Kind, name: NameId, detail: Detail) -> u64 {
        self.ranges += 1;
        let (unix_nanos, range) = (self.now, u64::from(kind.number()) << 58 | self.ranges);
        let event = Event::Begin { range };
        self.records.push(TimedRecord { unix_nanos, thread: MAIN, kind, event, name, detail });
        range
    }

    fn end_step(&mut self) {
        let Some(number) = self.step.take() else { return };
        let detail = Detail::Step { number, cpu_nanos: self.on_cpu };
        self.records.push(ended(self.now, MAIN, Kind::Step, self.step_range, detail));
    }

    fn work(&mut self, kind: Option<Kind>, nanos: u64, on_cpu: u64) -> bool {
        let range = kind.map(|kind| (kind, self.begin(kind, NameId(0), Detail::None)));
        self.now += nanos;
        self.on_cpu += on_cpu;
        if let Some((kind, range)) = range {
            self.records.push(ended(self.now, MAIN, kind, range, Detail::None));
        }
        true
    }

    /// Sends or receives until a moment.
    fn transfer(&mut self, name: NameId, op: Op, peer: u32, until: u64) {
        let range = self.begin(Kind::Communication, name, communication(op, WORLD, 1 << 16, 1 << 18, Some(peer), None));
        self.now = until;
        self.records.push(ended(until, MAIN, Kind::Communication, range, Detail::None));
    }

    /// Stops the rank: nothing is recorded from now on.
    fn freeze(&mut self) -> bool {
        let now = self.now;
        self.records.retain(|record| record.unix_nanos <= now);
        self.pending.clear();
        self.is_frozen = true;
        true
    }
}

fn ended(unix_nanos: u64, thread: u32, kind: Kind, range: u64, detail: Detail) -> TimedRecord {
    TimedRecord { unix_nanos, thread, kind, event: Event::End { range }, name: NameId(0), detail }
}

fn communication(op: Op, group: u32, elements: u64, bytes: u64, peer: Option<u32>, sequence: Option<u64>) -> Detail {
    let (group, data_type) = (NameId(FIRST_GROUP + group), DataType::F32);
    Detail::Communication(Communication { op, data_type, group, elements, bytes, peer, sequence })
}

/// Returns the table of names: operations, and groups with their members.
fn names(job: &SyntheticJob) -> NameTable {
    let mut names: NameTable = ["allreduce", "send", "recv"].into_iter().collect();
    names.push(&format!("default|0-{}", job.ranks - 1));
    for stage in 0..job.stages {
        let first = stage * job.width();
        names.push(&format!("dp_{stage}|{first}-{}", first + job.width() - 1));
    }
    names
}
