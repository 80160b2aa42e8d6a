//! The records that a job would have stored: the reverse of reading a store.

use std::collections::BTreeMap;
use std::sync::Arc;
use taskd_analysis::model::{Event, GroupRole, Kind, RankTrace, Trace};
use taskd_kernel::job::{GroupId, GroupKind, Incarnation, Rank};
use taskd_runtime::trace::recorder::{self, DataType, Detail, DeviceWork, NameId, Op};
use taskd_runtime::trace::{NameTable, Origin, RecordBatch, TimedRecord};

/// The training thread.
const MAIN: u32 = 1;
/// The thread on which communications end.
const WATCHER: u32 = 2;

/// Records of all ranks, and the groups of the job's specification.
pub(crate) struct Stored {
    pub(crate) ranks: u32,
    pub(crate) groups: BTreeMap<GroupId, Vec<Rank>>,
    /// One batch for each step of each rank, in the order of the steps.
    pub(crate) batches: Vec<RecordBatch>,
}

/// Returns the records of a trace.
pub(crate) fn records(trace: &Trace) -> Stored {
    let began = trace.began_unix_ns.unwrap_or_default();
    let mut batches: Vec<(usize, RecordBatch)> = Vec::new();
    let mut found: BTreeMap<(GroupKind, String), Vec<Rank>> = BTreeMap::new();
    for (&rank, events) in &trace.ranks {
        for group in &events.groups {
            let kind = match group.role {
                GroupRole::Data => GroupKind::Dp,
                GroupRole::Tensor => GroupKind::Tp,
                GroupRole::Pipeline => GroupKind::Pp,
                _ => continue,
            };
            found.insert((kind, group.name.clone()), group.members.iter().map(|member| Rank(*member)).collect());
        }
        batches.extend(of_rank(rank, events, began).into_iter().enumerate());
    }
    batches.sort_by_key(|(step, batch)| (*step, batch.origin.rank));
    let mut groups: BTreeMap<GroupId, Vec<Rank>> = BTreeMap::new();
    for ((kind, _), members) in found {
        let index = u32::try_from(groups.keys().filter(|id| id.kind == kind).count()).expect("few groups");
        groups.insert(GroupId { kind, index }, members);
    }
    let ranks = u32::try_from(trace.ranks.len()).expect("few ranks");
    Stored { ranks, groups, batches: batches.into_iter().map(|(_, batch)| batch).collect() }
}

/// Returns one batch for each step of a rank.
fn of_rank(rank: u32, events: &RankTrace, began: i64) -> Vec<RecordBatch> {
    let mut names = NameTable::default();
    let groups: Vec<NameId> =
        events.groups.iter().map(|group| names.push(&name(&group.name, &group.members))).collect();
    let at = |ns: i64| u64::try_from(began + ns).expect("after 1970");
    let mut records = Vec::new();
    for (range, step) in (1..).zip(&events.steps) {
        let detail = Detail::Step { number: step.number, cpu_nanos: 0 };
        let end = step.start_ns.saturating_add_unsigned(step.duration_ns);
        pair(&mut records, recorder::Kind::Step, range, (at(step.start_ns), at(end)), detail, (MAIN, MAIN));
    }
    for (range, event) in (1_000_000..).zip(&events.events) {
        let times = (at(event.start_ns), at(event.end_ns()));
        let threads = if event.kind.is_communication() { (MAIN, WATCHER) } else { (MAIN, MAIN) };
        let Some((kind, detail)) = what(event, events, &groups) else { continue };
        if kind == recorder::Kind::Kernel {
            let event = recorder::Event::Span { nanos: event.duration_ns };
            records.push(TimedRecord { unix_nanos: times.0, thread: 0, kind, event, name: NameId(0), detail });
        } else {
            pair(&mut records, kind, range, times, detail, threads);
        }
    }
    // The end of one range comes before the beginning of the next one at the same time; a step encloses both.
    let order = |record: &TimedRecord| match (record.kind, record.event) {
        (recorder::Kind::Step, recorder::Event::End { .. }) => 1,
        (_, recorder::Event::End { .. }) => 0,
        (recorder::Kind::Step, _) => 2,
        _ => 3,
    };
    records.sort_by_key(|record| (record.unix_nanos, order(record)));
    let names = Arc::new(names);
    let origin = Origin { rank: Rank(rank), incarnation: Incarnation(1), pid: 100 + rank };
    let is_end = |record: &TimedRecord| {
        record.kind == recorder::Kind::Step && matches!(record.event, recorder::Event::End { .. })
    };
    let chunks = records.split_inclusive(is_end);
    chunks
        .map(|records| RecordBatch { origin, names: Arc::clone(&names), lost: 0, records: records.to_vec() })
        .collect()
}

fn what(event: &Event, of: &RankTrace, groups: &[NameId]) -> Option<(recorder::Kind, Detail)> {
    let plain = |kind| Some((kind, Detail::None));
    match event.kind {
        Kind::DataLoader => plain(recorder::Kind::DataLoader),
        Kind::SaveCheckpoint => plain(recorder::Kind::SaveCheckpoint),
        Kind::Forward => plain(recorder::Kind::Forward),
        Kind::Compute => {
            let work = DeviceWork { device: 0, stream: event.lane, correlation: 0, bytes: 0 };
            Some((recorder::Kind::Kernel, Detail::Device(work)))
        }
        Kind::Collective | Kind::Send | Kind::Receive => {
            let details = &of.communications[event.communication? as usize];
            let op = match event.kind {
                Kind::Send => Op::Send,
                Kind::Receive => Op::Recv,
                _ => Op::AllReduce,
            };
            let group = groups[details.group? as usize];
            let (elements, data_type, sequence) = (details.bytes / 4, DataType::F32, details.sequence);
            let (bytes, peer) = (details.bytes, details.peer);
            let what = recorder::Communication { op, data_type, group, elements, bytes, peer, sequence };
            Some((recorder::Kind::Communication, Detail::Communication(what)))
        }
        _ => None,
    }
}

fn pair(
    records: &mut Vec<TimedRecord>,
    kind: recorder::Kind,
    range: u64,
    (begin, end): (u64, u64),
    detail: Detail,
    (first, last): (u32, u32),
) {
    let record = |unix_nanos, thread, event| TimedRecord { unix_nanos, thread, kind, event, name: NameId(0), detail };
    records.push(record(begin, first, recorder::Event::Begin { range }));
    records.push(record(end, last, recorder::Event::End { range }));
}

/// A group's name in the table of names, with its members.
fn name(name: &str, members: &[u32]) -> String {
    let members: Vec<String> = members.iter().map(ToString::to_string).collect();
    format!("{name}|{}", members.join(","))
}
