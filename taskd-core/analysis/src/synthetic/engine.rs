//! Runs the programs of all ranks against each other: a receive waits for its send, a collective for its last member.

use super::program::{self, ACTIVATION_BYTES, Act, scaled};
use super::rank::{HOST_LANE, RankState};
use super::{Fault, Job};
use crate::model::{Communication, GroupRole, Kind, LinkKind, LinkTransfer, Trace};
use rand::RngExt;
use std::collections::BTreeMap;

/// Lane of the device's kernels.
const DEVICE_LANE: u32 = 7;
/// Lane of the first group's collectives; each group has one.
const GROUP_LANE: u32 = 20;
/// Lane of the first direction of sends and receives; each direction has one.
const CHANNEL_LANE: u32 = 30;
/// Bandwidth between two devices of a host, in bytes per microsecond.
const HOST_BYTES_PER_US: u64 = 200_000;
/// Bandwidth between two hosts, in bytes per microsecond.
const NETWORK_BYTES_PER_US: u64 = 25_000;
/// Time of a transfer without its bytes, in nanoseconds.
const LATENCY_NS: u64 = 20_000;
/// Calendar time of the trace's time zero, in nanoseconds since 1970.
const BEGAN_UNIX_NS: i64 = 1_790_000_000_000_000_000;

/// A call that waits for the other side: the time of the call, and the step.
#[derive(Clone, Copy, Debug)]
struct Call {
    rank: u32,
    at: i64,
    is_blocking: bool,
}

/// The simulation of one job.
pub(super) struct Engine<'a> {
    job: &'a Job,
    seed: u64,
    ranks: Vec<RankState>,
    /// Members that have called a collective, by group and sequence.
    calls: BTreeMap<(String, u64), Vec<Call>>,
    /// Sends without their receive, by sender and receiver.
    sends: BTreeMap<(u32, u32), Vec<i64>>,
    /// Receives without their send.
    receives: BTreeMap<(u32, u32), i64>,
    /// Number of completed transfers by sender and receiver.
    transfers: BTreeMap<(u32, u32), u64>,
    ready: Vec<u32>,
}

impl<'a> Engine<'a> {
    pub(super) fn new(job: &'a Job, seed: u64) -> Engine<'a> {
        let ranks = (0..job.world_size()).map(|rank| RankState::new(job, seed, rank)).collect();
        let ready = (0..job.world_size()).rev().collect();
        let (calls, sends, receives, transfers) = Default::default();
        Engine { job, seed, ranks, calls, sends, receives, transfers, ready }
    }

    pub(super) fn run(mut self) -> Trace {
        while let Some(rank) = self.ready.pop() {
            while self.act(rank) {}
        }
        let offsets = super::clock_offsets(self.job, self.seed);
        let mut trace = Trace {
            title: format!("synthetic dp {} tp {} pp {}", self.job.dp, self.job.tp, self.job.pp),
            began_unix_ns: Some(BEGAN_UNIX_NS),
            ..Trace::default()
        };
        for ((rank, state), offset) in (0..).zip(self.ranks).zip(offsets) {
            trace.ranks.insert(rank, state.finish(offset));
        }
        trace
    }

    /// Runs the next action of a rank. Returns false if the rank waits or has ended.
    fn act(&mut self, rank: u32) -> bool {
        let state = &mut self.ranks[rank as usize];
        let Some(act) = state.acts.get(state.next).copied() else { return self.begin_step(rank) };
        state.next += 1;
        match act {
            Act::Open(kind, name) => state.open.push((kind, name, state.clock)),
            Act::Close => {
                if let Some((kind, name, began)) = state.open.pop() {
                    state.record(kind, name, HOST_LANE, (began, state.clock));
                }
            }
            Act::Work { name, gap, nanos } => {
                let began = state.clock.saturating_add_unsigned(gap);
                state.clock = began.saturating_add_unsigned(nanos);
                if !self.job.is_host_only {
                    state.record(Kind::Compute, name, DEVICE_LANE, (began, state.clock));
                }
            }
            Act::Host { kind, name, nanos } => {
                let began = state.clock;
                state.clock = began.saturating_add_unsigned(nanos);
                state.record(kind, name, HOST_LANE, (began, state.clock));
            }
            Act::Collective { role, name, bytes, is_blocking } => {
                return self.collective(rank, role, name, bytes, is_blocking);
            }
            Act::Send { to } => {
                state.outstanding += 1;
                let at = state.clock;
                self.sends.entry((rank, to)).or_default().push(at);
                if let Some(receive) = self.receives.remove(&(rank, to)) {
                    self.transfer(rank, to, receive);
                    self.ready.push(to);
                }
            }
            Act::Receive { from } => {
                let at = state.clock;
                if self.sends.get(&(from, rank)).is_none_or(Vec::is_empty) {
                    self.receives.insert((from, rank), at);
                    return false;
                }
                self.transfer(from, rank, at);
            }
            Act::Drain if state.outstanding > 0 => {
                state.is_draining = true;
                return false;
            }
            Act::Drain => state.clock = state.clock.max(state.drained),
            Act::EndStep => state.end_step(),
        }
        true
    }

    fn begin_step(&mut self, rank: u32) -> bool {
        let state = &mut self.ranks[rank as usize];
        if state.step >= self.job.steps {
            return false;
        }
        state.step += 1;
        state.step_began = state.clock;
        state.acts = program::acts(self.job, rank, state.step, &mut state.random);
        state.next = 0;
        true
    }

    fn collective(&mut self, rank: u32, role: GroupRole, name: &'static str, bytes: u64, is_blocking: bool) -> bool {
        let state = &mut self.ranks[rank as usize];
        let Some(group) = state.groups.iter().position(|group| group.role == role) else { return true };
        let sequence = state.sequences[group];
        state.sequences[group] += 1;
        state.outstanding += u32::from(!is_blocking);
        let members = &state.groups[group].members;
        let size = members.len();
        let key = (state.groups[group].name.clone(), sequence);
        let call = Call { rank, at: state.clock, is_blocking };
        let calls = self.calls.entry(key.clone()).or_default();
        calls.push(call);
        if calls.len() < size {
            return !is_blocking;
        }
        let members = members.clone();
        let calls = self.calls.remove(&key).unwrap_or_default();
        self.complete(&calls, &members, (role, sequence), name, bytes);
        true
    }

    /// Ends a collective on all members.
    fn complete(
        &mut self,
        calls: &[Call],
        members: &[u32],
        (role, sequence): (GroupRole, u64),
        name: &'static str,
        bytes: u64,
    ) {
        // The last member to call continues without a wait.
        let caller = calls.last().map_or(0, |call| call.rank);
        let size = members.len() as u64;
        let moved = 2 * (size - 1) * bytes / size;
        let next = |rank: u32| {
            let at = members.iter().position(|member| *member == rank).unwrap_or_default();
            members[(at + 1) % members.len()]
        };
        let step = self.ranks[calls[0].rank as usize].step;
        let transits: Vec<u64> =
            calls.iter().map(|call| self.transfer_ns(call.rank, next(call.rank), moved, step)).collect();
        let lane_of = |state: &RankState| {
            let group = state.groups.iter().position(|group| group.role == role).unwrap_or_default();
            (group, GROUP_LANE + u32::try_from(group).unwrap_or_default())
        };
        let began: Vec<i64> =
            calls.iter().map(|call| call.at.max(self.ranks[call.rank as usize].free(lane_of))).collect();
        let last = began.iter().copied().max().unwrap_or_default();
        let transit = transits.iter().copied().max().unwrap_or_default();
        let end = last.saturating_add_unsigned(transit);
        for ((call, began), link_ns) in calls.iter().zip(began).zip(transits) {
            let link = self.link(call.rank, next(call.rank), moved, link_ns);
            let waited = last.abs_diff(began);
            let state = &mut self.ranks[call.rank as usize];
            let (group, lane) = lane_of(state);
            let communication = Communication {
                operation: state.trace.names.intern("all_reduce"),
                group: u32::try_from(group).ok(),
                sequence: Some(sequence),
                bytes,
                peer: None,
                wait_ns: self.job.records_wait.then_some(waited),
                transit_ns: self.job.records_wait.then_some(transit),
                links: vec![link],
                is_host_call: false,
            };
            state.record_communication(Kind::Collective, name, lane, (began, end), communication);
            state.done(end, call.is_blocking);
            if call.rank != caller && (call.is_blocking || state.is_woken()) {
                self.ready.push(call.rank);
            }
        }
    }

    /// Transfers the oldest send to a receive that was called at this time.
    fn transfer(&mut self, source: u32, destination: u32, received: i64) {
        let Some(sends) = self.sends.get_mut(&(source, destination)).filter(|sends| !sends.is_empty()) else {
            return;
        };
        let sent = sends.remove(0);
        let sequence = self.transfers.entry((source, destination)).or_default();
        let number = *sequence;
        *sequence += 1;
        let lane = CHANNEL_LANE + u32::from(source > destination);
        let free = |state: &RankState, lane| state.lanes.get(&lane).copied().unwrap_or(i64::MIN);
        let sent = sent.max(free(&self.ranks[source as usize], lane));
        let step = self.ranks[destination as usize].step;
        let transit = self.transfer_ns(source, destination, ACTIVATION_BYTES, step);
        let end = sent.max(received).saturating_add_unsigned(transit);
        let link = self.link(source, destination, ACTIVATION_BYTES, transit);
        for (rank, peer, kind, began) in
            [(source, destination, Kind::Send, sent), (destination, source, Kind::Receive, received)]
        {
            let state = &mut self.ranks[rank as usize];
            let group = state.groups.iter().position(|group| group.role == GroupRole::Pipeline);
            let waited = sent.max(received).abs_diff(began);
            let communication = Communication {
                operation: state.trace.names.intern(if kind == Kind::Send { "send" } else { "recv" }),
                group: group.and_then(|group| u32::try_from(group).ok()),
                sequence: Some(number),
                bytes: ACTIVATION_BYTES,
                peer: Some(peer),
                wait_ns: self.job.records_wait.then_some(waited),
                transit_ns: self.job.records_wait.then_some(transit),
                links: if kind == Kind::Send { vec![link] } else { Vec::new() },
                is_host_call: false,
            };
            let name = if kind == Kind::Send { "send_activation" } else { "receive_activation" };
            // Each direction has a lane for sends and one for receives.
            let own_lane = lane + if kind == Kind::Send { 0 } else { 2 };
            state.record_communication(kind, name, own_lane, (began, end), communication);
            state.lanes.insert(own_lane, end);
        }
        let sender = &mut self.ranks[source as usize];
        sender.done(end, false);
        if sender.is_woken() {
            self.ready.push(source);
        }
        self.ranks[destination as usize].clock = end;
    }

    fn is_one_host(&self, source: u32, destination: u32) -> bool {
        source / self.job.ranks_per_host == destination / self.job.ranks_per_host
    }

    fn transfer_ns(&mut self, source: u32, destination: u32, bytes: u64, step: u64) -> u64 {
        let rate = if self.is_one_host(source, destination) { HOST_BYTES_PER_US } else { NETWORK_BYTES_PER_US };
        let mut nanos = LATENCY_NS + bytes * 1000 / rate;
        if let Fault::SlowLink { source: from, destination: to, from_step, percent } = self.job.fault
            && (from, to) == (source, destination)
            && step >= from_step
        {
            nanos += nanos * u64::from(percent) / 100;
        }
        let noise = f64::from(self.job.jitter_permille) / 1000.0;
        let draw = self.ranks[source as usize].random.random_range(-1.0..1.0);
        scaled(nanos, 1.0 + noise * draw)
    }

    fn link(&self, source: u32, destination: u32, bytes: u64, transit_ns: u64) -> LinkTransfer {
        let link = if self.is_one_host(source, destination) { LinkKind::NvLink } else { LinkKind::Rdma };
        LinkTransfer { source, destination, link, bytes, transit_ns }
    }
}
