//! Translates dumps to the kernel's vocabulary: the position of each rank in each of its process groups.
//!
//! What only some of the members must agree on (sizes, element types) becomes part of the operation's name, so that the
//! kernel's comparison covers it. Sends and receives of each ordered pair of ranks become a group of their own, whose
//! members are the two ranks. This module blames no rank.

use super::dump::{Dump, Entry, GroupStatus};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use taskd_core::detect::hang::{ProcessState, RankReport};
use taskd_core::job::Rank;
use taskd_core::trace::{Call, GroupPosition, point_to_point_name};

/// Description of the group of all ranks.
const DEFAULT_GROUP: &str = "default_pg";
/// Description of a group to which the program gave none.
const UNDESCRIBED: &str = "undefined";

/// The reports of all ranks, and what the kernel's vocabulary has no words for.
#[derive(Debug, Default)]
pub(super) struct Translation<'a> {
    /// One report for each rank, also for those without a dump.
    pub(super) reports: Vec<RankReport>,
    /// Ranks without a dump.
    pub(super) missing: Vec<u32>,
    /// Rank and group of positions that are not known, because the records were evicted.
    pub(super) evicted: BTreeSet<(u32, String)>,
    /// The entry behind each send and receive: by rank, group and sequence number.
    pub(super) exchanged: BTreeMap<(u32, String, u64), &'a Entry>,
    /// Pending receives from any source, and their number: they cannot be assigned to a sender.
    pub(super) from_any: u64,
}

/// Translates the dumps of all ranks. `ranks` is the number of ranks of the job, if known.
pub(super) fn translate(dumps: &[Dump], ranks: Option<u32>) -> Translation<'_> {
    let names = Names::of(dumps, ranks);
    let mut out = Translation::default();
    let mut positions: BTreeMap<u32, Vec<GroupPosition>> = BTreeMap::new();
    for dump in dumps {
        positions.insert(dump.rank, collectives(dump, &names));
    }
    for (rank, position) in pairs(dumps, &names, &mut out) {
        positions.entry(rank).or_default().push(position);
    }
    fill_evicted(dumps, &names, &mut positions, &mut out);
    let mut all: BTreeSet<u32> = names.members.values().flatten().copied().collect();
    all.extend(positions.keys());
    all.extend(0..names.world);
    for rank in all {
        let groups = positions.remove(&rank);
        let state = if groups.is_some() { ProcessState::Unknown } else { ProcessState::Unreported };
        if groups.is_none() {
            out.missing.push(rank);
        }
        out.reports.push(RankReport { rank: Rank(rank), groups, state });
    }
    out
}

/// Names and members of the groups.
struct Names {
    /// Number of ranks of the job, as far as known.
    world: u32,
    /// Members by name of the group, in group order. The members of groups that no dump lists are those with records
    /// of the group.
    members: BTreeMap<Arc<str>, Vec<u32>>,
    /// Name of each group for people.
    labels: BTreeMap<Arc<str>, String>,
}

impl Names {
    fn of(dumps: &[Dump], ranks: Option<u32>) -> Names {
        let listed = dumps.iter().flat_map(|dump| {
            // An empty name is that of gloo; its list of ranks belongs to another group.
            dump.groups.iter().filter(|(name, _)| !name.is_empty())
        });
        let mut members: BTreeMap<Arc<str>, Vec<u32>> = BTreeMap::new();
        for (name, config) in listed.filter(|(_, config)| !config.ranks.is_empty()) {
            members.entry(name.as_str().into()).or_insert_with(|| config.ranks.clone());
        }
        let highest = dumps.iter().map(|dump| dump.rank).chain(members.values().flatten().copied()).max();
        let world =
            ranks.unwrap_or_default().max(highest.map_or(0, |highest| highest.saturating_add(1))).min(WORLD_MAX);
        let mut seen: BTreeMap<Arc<str>, BTreeSet<u32>> = BTreeMap::new();
        for dump in dumps {
            for entry in dump.entries.iter().filter(|entry| !members.contains_key(&entry.group)) {
                let seen = seen.entry(Arc::clone(&entry.group)).or_default();
                seen.insert(dump.rank);
                if *entry.description == *DEFAULT_GROUP && seen.len() < world as usize {
                    seen.extend(0..world);
                }
            }
        }
        members.extend(seen.into_iter().map(|(name, ranks)| (name, ranks.into_iter().collect())));
        let mut labels = BTreeMap::new();
        for entry in dumps.iter().flat_map(|dump| &dump.entries) {
            labels.entry(Arc::clone(&entry.group)).or_insert_with(|| label(&entry.group, &entry.description));
        }
        Names { world, members, labels }
    }

    fn label(&self, group: &str) -> String {
        self.labels.get(group).cloned().unwrap_or_else(|| group.to_owned())
    }

    fn members(&self, group: &str) -> &[u32] {
        self.members.get(group).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the global ranks of sender and receiver of an entry; `None` if one of them is not known.
    fn pair(&self, entry: &Entry) -> Option<(u32, u32)> {
        let (_, operation) = split(&entry.name);
        let (kind, peers) = operation.split_once(' ')?;
        let (from, to) = match kind {
            "send" => peers.split_once("->")?,
            _ => peers.split_once("<-").map(|(to, from)| (from, to))?,
        };
        let members = self.members(&entry.group);
        let global = |local: &str| members.get(local.trim().parse::<usize>().ok()?).copied();
        Some((global(from)?, global(to)?))
    }
}

/// Maximum number of ranks of a job: the rank of a file named by mistake must not create millions of reports.
const WORLD_MAX: u32 = 131_072;

/// Returns the positions of a rank in its groups, from its collectives.
fn collectives(dump: &Dump, names: &Names) -> Vec<GroupPosition> {
    let mut groups: BTreeMap<&Arc<str>, BTreeMap<u64, Call>> = BTreeMap::new();
    let now = dump.entries.iter().map(latest).max().unwrap_or_default();
    for entry in dump.entries.iter().filter(|entry| !entry.is_p2p) {
        let calls = groups.entry(&entry.group).or_default();
        match calls.get_mut(&entry.collective_seq) {
            // Calls that were made as one, under one number.
            Some(call) => {
                call.elements = call.elements.saturating_add(elements(&entry.input_sizes));
                call.is_pending |= entry.is_pending();
            }
            None => drop(calls.insert(entry.collective_seq, call(entry, now))),
        }
    }
    let position = |(name, calls): (&Arc<str>, BTreeMap<u64, Call>)| {
        let (group, members) = (names.label(name), names.members(name).to_vec());
        GroupPosition { group, members, recent: calls.into_values().collect() }
    };
    groups.into_iter().map(position).collect()
}

/// Completes positions with evicted records, from the status of the group.
///
/// The status names only the number of the latest call. Its kind is taken from a member that still has the record. A
/// position of which nothing is known is added to [`Translation::evicted`].
fn fill_evicted(
    dumps: &[Dump],
    names: &Names,
    positions: &mut BTreeMap<u32, Vec<GroupPosition>>,
    out: &mut Translation<'_>,
) {
    let all = dumps.iter().flat_map(|dump| &dump.entries).filter(|entry| !entry.is_p2p);
    let calls: BTreeMap<(&str, u64), &Entry> =
        all.map(|entry| ((&*entry.group, entry.collective_seq), entry)).collect();
    for dump in dumps {
        let numbers: BTreeMap<&Arc<str>, i64> =
            dump.entries.iter().map(|entry| (&entry.group, entry.group_id)).collect();
        let Some(own) = positions.get_mut(&dump.rank) else { continue };
        for (name, label) in names.labels.iter().filter(|(name, _)| names.members(name).contains(&dump.rank)) {
            let known = own.iter().position(|position| position.group == *label);
            let last = known.and_then(|at| own[at].recent.last()).map(|call| call.sequence);
            let status = numbers.get(name).and_then(|number| dump.status.get(number));
            match status.and_then(|status| status.enqueued.map(|enqueued| (status, enqueued))) {
                Some((status, enqueued)) if last.is_none_or(|last| last < enqueued) => {
                    let call = unrecorded(calls.get(&(&**name, enqueued)).copied(), enqueued, *status);
                    match known {
                        Some(at) => own[at].recent.push(call),
                        None => own.push(position(label, names.members(name), call)),
                    }
                }
                _ if known.is_none() && dump.is_evicted() => {
                    out.evicted.insert((dump.rank, label.clone()));
                }
                _ => {}
            }
        }
    }
}

fn position(group: &str, members: &[u32], call: Call) -> GroupPosition {
    GroupPosition { group: group.to_owned(), members: members.to_vec(), recent: vec![call] }
}

/// Creates the call that a group's status mentions, and that has no record on this rank. `like` is another member's
/// record of it.
fn unrecorded(like: Option<&Entry>, sequence: u64, status: GroupStatus) -> Call {
    let (operation, elements, data_type) = like.map_or_else(|| ("a call".to_owned(), 0, String::new()), shape);
    let is_pending = status.completed.is_none_or(|completed| completed < sequence);
    Call { sequence, operation, elements, data_type, begun: Duration::ZERO, is_pending }
}

/// Returns the positions of ranks in the exchange with each other rank.
///
/// Both sides count their calls in the same order. If older records were evicted, the counts are not comparable, and
/// only pending calls are counted.
fn pairs<'a>(dumps: &'a [Dump], names: &Names, out: &mut Translation<'a>) -> Vec<(u32, GroupPosition)> {
    let mut exchanges: BTreeMap<(&str, u32, u32), BTreeMap<u32, Vec<&'a Entry>>> = BTreeMap::new();
    let evicted: BTreeSet<u32> = dumps.iter().filter(|dump| dump.is_evicted()).map(|dump| dump.rank).collect();
    for dump in dumps {
        for entry in dump.entries.iter().filter(|entry| entry.is_p2p) {
            match names.pair(entry).filter(|(from, to)| [*from, *to].contains(&dump.rank)) {
                Some((from, to)) => {
                    let exchange = exchanges.entry((&entry.group, from, to)).or_default();
                    exchange.entry(dump.rank).or_default().push(entry);
                }
                None => out.from_any += u64::from(entry.is_pending()),
            }
        }
    }
    let mut positions = Vec::new();
    for ((group, from, to), sides) in exchanges {
        let is_evicted = evicted.contains(&from) || evicted.contains(&to);
        for rank in [from, to] {
            let Some(dump) = dumps.iter().find(|dump| dump.rank == rank) else { continue };
            let now = dump.entries.iter().map(latest).max().unwrap_or_default();
            let made = sides.get(&rank).map(Vec::as_slice).unwrap_or_default();
            let counted = made.iter().filter(|entry| !is_evicted || entry.is_pending());
            let name = point_to_point_name(&names.label(group), from, to);
            let mut recent = Vec::new();
            for (sequence, entry) in (1..).zip(counted) {
                out.exchanged.insert((rank, name.clone(), sequence), entry);
                let sizes = if rank == from { &entry.input_sizes } else { &entry.output_sizes };
                let operation = format!("send and receive{}", of(elements(sizes), &types(entry)));
                let (elements, data_type) = (0, String::new());
                let (begun, is_pending) = (age(entry, now), entry.is_pending());
                recent.push(Call { sequence, operation, elements, data_type, begun, is_pending });
            }
            positions.push((rank, GroupPosition { group: name, members: vec![from, to], recent }));
        }
    }
    positions
}

fn call(entry: &Entry, now: i64) -> Call {
    let (operation, elements, data_type) = shape(entry);
    let sequence = entry.collective_seq;
    Call { sequence, operation, elements, data_type, begun: age(entry, now), is_pending: entry.is_pending() }
}

/// Returns operation, number of elements and their type, such that members agree if and only if all three are equal.
/// The rules are those of `Op.match` in torch's `flight_recorder/components/types.py`, with tensors of equal numbers of
/// elements taken as equal.
fn shape(entry: &Entry) -> (String, u64, String) {
    let (_, operation) = split(&entry.name);
    let (given, taken) = (elements(&entry.input_sizes), elements(&entry.output_sizes));
    let named = |name: String| (name, 0, String::new());
    match operation {
        "all_reduce" | "allreduce" => ("allreduce".into(), given, types(entry)),
        "broadcast" | "reduce" => (operation.to_owned(), given, types(entry)),
        "_all_gather_base" | "all_gather_into_tensor" => ("allgather_base".into(), given, types(entry)),
        "_reduce_scatter_base" | "reduce_scatter_tensor" => ("reduce_scatter_base".into(), given, types(entry)),
        "all_gather" => named(format!("all_gather into{}", of(taken, &types(entry)).trim_start_matches(" of"))),
        "reduce_scatter" => named(format!("reduce_scatter{}", of(given, &types(entry)))),
        _ => named(operation.to_owned()),
    }
}

fn of(elements: u64, data_type: &str) -> String {
    format!(" of {elements} {data_type}")
}

/// Splits a profiling name into backend and operation. Torch splits at the last colon as well.
fn split(name: &str) -> (&str, &str) {
    name.rsplit_once(':').unwrap_or(("", name))
}

/// Returns the element types of a call, such as `Float`. Of several, each is named once.
fn types(entry: &Entry) -> String {
    let listed = if entry.input_dtypes.is_empty() { &entry.output_dtypes } else { &entry.input_dtypes };
    let distinct: BTreeSet<&str> = listed.iter().map(|name| &**name).collect();
    distinct.into_iter().collect::<Vec<_>>().join("+")
}

/// Returns the number of elements of several tensors.
fn elements(tensors: &[Vec<i64>]) -> u64 {
    let product = |sizes: &Vec<i64>| sizes.iter().fold(1, |all: u64, size| all.saturating_mul(size.unsigned_abs()));
    tensors.iter().map(product).fold(0, u64::saturating_add)
}

/// Returns the latest time in an entry.
fn latest(entry: &Entry) -> i64 {
    [Some(entry.created_ns), entry.started_ns, entry.completed_ns].into_iter().flatten().max().unwrap_or_default()
}

/// Returns the time from a call to the rank's latest record. Clocks of different hosts are not compared.
fn age(entry: &Entry, now: i64) -> Duration {
    Duration::from_nanos(now.saturating_sub(entry.created_ns).max(0).unsigned_abs())
}

/// Returns the name of a group for people: with the description, if it has one.
fn label(name: &str, description: &str) -> String {
    match description {
        "" | UNDESCRIBED => name.to_owned(),
        description => format!("{name} ({description})"),
    }
}
