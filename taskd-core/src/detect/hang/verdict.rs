//! Who a hang comes from, of where all ranks stand in their process groups: one pure function, [`judge`].
//!
//! It asks nobody and knows no time: what it is given may as well come from files.
//!
//! 1. In each group the oldest call that is under way for long is the one in which it is stuck. Members that have called it
//!    in the way in which most have are *waiting*; those that called something else under its number are *odd*; those
//!    that have not come to it are *absent*. A member whose last calls are all newer has called it: what was evicted is not
//!    missing. A call that is said to be under way, though a later one of its group is over, is over as well: its end was
//!    lost.
//! 2. A member that is stopped, or silent, is the culprit. Else one that has ended and is absent.
//! 3. Else the odd ones. If what they called is what used to follow the call that they left out, they have *skipped* it.
//! 4. Else absent ones that wait in another group already, and have made fewer such calls than ever on their way there: they
//!    have skipped it.
//! 5. Else absent ones which do not wait in another group: following who waits for whom ends at them. If all wait in a circle,
//!    it is who is in the minority in each of its groups: they have left out the call in which the others wait.
//! 6. Where no side is in the majority nobody is blamed, but what differs is told.

mod group;
mod habit;

use crate::job::Rank;
use crate::trace::{Call, GroupPosition};
use group::{Group, Stuck};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

/// What is known of one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankReport {
    /// Which.
    pub rank: Rank,
    /// Where it stands in its groups; `None` where that is not known.
    pub groups: Option<Vec<GroupPosition>>,
    /// How its process is.
    pub state: ProcessState,
}

/// How a rank's process is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProcessState {
    /// It is there, in the state that Linux shows by this letter.
    Runs(char),
    /// It is stopped, in the state that Linux shows by this letter.
    Stopped(char),
    /// It is there, and has given no sign of life for so long.
    Silent(Duration),
    /// It has ended well.
    Ended,
    /// Nobody knows.
    #[default]
    Unknown,
}

/// Why others wait for a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HangCause {
    /// Its process does not run.
    Frozen {
        /// It is stopped; else it only gives no sign of life.
        is_certain: bool,
    },
    /// Its process has ended.
    Ended,
    /// It has left out the call, and has made the next one.
    Skipped,
    /// It has called something else.
    Mismatch,
    /// It has not come to the call.
    Missing,
}

/// A rank that others wait for. Its text says why, for whoever has to look after it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Culprit {
    /// Which.
    pub rank: Rank,
    /// Why.
    pub cause: HangCause,
    /// The group in which the others wait.
    pub group: String,
    /// The number of the call in which they wait.
    pub sequence: u64,
    /// Who waits there.
    pub waiting: Vec<Rank>,
    /// For how long.
    pub since: Duration,
    text: String,
}

impl Culprit {
    /// Whether both name the same rank for the same.
    #[must_use]
    pub fn is_same(&self, other: &Culprit) -> bool {
        let key = |c: &Culprit| (c.rank, c.cause, c.sequence);
        key(self) == key(other) && self.group == other.group
    }
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Ranks that disagree, without a majority. Its text says about what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dispute {
    /// The group.
    pub group: String,
    /// The number of the call.
    pub sequence: u64,
    /// For how long.
    pub since: Duration,
    text: String,
}

impl Dispute {
    /// Whether both are about the same call.
    #[must_use]
    pub fn is_same(&self, other: &Dispute) -> bool {
        (&self.group, self.sequence) == (&other.group, other.sequence)
    }
}

impl fmt::Display for Dispute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What can be said of a hang.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HangVerdict {
    /// Whom it comes from; only those for whom there is the best evidence.
    pub culprits: Vec<Culprit>,
    /// What ranks disagree about, where it is not known who is right.
    pub dispute: Option<Dispute>,
    /// Whether some call is under way for long at all.
    pub is_stuck: bool,
}

/// Finds whom it comes from that calls are under way for at least `pending_min`.
///
/// ```
/// use std::time::Duration;
/// use taskd_core::detect::hang::{HangCause, ProcessState, RankReport, judge};
/// use taskd_core::job::Rank;
/// use taskd_core::trace::{Call, GroupPosition};
///
/// let call = |sequence, is_pending| Call {
///     sequence,
///     operation: "allreduce".into(),
///     elements: 1024,
///     data_type: "f32".into(),
///     begun: Duration::from_secs(3),
///     is_pending,
/// };
/// let group = |recent| GroupPosition { group: "default".into(), members: vec![0, 1, 2], recent };
/// let report = |rank, recent| RankReport {
///     rank: Rank(rank),
///     groups: Some(vec![group(recent)]),
///     state: ProcessState::Runs('S'),
/// };
/// let waits = || vec![call(7, false), call(8, true)];
/// let verdict = judge(&[report(0, waits()), report(1, vec![call(7, false)]), report(2, waits())], Duration::from_secs(1));
/// assert_eq!((verdict.culprits[0].rank, verdict.culprits[0].cause), (Rank(1), HangCause::Missing));
/// ```
#[must_use]
pub fn judge(reports: &[RankReport], pending_min: Duration) -> HangVerdict {
    let groups = Group::gather(reports);
    let stuck: Vec<Stuck<'_>> = groups.iter().filter_map(|group| group.stuck(reports, pending_min)).collect();
    let ways = [frozen, ended, odd, left_out, absent, circle];
    let culprits = ways.iter().map(|way| way(reports, &stuck)).find(|found| !found.is_empty()).unwrap_or_default();
    let dispute = if culprits.is_empty() { dispute(&stuck) } else { None };
    HangVerdict { culprits, dispute, is_stuck: !stuck.is_empty() }
}

/// Who has called something else than most others under the same number of a group, whoever waits or not.
///
/// It needs no time: under one number all members of a group call the same, however far each of them is.
#[must_use]
pub fn disagreement(reports: &[RankReport]) -> Vec<Culprit> {
    let groups = Group::gather(reports);
    let stuck: Vec<Stuck<'_>> = groups.iter().filter_map(|group| group.stuck(reports, Duration::ZERO)).collect();
    odd(reports, &stuck)
}

/// Members whose process does not run.
fn frozen(reports: &[RankReport], stuck: &[Stuck<'_>]) -> Vec<Culprit> {
    let mut culprits = Vec::new();
    for RankReport { rank, state, .. } in reports {
        let (is_certain, how) = match state {
            ProcessState::Stopped(letter) => (true, format!("its process is stopped (state {letter})")),
            ProcessState::Silent(age) => {
                (false, format!("its process has had no heartbeat for {:.1} s", age.as_secs_f64()))
            }
            _ => continue,
        };
        let of_it = || stuck.iter().filter(|s| s.group.members.contains(&rank.0));
        let Some(place) = of_it().find(|s| s.absent.contains(&rank.0)).or_else(|| of_it().next()) else { continue };
        let called = if place.absent.contains(&rank.0) { " without having called it" } else { "" };
        let text = format!("{rank} is frozen: {how}{called}; {place} waits for it");
        culprits.push(place.culprit(rank.0, HangCause::Frozen { is_certain }, text));
    }
    culprits
}

/// Members that have ended before they came to the call.
fn ended(reports: &[RankReport], stuck: &[Stuck<'_>]) -> Vec<Culprit> {
    let ended = reports.iter().filter(|report| report.state == ProcessState::Ended);
    let culprit = |report: &RankReport| {
        let rank = report.rank;
        let place = stuck.iter().find(|s| s.absent.contains(&rank.0) || s.unknown.contains(&rank.0))?;
        let text = format!("{rank} has ended, and {place} waits for it: its program made fewer calls than the others'");
        Some(place.culprit(rank.0, HangCause::Ended, text))
    };
    ended.filter_map(culprit).collect()
}

/// Members that have called something else.
fn odd(_: &[RankReport], stuck: &[Stuck<'_>]) -> Vec<Culprit> {
    let mut culprits = Vec::new();
    for place in stuck {
        for (rank, call) in &place.odd {
            let (cause, how) = match place.skips_to(call) {
                true => (HangCause::Skipped, "has left out"),
                false => (HangCause::Mismatch, "does not take part in"),
            };
            let text = format!("{} {how} {place}: it has called {} instead", Rank(*rank), words(call));
            culprits.push(place.culprit(*rank, cause, text));
        }
    }
    culprits
}

/// Members that wait elsewhere already, and have made fewer of these calls on their way there than ever before.
fn left_out(reports: &[RankReport], stuck: &[Stuck<'_>]) -> Vec<Culprit> {
    let mut culprits = Vec::new();
    for place in stuck {
        for report in reports.iter().filter(|report| place.absent.contains(&report.rank.0)) {
            let rank = report.rank;
            let waits = stuck.iter().find_map(|s| Some((s, *s.calling.get(&rank.0)?)));
            let Some((elsewhere, call)) = waits else { continue };
            if habit::is_short(report, (elsewhere.group.name, call), place) {
                let (call, group) = (words(call), elsewhere.group.name);
                let text =
                    format!("{rank} has left out {place}: it has gone on to {call} of group {group}, where it waits");
                culprits.push(place.culprit(rank.0, HangCause::Skipped, text));
            }
        }
    }
    culprits
}

/// Members that have not come to the call, and do not wait elsewhere.
fn absent(_: &[RankReport], stuck: &[Stuck<'_>]) -> Vec<Culprit> {
    let waits = |rank: u32| stuck.iter().any(|s| s.calling.contains_key(&rank));
    let mut culprits: Vec<Culprit> = Vec::new();
    for place in stuck {
        for rank in place.absent.iter().filter(|rank| !waits(**rank)) {
            let text = format!("{} has not called {place}, and waits in no other collective", Rank(*rank));
            culprits.push(place.culprit(*rank, HangCause::Missing, text));
        }
    }
    culprits
}

/// All wait for each other: members that are in the minority wherever that is so.
fn circle(_: &[RankReport], stuck: &[Stuck<'_>]) -> Vec<Culprit> {
    let places = || stuck.iter().filter(|s| !s.absent.is_empty());
    let minorities: Option<Vec<BTreeSet<u32>>> = places().map(Stuck::minority).collect();
    let Some(minority) = minorities.into_iter().flatten().reduce(|a, b| &a & &b) else { return Vec::new() };
    let culprit = |rank: u32| {
        let left_out = places().find(|s| s.absent.contains(&rank))?;
        let (place, call) = places().find_map(|s| Some((s, s.calling.get(&rank)?)))?;
        let text = format!(
            "{} has left out {left_out}, and is in {} of group {}, where it waits for others",
            Rank(rank),
            words(call),
            place.group.name
        );
        Some(left_out.culprit(rank, HangCause::Skipped, text))
    };
    minority.into_iter().filter_map(culprit).collect()
}

/// What ranks disagree about, of the longest.
fn dispute(stuck: &[Stuck<'_>]) -> Option<Dispute> {
    let open = |s: &&Stuck<'_>| s.is_tied() || !s.absent.is_empty() && s.unknown.is_empty();
    let place = stuck.iter().filter(open).max_by_key(|s| s.since())?;
    let text = if place.is_tied() {
        let sides: Vec<String> = place.sides().map(|(call, who)| format!("{} {call}", ranks(&who))).collect();
        format!(
            "the members of group {} have called different things under number {}: {}",
            place.group.name,
            place.sequence,
            sides.join(", ")
        )
    } else {
        let missing: Vec<Rank> = place.absent.iter().copied().map(Rank).collect();
        format!(
            "{place} waits for {}, which wait in other groups for others: the groups are called in different orders",
            ranks(&missing)
        )
    };
    Some(Dispute { group: place.group.name.to_owned(), sequence: place.sequence, since: place.since(), text })
}

/// A call for people.
fn words(call: &Call) -> String {
    match call.elements {
        0 => call.operation.clone(),
        elements => format!("{} of {elements} {}", call.operation, call.data_type),
    }
}

/// Most ranks that a sentence names.
const NAMED_MAX: usize = 8;

/// Ranks for people: `ranks 0, 1 and 3`.
pub(super) fn ranks(ranks: &[Rank]) -> String {
    let named: Vec<String> = ranks.iter().take(NAMED_MAX).map(|rank| rank.0.to_string()).collect();
    match (ranks.len(), named.split_last()) {
        (0, _) | (_, None) => "nobody".to_owned(),
        (1, Some((only, _))) => format!("rank {only}"),
        (count, _) if count > NAMED_MAX => format!("ranks {} and {} more", named.join(", "), count - NAMED_MAX),
        (_, Some((last, others))) => format!("ranks {} and {last}", others.join(", ")),
    }
}

#[cfg(test)]
mod tests;
