//! The figures of all ranks step by step, in the form of the fail-slow engine, and the layout of the job.
//!
//! A reader of taskd's stores passes the times of each step as the live reducer computes them: the engine then gets the
//! figures that the detector of the running job got. Other traces have no such times. Their figures are those of the
//! document: the rank's own time is the step without communication that is not overlapped, and transfers and sends are
//! the parts of the operations in which no rank is waited for.

use crate::analyze::Parts;
use crate::document::Analysis;
use crate::model::{Group, GroupRole, Kind, RankTrace, StepRecord};
use crate::tables::cell;
use std::collections::{BTreeMap, BTreeSet};
use taskd_kernel::detect::fail_slow::{
    Bases, Choice, Layout, Members, Row, SERIES, Series, StepFigures, add_transfers, is_judged, ms, row_of, rows_by,
};
use taskd_kernel::job::{GroupId, GroupKind};
use taskd_kernel::trace::{StepTimes, StepTransfers};

/// The input of the engine.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) layout: Layout,
    /// Names of the hosts by their numbers in the layout.
    pub(super) hosts: Vec<String>,
    /// Name of each group in the trace.
    pub(super) groups: BTreeMap<GroupId, String>,
    /// Parts of the run in which no rank was restarted, in the order of time.
    pub(super) eras: Vec<Era>,
    /// True if the figures come from the live reducer.
    pub(super) is_recorded: bool,
}

/// Steps between two restarts, by number: the figures of each rank in the order of the document's ranks.
pub(super) type Era = BTreeMap<u64, Vec<Row>>;

/// Steps of an era before it is known what is compared.
type Steps<'a> = BTreeMap<u64, Vec<Option<Reported<'a>>>>;

/// What one rank reported about one step.
#[derive(Clone, Copy, Debug)]
struct Reported<'a> {
    figures: StepFigures,
    transfers: Option<&'a StepTransfers>,
}

const UNKNOWN: Row = [f32::NAN; SERIES];

impl Job {
    pub(super) fn new(parts: &Parts<'_>, analysis: &Analysis) -> Job {
        let rows = &parts.index.rows;
        let mut hosts: Vec<String> = rows.iter().filter_map(|row| row.host.clone()).collect();
        hosts.sort();
        hosts.dedup();
        let host = |row: &&RankTrace| {
            let at = row.host.as_ref().and_then(|host| hosts.binary_search(host).ok());
            at.map_or(u32::MAX, narrow)
        };
        let of_rank: Vec<u32> = rows.iter().map(host).collect();
        let (members, groups) = groups(parts);
        let mut layout = Layout::of_groups(&of_rank, members);
        let is_recorded =
            !rows.is_empty() && rows.iter().all(|row| row.steps.is_empty() || !row.step_records.is_empty());
        if !is_recorded {
            layout = with_stages(layout, analysis);
        }
        let eras = match is_recorded {
            true => recorded(rows, &parts.index.ranks, &layout),
            false => vec![measured(parts, analysis)],
        };
        Job { layout, hosts, groups, eras, is_recorded }
    }
}

/// Returns the groups of the five dimensions of parallelism, and their names. Of a group that recoveries have recreated,
/// the newest counts; of several groups of one dimension, the first one of a rank.
fn groups(parts: &Parts<'_>) -> (Vec<Members>, BTreeMap<GroupId, String>) {
    let mut newest: BTreeMap<(&str, GroupKind), (u64, &Group)> = BTreeMap::new();
    for group in parts.index.rows.iter().flat_map(|row| &row.groups).filter(|group| group.members.len() > 1) {
        let Some(kind) = kind_of(group.role) else { continue };
        let (name, generation) = generation(&group.name);
        let known = newest.entry((name, kind)).or_insert((generation, group));
        if generation > known.0 {
            *known = (generation, group);
        }
    }
    let mut found: Vec<Members> = Vec::new();
    let mut names = BTreeMap::new();
    let mut taken: BTreeSet<(GroupKind, u32)> = BTreeSet::new();
    let mut counts: BTreeMap<GroupKind, u32> = BTreeMap::new();
    for ((name, kind), (_, group)) in newest {
        let at = |rank: &u32| parts.index.row_of(*rank).map_or(u32::MAX, narrow);
        let ranks: Vec<u32> = group.members.iter().map(at).collect();
        let is_taken = ranks.iter().any(|rank| *rank != u32::MAX && taken.contains(&(kind.clone(), *rank)));
        if is_taken || ranks.iter().filter(|rank| **rank != u32::MAX).count() < 2 {
            continue;
        }
        taken.extend(ranks.iter().map(|rank| (kind.clone(), *rank)));
        let index = counts.entry(kind.clone()).or_default();
        let id = GroupId { kind: kind.clone(), index: *index };
        *index += 1;
        names.insert(id.clone(), name.to_owned());
        found.push(Members { id, ranks });
    }
    (found, names)
}

const fn kind_of(role: GroupRole) -> Option<GroupKind> {
    match role {
        GroupRole::Data => Some(GroupKind::Dp),
        GroupRole::Tensor => Some(GroupKind::Tp),
        GroupRole::Pipeline => Some(GroupKind::Pp),
        GroupRole::Context => Some(GroupKind::Cp),
        GroupRole::Expert => Some(GroupKind::Ep),
        GroupRole::World | GroupRole::Unknown => None,
    }
}

/// Splits off the generation for which a group was recreated: `dp_1#7` is `dp_1` of generation 7.
fn generation(name: &str) -> (&str, u64) {
    name.rsplit_once('#').and_then(|(name, generation)| Some((name, generation.parse().ok()?))).unwrap_or((name, 0))
}

/// Gives each rank the document's stage, if no group shows the pipeline.
fn with_stages(layout: Layout, analysis: &Analysis) -> Layout {
    let has_pipeline = layout.groups().iter().any(|group| group.id.kind == GroupKind::Pp);
    if has_pipeline || layout.groups().is_empty() {
        return layout;
    }
    let mut places = layout.places().to_vec();
    for (place, info) in places.iter_mut().zip(&analysis.ranks) {
        place.stage = info.stage.unwrap_or_default();
    }
    Layout::new(places, layout.groups().to_vec())
}

/// Returns the figures of the live reducer, in parts without a restart.
fn recorded(rows: &[&RankTrace], ranks: &[u32], layout: &Layout) -> Vec<Era> {
    let mut all: Vec<(usize, &StepRecord)> = Vec::new();
    for (row, rank) in rows.iter().enumerate() {
        all.extend(rank.step_records.iter().map(|record| (row, record)));
    }
    all.sort_by_key(|(row, record)| (record.end_ns, *row));
    let mut eras: Vec<Steps<'_>> = vec![Steps::new()];
    let mut processes: Vec<Option<u64>> = vec![None; rows.len()];
    for (row, record) in all {
        let known = processes[row].replace(record.process);
        if known.is_some_and(|known| known != record.process) {
            processes.fill(None);
            processes[row] = Some(record.process);
            eras.push(Steps::new());
        }
        let figures = StepFigures::new(&record.times, record.device.as_ref(), layout.is_split());
        let (Some(era), Some(figures)) = (eras.last_mut(), figures) else { continue };
        let reported = Reported { figures, transfers: record.transfers.as_ref() };
        era.entry(record.times.step).or_insert_with(|| vec![None; rows.len()])[row] = Some(reported);
    }
    let mut eras: Vec<Era> = eras.into_iter().flat_map(|steps| by_basis(steps, ranks, layout)).collect();
    eras.retain(|era| !era.is_empty());
    eras
}

/// Chooses if processes or devices are compared, as the live detector does. A change of that is as a restart.
fn by_basis(steps: Steps<'_>, ranks: &[u32], layout: &Layout) -> Vec<Era> {
    let (mut eras, mut bases) = (vec![Era::new()], Bases::default());
    for (number, reported) in steps {
        let figures: Vec<Option<StepFigures>> = reported.iter().map(|one| one.map(|one| one.figures)).collect();
        let transfers: Vec<Option<&StepTransfers>> =
            reported.iter().map(|one| one.and_then(|one| one.transfers)).collect();
        let known = figures.iter().flatten().count();
        if !is_judged(known, figures.len()) {
            continue;
        }
        let with = figures.iter().flatten().filter(|figures| figures.has_device()).count();
        let basis = match bases.choose(with, known) {
            Choice::Use(basis) => basis,
            Choice::Skip => continue,
            Choice::Restart(basis) => {
                eras.push(Era::new());
                basis
            }
        };
        if let Some(era) = eras.last_mut() {
            let mut rows = rows_by(basis, &figures);
            add_transfers(&mut rows, basis, layout, ranks, &transfers);
            era.insert(number, rows);
        }
    }
    eras
}

/// Leaves out steps in which too few ranks have figures.
fn keep_judged(era: &mut Era) {
    era.retain(|_, rows| {
        let known = rows.iter().filter(|row| row[Series::Compute as usize].is_finite()).count();
        is_judged(known, rows.len())
    });
}

/// Returns the figures of the document.
fn measured(parts: &Parts<'_>, analysis: &Analysis) -> Era {
    let ranks = parts.index.ranks.len();
    let (transfer, send) = (operations(parts, Kind::Collective), operations(parts, Kind::Send));
    let mut era = Era::new();
    for (column, step) in parts.index.steps.iter().enumerate() {
        let mut rows = vec![UNKNOWN; ranks];
        for (row, figures) in rows.iter_mut().enumerate() {
            let ns = |table| cell(table, row, column).map_or(0, |us| us.saturating_mul(1000));
            let Some(own) = cell(&parts.own_us, row, column) else { continue };
            let wall_ns = ns(&analysis.breakdown.total_us);
            let wait_ns = wall_ns.saturating_sub(own.saturating_mul(1000));
            let times = StepTimes {
                step: *step,
                wall_ns,
                wait_ns,
                communication_ns: wait_ns,
                data_loader_ns: ns(&analysis.breakdown.data_loader_us),
                save_checkpoint_ns: ns(&analysis.breakdown.save_checkpoint_us),
                ..StepTimes::default()
            };
            let Some(known) = row_of(&times, false) else { continue };
            *figures = known;
            figures[Series::Transfer as usize] = transfer[row][column];
            figures[Series::Send as usize] = send[row][column];
        }
        era.insert(*step, rows);
    }
    keep_judged(&mut era);
    era
}

/// Returns the time per rank and step in which operations of a kind transferred data, in milliseconds: from the arrival of
/// the last member to the end. NaN: the rank had no such operation, or the wait of one is unknown.
fn operations(parts: &Parts<'_>, kind: Kind) -> Vec<Vec<f32>> {
    let columns = parts.index.steps.len();
    let of_row = |(calls, waits): (&Vec<crate::matches::Call<'_>>, &Vec<Option<u64>>)| {
        let mut sums: Vec<Option<u64>> = vec![None; columns];
        let mut is_unknown = vec![false; columns];
        for (call, wait) in calls.iter().zip(waits).filter(|(call, _)| call.event.kind == kind) {
            let Some(column) = call.column else { continue };
            match wait {
                Some(wait) => {
                    let transfer = call.event.duration_ns.saturating_sub(*wait);
                    sums[column] = Some(sums[column].unwrap_or_default().saturating_add(transfer));
                }
                None => is_unknown[column] = true,
            }
        }
        let value = |(sum, is_unknown): (Option<u64>, bool)| sum.filter(|_| !is_unknown).map_or(f32::NAN, ms);
        sums.into_iter().zip(is_unknown).map(value).collect()
    };
    parts.matches.calls.iter().zip(&parts.waits).map(of_row).collect()
}

/// Returns the median of one series of a rank over a range of steps, in milliseconds; `None` without values. Of saving a
/// checkpoint, only steps with one count.
pub(super) fn median_of(era: &Era, steps: std::ops::RangeInclusive<u64>, row: usize, series: Series) -> Option<f64> {
    if steps.is_empty() {
        return None;
    }
    let values = era.range(steps).filter_map(|(_, rows)| rows.get(row).map(|row| row[series as usize]));
    let is_known = |value: &f32| value.is_finite() && (series != Series::Checkpoint || *value > 0.0);
    crate::tables::median(values.filter(is_known).map(f64::from).collect())
}

fn narrow(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}
