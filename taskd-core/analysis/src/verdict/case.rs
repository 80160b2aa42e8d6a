//! A verdict of the engine with the figures of its ranks and of their peers, before and since its onset.

use super::judge::Found;
use super::rows::{Era, Job, median_of};
use crate::document::{Analysis, Blame, ComparedRank, EvidenceItem};
use crate::tables::{capitalized, median, rounded};
use std::ops::RangeInclusive;
use taskd_kernel::detect::fail_slow::{Cause, Component, Series, Verdict, WARM_UP_STEPS};

/// Maximum number of suspects, and of peers, in the table of a blame.
const COMPARED_MAX: usize = 8;
/// Part of the excess by which another figure may have grown without being a cause as well.
const RULED_OUT: f64 = 0.25;
const US_PER_MS: f64 = 1000.0;

/// Medians of a series in milliseconds per step, before and since the onset.
#[derive(Clone, Copy, Debug)]
struct Change {
    before: Option<f64>,
    since: Option<f64>,
}

impl Change {
    fn grown(self) -> Option<f64> {
        Some(self.since? - self.before?)
    }
}

/// A verdict and its figures.
pub(super) struct Case<'a> {
    job: &'a Job,
    analysis: &'a Analysis,
    era: &'a Era,
    found: &'a Found,
    series: Series,
    suspects: Vec<usize>,
    peers: Vec<usize>,
    before: RangeInclusive<u64>,
    since: RangeInclusive<u64>,
}

impl<'a> Case<'a> {
    pub(super) fn new(job: &'a Job, analysis: &'a Analysis, found: &'a Found) -> Option<Case<'a>> {
        let era = job.eras.get(found.era)?;
        let verdict = &found.verdict;
        let (first, last) = (era.keys().nth(WARM_UP_STEPS as usize)?, era.keys().next_back()?);
        let suspects: Vec<usize> = verdict.ranks.iter().map(|rank| *rank as usize).collect();
        let stage = |row: usize| job.layout.places().get(row).map(|place| place.stage);
        let is_role = matches!(verdict.cause, Cause::SlowRank | Cause::SlowHost | Cause::UnevenLoad);
        let of_role = |row: &usize| !is_role || suspects.iter().any(|suspect| stage(*suspect) == stage(*row));
        let peers = (0..analysis.ranks.len()).filter(|row| !suspects.contains(row) && of_role(row)).collect();
        let onset = verdict.onset_step;
        let series = series_of(verdict, |series| {
            let has = |rows: &Vec<taskd_kernel::detect::fail_slow::Row>| {
                suspects.iter().any(|row| rows.get(*row).is_some_and(|row| row[series as usize].is_finite()))
            };
            era.values().any(has)
        });
        let before = if onset > *first { *first..=onset - 1 } else { RangeInclusive::new(1, 0) };
        Some(Case {
            job,
            analysis,
            era,
            found,
            series,
            suspects,
            peers,
            before,
            since: onset..=found.until.unwrap_or(*last),
        })
    }

    /// Returns the component in words.
    pub(super) fn component(&self) -> String {
        let rank = |at: &u32| self.analysis.ranks.get(*at as usize).map_or(*at, |info| info.rank);
        match &self.found.verdict.component {
            Component::Rank(at) => format!("rank {}", rank(at)),
            Component::Host(host) => {
                let name = self.job.hosts.get(*host as usize);
                name.map_or_else(|| format!("host {host}"), |name| format!("host {name}"))
            }
            Component::Stage(stage) => format!("stage {stage}"),
            Component::Replica(replica) => format!("replica {replica}"),
            Component::Group(id) => {
                self.job.groups.get(id).map_or_else(|| id.to_string(), |name| format!("group {name}"))
            }
            Component::Link(a, b) => format!("link {} <-> {}", rank(a), rank(b)),
            Component::Job => "the job".to_owned(),
        }
    }

    /// Returns the blame, with its evidence and what was ruled out.
    pub(super) fn blame(&self) -> Blame {
        let verdict = &self.found.verdict;
        let mut evidence: Vec<EvidenceItem> = self.own().into_iter().collect();
        evidence.extend(verdict.evidence.iter().map(|clue| EvidenceItem {
            what: clue.what.to_string(),
            value: clue.value.map(rounded),
            usual: clue.usual.map(rounded),
            text: capitalized(&clue.text) + ".",
        }));
        if let Some(until) = self.found.until {
            let text = format!("It had its usual times again after step {until}.");
            evidence.push(EvidenceItem { what: "last affected step".to_owned(), value: None, usual: None, text });
        }
        Blame {
            component: self.component(),
            ranks: self.suspects.iter().filter_map(|row| Some(self.analysis.ranks.get(*row)?.rank)).collect(),
            cause: verdict.cause.name().to_owned(),
            onset_step: Some(verdict.onset_step),
            slowdown_percent: rounded(f64::from(verdict.slowdown_percent)),
            confidence_permille: verdict.confidence_permille,
            evidence,
            judged_by: super::BY_ENGINE.to_owned(),
            until_step: self.found.until,
            compared_by: quantity(self.series).to_owned(),
            compared: self.compared(),
            ruled_out: self.ruled_out(),
            ..Blame::default()
        }
    }

    /// Returns the figures of the suspects beside those of their peers.
    fn own(&self) -> Option<EvidenceItem> {
        let own = self.change(&self.suspects, self.series);
        let since = own.since?;
        let what = quantity(self.series);
        let before = own.before.map_or_else(String::new, |before| format!(", {before:.1} ms before"));
        let mut values: Vec<f64> =
            self.peers.iter().filter_map(|row| median_of(self.era, self.since.clone(), *row, self.series)).collect();
        values.sort_by(f64::total_cmp);
        let peers = match (values.first(), values.last(), median(values.clone())) {
            (Some(least), Some(most), Some(middle)) => {
                format!("; its {} peers need {middle:.1} ms ({least:.1} to {most:.1} ms)", values.len())
            }
            _ => String::new(),
        };
        let (component, onset) = (capitalized(&self.component()), self.found.verdict.onset_step);
        let text = format!("{component} needs {since:.1} ms per step for {what} since step {onset}{before}{peers}.");
        let usual = median(values).or(own.before).map(rounded);
        Some(EvidenceItem { what: format!("{what} per step in ms"), value: Some(rounded(since)), usual, text })
    }

    /// Returns the suspects, and the peers with the largest figures.
    fn compared(&self) -> Vec<ComparedRank> {
        let of = |rows: &[usize], is_suspect: bool| {
            let one = |row: &usize| {
                let us = |range: &RangeInclusive<u64>, series| {
                    median_of(self.era, range.clone(), *row, series).map(|ms| rounded(ms * US_PER_MS))
                };
                Some(ComparedRank {
                    rank: self.analysis.ranks.get(*row)?.rank,
                    is_suspect,
                    before_us: us(&self.before, self.series),
                    since_us: us(&self.since, self.series),
                    wait_us: us(&self.since, Series::Wait),
                })
            };
            let mut ranks: Vec<ComparedRank> = rows.iter().filter_map(one).collect();
            ranks.sort_by(|a, b| b.since_us.unwrap_or(-1.0).total_cmp(&a.since_us.unwrap_or(-1.0)));
            ranks.truncate(COMPARED_MAX);
            ranks
        };
        let mut compared = of(&self.suspects, true);
        compared.extend(of(&self.peers, false));
        compared
    }

    fn change(&self, rows: &[usize], series: Series) -> Change {
        let of = |range: &RangeInclusive<u64>| {
            median(rows.iter().filter_map(|row| median_of(self.era, range.clone(), *row, series)).collect())
        };
        Change { before: of(&self.before), since: of(&self.since) }
    }

    /// Returns the other explanations, each with the figures that contradict it, or that do not.
    fn ruled_out(&self) -> Vec<EvidenceItem> {
        let Some(excess) = self.change(&self.suspects, self.series).grown().filter(|excess| *excess > 0.0) else {
            return Vec::new();
        };
        let mut items = Vec::new();
        let others = [
            (Series::Compute, "slow-rank"),
            (Series::Data, "slow-input"),
            (Series::Checkpoint, "slow-checkpoint"),
            (Series::Transfer, "slow-link"),
        ];
        for (series, cause) in others.into_iter().filter(|(series, _)| *series != self.series) {
            let change = self.change(&self.suspects, series);
            let is_used = series != Series::Checkpoint || change.since.is_some_and(|ms| ms > 0.0);
            if is_used {
                items.extend(item(cause, "its", quantity(series), change, excess));
            }
        }
        items.extend(item(
            "global-slowdown",
            "its peers'",
            quantity(self.series),
            self.change(&self.peers, self.series),
            excess,
        ));
        if matches!(self.found.verdict.component, Component::Rank(_)) {
            items.extend(
                self.neighbours("slow-host", "the other ranks of its host", excess, |place| u64::from(place.host)),
            );
            items.extend(
                self.neighbours("slow-stage", "the other ranks of its stage", excess, |place| u64::from(place.stage)),
            );
        }
        items.extend(self.single_steps());
        items
    }

    /// Rules out a component that contains the suspect, if the job has several of its kind.
    fn neighbours(
        &self,
        cause: &str,
        whose: &str,
        excess: f64,
        unit: impl Fn(&taskd_kernel::detect::fail_slow::Place) -> u64,
    ) -> Option<EvidenceItem> {
        let places = self.job.layout.places();
        let own = unit(places.get(*self.suspects.first()?)?);
        let rows = (0..places.len()).filter(|row| !self.suspects.contains(row));
        let (inside, outside): (Vec<usize>, Vec<usize>) = rows.partition(|row| unit(&places[*row]) == own);
        if inside.is_empty() || outside.is_empty() {
            return None;
        }
        item(cause, whose, quantity(self.series), self.change(&inside, self.series), excess)
    }

    /// Rules out single long steps, such as those of long sequences or of garbage collection.
    fn single_steps(&self) -> Option<EvidenceItem> {
        let change = self.change(&self.suspects, self.series);
        let middle = f64::midpoint(change.before?, change.since?);
        let row = *self.suspects.first()?;
        let values = self.era.range(self.since.clone()).filter_map(|(_, rows)| rows.get(row));
        let values = values.map(|row| f64::from(row[self.series as usize])).filter(|value| *value > 0.0);
        let (long, all) = values.fold((0u32, 0u32), |(long, all), ms| (long + u32::from(ms > middle), all + 1));
        let text = format!(
            "It is slow in {long} of {all} steps since the onset: single long steps, as of long sequences or of garbage \
             collection, do not explain it."
        );
        let (value, usual) = (Some(f64::from(long)), Some(f64::from(all)));
        let what = "uneven-load: slow steps since the onset".to_owned();
        (long * 5 >= all * 4).then_some(EvidenceItem { what, value, usual, text })
    }
}

fn item(cause: &str, owner: &str, what: &str, change: Change, excess: f64) -> Option<EvidenceItem> {
    let (since, before) = (change.since?, change.before?);
    let is_ruled_out = since - before < RULED_OUT * excess;
    let result = if is_ruled_out { "this is not the cause" } else { "this became longer, too" };
    let (value, usual) = (Some(rounded(since)), Some(rounded(before)));
    let text = format!(
        "{}: {owner} {what} takes {since:.1} ms per step, {before:.1} ms before: {result}.",
        if is_ruled_out { format!("Not {cause}") } else { format!("Perhaps also {cause}") }
    );
    Some(EvidenceItem { what: format!("{cause}: {what} per step in ms"), value, usual, text })
}

/// Returns the series that a verdict is about. `has` returns true if the suspects have figures of a series.
fn series_of(verdict: &Verdict, has: impl Fn(Series) -> bool) -> Series {
    match (verdict.cause, &verdict.component) {
        (Cause::SlowInput, _) => Series::Data,
        (Cause::SlowCheckpoint, _) => Series::Checkpoint,
        (Cause::SlowLink, Component::Link(..)) => Series::Send,
        (Cause::SlowLink, _) if has(Series::Transfer) => Series::Transfer,
        (Cause::SlowLink, _) => Series::Wait,
        _ => Series::Compute,
    }
}

const fn quantity(series: Series) -> &'static str {
    match series {
        Series::Compute => "own computation",
        Series::Wait => "waiting for other ranks",
        Series::Transfer => "transfers of collectives",
        Series::Send => "sends",
        Series::Data => "waiting for data",
        Series::Checkpoint => "saving a checkpoint",
        Series::Forward => "forward pass",
        Series::Cpu => "time on a CPU",
    }
}
