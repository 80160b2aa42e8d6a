//! The model of an ordinary trace: kernels, communications and waits for data of each rank, without micro-batches.
//!
//! The device of a rank is a chain of segments, cut where a communication is launched and where the rank waited for one.
//! A segment is the time between two cuts: kernels and the gaps between them, which are the host's work. A communication
//! waits for the segment before its launch and for the one before it in its lane. The rank waited for a communication if
//! no kernel ran when it ended: the next segment then waits for it.

use super::model::{Class, Model, ModelCounts, ModelError, NONE, Op, Waits};
use super::operation::Worker;
use super::replay::GraphBuilder;
use crate::model::{Event, GroupRole, Kind, RankTrace, StepSpan, Trace};
use std::collections::BTreeMap;

/// Shortest pause between kernels, in nanoseconds, in which a rank can have waited for a communication. Pauses between
/// the launches of kernels are shorter.
pub const PAUSE_MIN_NS: i64 = 10_000;

/// What equal classes share: kind of the class, stage, name, number in the step, and number of such in the step.
type Key = (Part, u32, String, usize, usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Segment,
    Host(Waits),
    Communication,
    /// A send or a receive.
    Transfer,
}

impl Model {
    /// Builds the model from the events of a trace with steps.
    ///
    /// Ranks without steps are left out. If a trace has kernels of a rank, other activities of its device and host count
    /// as work between them; otherwise all time outside of communication counts as computation.
    ///
    /// # Errors
    /// Returns an error if no rank has a step, or if the communications of the ranks wait for each other in a circle.
    pub fn from_trace(trace: &Trace) -> Result<Model, ModelError> {
        let mut numbers: Vec<u64> =
            trace.ranks.values().flat_map(|rank| rank.steps.iter().map(|step| step.number)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let mut workers = workers(trace);
        workers.sort_unstable();
        let mut builder = Builder::default();
        for (index, worker) in (0_u32..).zip(&workers) {
            let Some(rank) = trace.ranks.get(&worker.rank) else { continue };
            let has_kernels = rank.events.iter().any(|event| event.kind == Kind::Compute);
            for step in &rank.steps {
                let number = numbers.binary_search(&step.number).unwrap_or(0);
                let number = u32::try_from(number).unwrap_or(NONE);
                Walk::new(&mut builder, rank, *worker, index, number, step, has_kernels).run();
            }
        }
        if builder.ops.is_empty() {
            return Err(ModelError::Empty);
        }
        if builder.ops.len() > Model::OPERATIONS_MAX {
            return Err(ModelError::TooMany { operations: builder.ops.len(), max: Model::OPERATIONS_MAX });
        }
        let Builder { classes, ops, mut graph, meetings, mut counts, .. } = builder;
        counts.unpaired += meetings.values().filter(|members| members.len() == 1).count() as u64;
        graph.groups.extend(meetings.into_values());
        Model::from_parts(workers, numbers, classes, ops, graph, counts)
    }
}

/// Returns the places of the ranks that have steps.
fn workers(trace: &Trace) -> Vec<Worker> {
    let mut counts: BTreeMap<(u32, u32), u32> = BTreeMap::new();
    let ranks = trace.ranks.iter().filter(|(_, events)| !events.steps.is_empty());
    ranks
        .map(|(rank, events)| {
            let place = |role: GroupRole| {
                let group = events.groups.iter().find(|group| group.role == role)?;
                u32::try_from(group.members.iter().position(|member| member == rank)?).ok()
            };
            let stage = events.stage.or_else(|| place(GroupRole::Pipeline)).unwrap_or(0);
            let tensor = place(GroupRole::Tensor).unwrap_or(0);
            let count = counts.entry((stage, tensor)).or_default();
            *count += 1;
            // Without a known group, the ranks of one stage and slot are its replicas.
            Worker { data: place(GroupRole::Data).unwrap_or(*count - 1), stage, tensor, rank: *rank }
        })
        .collect()
}

/// A meeting of several ranks: step, name of the group or `rank -> rank`, operation, number.
type Meeting = (u32, String, String, u64);

#[derive(Default)]
struct Builder {
    keys: BTreeMap<Key, u32>,
    classes: Vec<Class>,
    ops: Vec<Op>,
    graph: GraphBuilder,
    meetings: BTreeMap<Meeting, Vec<u32>>,
    counts: ModelCounts,
}

impl Builder {
    fn class(&mut self, key: Key) -> u32 {
        if let Some(class) = self.keys.get(&key) {
            return *class;
        }
        let (part, stage, name, number, _) = &key;
        let name = match part {
            Part::Segment => format!("segment {number} of stage {stage}"),
            Part::Host(waits) => format!("wait for {}", waits.object()),
            Part::Communication | Part::Transfer => format!("{name} {number} of stage {stage}"),
        };
        let class = u32::try_from(self.classes.len()).unwrap_or(NONE);
        let waits = if let Part::Host(waits) = part { Some(*waits) } else { None };
        let (is_compute, is_point_to_point) = (*part == Part::Segment, *part == Part::Transfer);
        self.classes.push(Class { name, is_compute, is_point_to_point, waits });
        self.keys.insert(key, class);
        class
    }
}

/// A moment at which the chain of a rank is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cut {
    /// The rank waited for a communication, from this moment to the cut.
    Join { communication: usize, idle_since: i64 },
    /// A wait of the host that ended at this moment began.
    Host { waits: Waits, end: i64 },
    /// A communication was launched.
    Launch { communication: usize },
}

/// The walk through one step of one rank.
struct Walk<'a> {
    builder: &'a mut Builder,
    rank: &'a RankTrace,
    worker: Worker,
    index: u32,
    step: u32,
    span: &'a StepSpan,
    communications: Vec<&'a Event>,
    cuts: Vec<(i64, Cut)>,
    /// Operations of the segments; the class depends on their number.
    segments: Vec<u32>,
    hosts: Vec<(Waits, u32)>,
}

impl<'a> Walk<'a> {
    fn new(
        builder: &'a mut Builder,
        rank: &'a RankTrace,
        worker: Worker,
        index: u32,
        step: u32,
        span: &'a StepSpan,
        has_kernels: bool,
    ) -> Walk<'a> {
        let end = span.start_ns.saturating_add_unsigned(span.duration_ns);
        let first = rank.events.partition_point(|event| event.start_ns < span.start_ns);
        let last = rank.events.partition_point(|event| event.start_ns < end);
        let events = &rank.events[first..last.max(first)];
        let communications: Vec<&Event> = events.iter().filter(|event| event.kind.is_communication()).collect();
        let busy = busy(events, &communications, (span.start_ns, end), has_kernels);
        let mut cuts = Vec::new();
        for (number, event) in communications.iter().enumerate() {
            cuts.push((event.start_ns, Cut::Launch { communication: number }));
            // A rank does not wait for a communication without length: its end would be cut before its launch.
            if event.duration_ns > 0
                && let Some(idle_since) = idle_since(&busy, event.end_ns(), (span.start_ns, end))
            {
                cuts.push((event.end_ns(), Cut::Join { communication: number, idle_since }));
            }
        }
        cuts.extend(host_waits(events, &busy, (span.start_ns, end), has_kernels));
        cuts.sort_unstable();
        Walk { builder, rank, worker, index, step, span, communications, cuts, segments: Vec::new(), hosts: Vec::new() }
    }

    fn run(mut self) {
        let mut ops = vec![NONE; self.communications.len()];
        let mut lanes: BTreeMap<u32, u32> = BTreeMap::new();
        let mut waits: Vec<u32> = Vec::new();
        let mut resumed = self.span.start_ns;
        for (time, cut) in std::mem::take(&mut self.cuts) {
            let until = if let Cut::Join { idle_since, .. } = cut { idle_since } else { time };
            let segment = self.segment(resumed, until, &waits);
            resumed = resumed.max(time);
            waits = vec![segment];
            match cut {
                // At the limits of time a communication may end when it begins: it was not launched yet.
                Cut::Join { communication, .. } => waits.extend(Some(ops[communication]).filter(|op| *op != NONE)),
                Cut::Host { waits: object, end } => {
                    let begun = resumed.min(end);
                    let host = self.push(begun, end.saturating_sub(begun), &waits);
                    self.hosts.push((object, host));
                    (waits, resumed) = (vec![host], resumed.max(end));
                }
                Cut::Launch { communication } => {
                    let event = self.communications[communication];
                    let op = self.push(event.start_ns, i64::try_from(event.duration_ns).unwrap_or(i64::MAX), &waits);
                    ops[communication] = op;
                    let before = lanes.insert(event.lane, op);
                    self.builder.graph.edges.extend(before.map(|before| (before, op)));
                }
            }
        }
        let end = self.span.start_ns.saturating_add_unsigned(self.span.duration_ns);
        self.segment(resumed, end, &waits);
        self.classify(&ops);
    }

    fn segment(&mut self, start: i64, end: i64, waits: &[u32]) -> u32 {
        let segment = self.push(start, end.saturating_sub(start).max(0), waits);
        self.segments.push(segment);
        segment
    }

    /// Adds an operation without a class.
    fn push(&mut self, start_ns: i64, duration_ns: i64, waits: &[u32]) -> u32 {
        let number = u32::try_from(self.builder.ops.len()).unwrap_or(NONE);
        self.builder.ops.push(Op {
            step: self.step,
            worker: self.index,
            class: 0,
            chunk: NONE,
            micro_batch: NONE,
            start: seconds(start_ns),
            duration: seconds(duration_ns),
        });
        self.builder.graph.edges.extend(waits.iter().map(|op| (*op, number)));
        number
    }

    /// Gives the operations their classes, and the communications their meetings.
    fn classify(mut self, communications: &[u32]) {
        let stage = self.worker.stage;
        let count = self.segments.len();
        for (number, op) in std::mem::take(&mut self.segments).into_iter().enumerate() {
            let class = self.builder.class((Part::Segment, stage, String::new(), number, count));
            self.builder.ops[op as usize].class = class;
        }
        for (waits, op) in std::mem::take(&mut self.hosts) {
            let class = self.builder.class((Part::Host(waits), 0, String::new(), 0, 0));
            self.builder.ops[op as usize].class = class;
        }
        let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
        let mut met: BTreeMap<(String, String), u64> = BTreeMap::new();
        for (event, op) in std::mem::take(&mut self.communications).into_iter().zip(communications) {
            let name = self.name(event);
            let number = numbers.entry(name.clone()).or_default();
            *number += 1;
            let part = if event.kind == Kind::Collective { Part::Communication } else { Part::Transfer };
            let class = self.builder.class((part, stage, name.clone(), *number - 1, 0));
            self.builder.ops[*op as usize].class = class;
            let Some((group, sequence)) = self.group(event) else {
                self.builder.counts.unpaired += 1;
                continue;
            };
            // Sends and receives of one pair are numbered together.
            let operation = if event.kind == Kind::Collective { name } else { String::new() };
            let number = met.entry((group.clone(), operation.clone())).or_default();
            *number += 1;
            let meeting = (self.step, group, operation, sequence.unwrap_or(*number - 1));
            self.builder.meetings.entry(meeting).or_default().push(*op);
        }
    }

    fn name(&self, event: &Event) -> String {
        let details = event.communication.and_then(|number| self.rank.communications.get(number as usize));
        let operation = details.map_or("", |details| self.rank.names.get(details.operation));
        if operation.is_empty() { self.rank.names.get(event.name).to_owned() } else { operation.to_owned() }
    }

    /// Returns the name of the group of ranks that transfer together, and the number in it if the trace has it.
    fn group(&self, event: &Event) -> Option<(String, Option<u64>)> {
        let details = self.rank.communications.get(event.communication? as usize)?;
        let own = self.worker.rank;
        match event.kind {
            Kind::Send => Some((format!("{own} -> {}", details.peer?), None)),
            Kind::Receive => Some((format!("{} -> {own}", details.peer?), None)),
            _ => Some((self.rank.groups.get(details.group? as usize)?.name.clone(), details.sequence)),
        }
    }
}

/// Returns the waits of the host. Without a span of the data loader, the time between the start of the step and its first
/// work, which a forward pass contains, is a wait for data. A checkpoint that is written beside kernels is no wait.
fn host_waits(events: &[Event], busy: &[(i64, i64)], span: (i64, i64), has_kernels: bool) -> Vec<(i64, Cut)> {
    let of_kind = |kind: Kind| events.iter().filter(move |event| event.kind == kind);
    let mut cuts: Vec<(i64, Cut)> = of_kind(Kind::DataLoader)
        .map(|event| (event.start_ns, Cut::Host { waits: Waits::Input, end: event.end_ns().min(span.1) }))
        .collect();
    if cuts.is_empty()
        && let Some(forward) = of_kind(Kind::Forward).next()
    {
        let is_work = |event: &&Event| event.kind == Kind::Compute || event.kind.is_communication();
        let end = events.iter().find(is_work).map_or(forward.start_ns, |work| work.start_ns.min(forward.start_ns));
        if end.saturating_sub(span.0) >= PAUSE_MIN_NS {
            cuts.push((span.0, Cut::Host { waits: Waits::Input, end }));
        }
    }
    for event in of_kind(Kind::SaveCheckpoint) {
        let end = event.end_ns().min(span.1);
        let computes = |(from, to): &(i64, i64)| to.min(&end).saturating_sub(*from.max(&event.start_ns)).max(0);
        let computed = busy.iter().map(computes).fold(0, i64::saturating_add);
        if !has_kernels || computed < end.saturating_sub(event.start_ns) / 2 {
            cuts.push((event.start_ns, Cut::Host { waits: Waits::Storage, end }));
        }
    }
    cuts
}

/// Returns the intervals in which the rank computes, merged. Without kernels, that is all time outside of communication.
fn busy(events: &[Event], communications: &[&Event], span: (i64, i64), has_kernels: bool) -> Vec<(i64, i64)> {
    let union = |events: &mut dyn Iterator<Item = &Event>| {
        let mut merged: Vec<(i64, i64)> = Vec::new();
        for event in events {
            match merged.last_mut() {
                Some(last) if event.start_ns <= last.1 => last.1 = last.1.max(event.end_ns()),
                _ => merged.push((event.start_ns, event.end_ns())),
            }
        }
        merged
    };
    if has_kernels {
        return union(&mut events.iter().filter(|event| event.kind == Kind::Compute));
    }
    let mut busy = Vec::new();
    let mut from = span.0;
    for (start, end) in union(&mut communications.iter().copied()) {
        if start > from {
            busy.push((from, start));
        }
        from = from.max(end);
    }
    busy.push((from, from.max(span.1)));
    busy
}

/// Returns the moment since which the rank does not compute, if it does not at this time; `None`: it computes, or the
/// pause is short.
fn idle_since(busy: &[(i64, i64)], time: i64, span: (i64, i64)) -> Option<i64> {
    let next = busy.partition_point(|(start, _)| *start < time);
    let since = next.checked_sub(1).map_or(span.0, |before| busy[before].1);
    let until = busy.get(next).map_or(span.1, |(start, _)| *start);
    (since <= time && time <= span.1 && until.saturating_sub(since) >= PAUSE_MIN_NS).then_some(since)
}

#[allow(clippy::cast_precision_loss, reason = "times of a trace are below 2^53 ns")]
fn seconds(nanoseconds: i64) -> f64 {
    nanoseconds as f64 / 1e9
}
