//! State of one simulated rank, and the trace that it records.

use super::Job;
use super::program::Act;
use crate::model::{Communication, Event, Group, Kind, NameId, RankTrace, StepSpan};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;

/// Lane of the host's thread.
pub(super) const HOST_LANE: u32 = 0;

/// One rank during the simulation.
#[derive(Debug)]
pub(super) struct RankState {
    pub(super) random: StdRng,
    pub(super) groups: Vec<Group>,
    pub(super) acts: Vec<Act>,
    pub(super) next: usize,
    pub(super) step: u64,
    pub(super) step_began: i64,
    pub(super) clock: i64,
    pub(super) open: Vec<(Kind, &'static str, i64)>,
    /// Number of sends and collectives that have begun and not ended.
    pub(super) outstanding: u32,
    /// Time at which the last of them ended.
    pub(super) drained: i64,
    /// Sequence numbers by group.
    pub(super) sequences: Vec<u64>,
    /// Ends of the last operations by lane.
    pub(super) lanes: BTreeMap<u32, i64>,
    pub(super) is_draining: bool,
    pub(super) trace: RankTrace,
}

impl RankState {
    pub(super) fn new(job: &Job, seed: u64, rank: u32) -> RankState {
        let groups = job.groups_of(rank);
        let mut trace = RankTrace {
            host: Some(format!("node-{}", rank / job.ranks_per_host)),
            device: Some(rank % job.ranks_per_host),
            stage: Some(job.stage_of(rank)),
            groups: groups.clone(),
            ..RankTrace::default()
        };
        let flop = f64::from(job.kernels * job.micro_batches * 3) * 1e12;
        trace.resources.flop_per_step = Some(flop);
        trace.resources.peak_memory_bytes = Some((40 << 30) + (u64::from(job.stage_of(rank)) << 30));
        trace.resources.memory_capacity_bytes = Some(64 << 30);
        RankState {
            random: StdRng::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(rank)),
            sequences: vec![0; groups.len()],
            groups,
            acts: Vec::new(),
            next: 0,
            step: 0,
            step_began: 0,
            clock: 0,
            open: Vec::new(),
            outstanding: 0,
            drained: 0,
            lanes: BTreeMap::new(),
            is_draining: false,
            trace,
        }
    }

    pub(super) fn free(&self, lane_of: impl Fn(&RankState) -> (usize, u32)) -> i64 {
        self.lanes.get(&lane_of(self).1).copied().unwrap_or(i64::MIN)
    }

    pub(super) fn record(&mut self, kind: Kind, name: &str, lane: u32, (began, ended): (i64, i64)) {
        let name = self.trace.names.intern(name);
        self.push(kind, name, lane, (began, ended), None);
    }

    fn push(&mut self, kind: Kind, name: NameId, lane: u32, (start_ns, end): (i64, i64), communication: Option<u32>) {
        let duration_ns = start_ns.abs_diff(end);
        self.trace.events.push(Event { start_ns, duration_ns, kind, lane, name, communication });
    }

    pub(super) fn record_communication(
        &mut self,
        kind: Kind,
        name: &str,
        lane: u32,
        span: (i64, i64),
        details: Communication,
    ) {
        let name = self.trace.names.intern(name);
        let number = u32::try_from(self.trace.communications.len()).ok();
        self.trace.communications.push(details);
        self.push(kind, name, lane, span, number);
        self.lanes.insert(lane, span.1);
    }

    /// An operation has ended: a blocking one sets the rank's clock, another one counts for the next drain.
    pub(super) fn done(&mut self, end: i64, is_blocking: bool) {
        if is_blocking {
            self.clock = end;
        } else {
            self.outstanding = self.outstanding.saturating_sub(1);
            self.drained = self.drained.max(end);
        }
    }

    /// Returns true if the rank waited for its last operation in a drain, and lets it continue.
    pub(super) fn is_woken(&mut self) -> bool {
        let woken = self.is_draining && self.outstanding == 0;
        if woken {
            self.is_draining = false;
            self.clock = self.clock.max(self.drained);
        }
        woken
    }

    pub(super) fn end_step(&mut self) {
        let duration_ns = self.step_began.abs_diff(self.clock);
        self.trace.steps.push(StepSpan { number: self.step, start_ns: self.step_began, duration_ns });
        let used = 20 + self.random.random_range(0..20);
        let middle = self.step_began + (self.clock - self.step_began) / 2;
        self.trace.resources.memory.extend([(self.step_began, 18 << 30), (middle, used << 30)]);
        let flop = f64::from(20 + self.random.random_range(0..20_u32)) * 1e10;
        self.trace.resources.flop.extend([(self.step_began, 0.0), (middle, flop)]);
    }

    /// Sets the rank's clock forward by its offset and orders the events.
    pub(super) fn finish(mut self, offset: i64) -> RankTrace {
        for event in &mut self.trace.events {
            event.start_ns += offset;
        }
        for step in &mut self.trace.steps {
            step.start_ns += offset;
        }
        self.trace.resources.shift(offset);
        self.trace.events.sort_by_key(|event| event.start_ns);
        let busy: u64 = self.trace.steps.iter().map(|step| step.duration_ns).sum();
        let resources = &mut self.trace.resources;
        let steps = self.trace.steps.len();
        #[allow(clippy::cast_precision_loss, reason = "a figure for a report")]
        let rate = resources.flop_per_step.map(|flop| (flop * steps as f64 / (busy.max(1) as f64 / 1e9)).round());
        resources.flop_per_second = rate;
        self.trace
    }
}
