//! Finds the ranks that cause a hang from the positions of all ranks in their process groups: one pure function,
//! [`judge`].
//!
//! It sends no probes and reads no clock: its input may as well come from files.
//!
//! 1. In each group the oldest call that has been in progress for a long time is the one in which the group is stuck.
//!    Members that have called it in the same way as the majority are *waiting*; those that called something else under
//!    its number are *odd*; those that have not reached it are *absent*. A member whose recorded calls are all newer
//!    has called it: an evicted call is not missing. A call that is reported as in progress although a later one of its
//!    group has completed has completed as well: the report of its end was lost.
//! 2. A member that is stopped or silent is the culprit; otherwise one that has ended and is absent.
//! 3. Otherwise the odd ones. If they called what usually follows the omitted call, they have *skipped* it.
//! 4. Otherwise absent members that already wait in another group, and have always made such a call on their way there
//!    before: they have skipped it. The sends and receives from one rank to another count as a group of these two.
//! 5. Otherwise absent members that do not wait in another group: every chain of waiting ranks ends at them. Otherwise
//!    members that left no record, although others did. If all wait in a circle, the culprits are the members that are
//!    in the minority in each of their groups: they have left out the call in which the others wait.
//! 6. If no side is in the majority, no rank is blamed, but the difference is reported.

mod group;
mod habit;

use crate::job::Rank;
use crate::trace::{Call, GroupPosition};
use group::{Group, Stuck};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

/// Facts known about one rank, from which `judge` derives the cause of a hang.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankReport {
    /// Rank that the facts are about.
    pub rank: Rank,
    /// The rank's position in each of its process groups: its latest collective calls; `None` if not known.
    pub groups: Option<Vec<GroupPosition>>,
    /// State of the rank's process.
    pub state: ProcessState,
}

/// State of a rank's process, as a probe has found it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProcessState {
    /// The process runs: it is not stopped, and its heartbeats arrive. The letter is its Linux process state, such as
    /// `S` for sleeping.
    Runs(char),
    /// The process is stopped, or its control group is frozen. The letter is its Linux process state, such as `T`.
    Stopped(char),
    /// The process exists, but has sent no heartbeat for the duration in the field.
    Silent(Duration),
    /// The process exited with code 0.
    Ended,
    /// The process left no record, although processes of other ranks did when the job hung.
    Unreported,
    /// The state of the process is not known.
    #[default]
    Unknown,
}

/// Reason why other ranks wait for a rank in a collective call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HangCause {
    /// The rank's process is stopped, or sends no heartbeat.
    Frozen {
        /// True if the process is stopped; false if it only sends no heartbeat.
        is_certain: bool,
    },
    /// The rank's process exited with code 0 before it made the call in which the others wait.
    Ended,
    /// The rank has skipped the call in which the others wait, and has made the next one.
    Skipped,
    /// The rank has made a different collective call than the other ranks, under the same sequence number of the
    /// process group.
    Mismatch,
    /// The rank has not made the collective call in which the others wait, and waits in no other collective call.
    Missing,
    /// The rank left no record of its calls, although other ranks did when the job hung. It may be dead, or unable to
    /// write.
    Unreported,
}

/// A rank for which other ranks wait. Its `Display` explains the cause, for the engineer that handles the incident.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Culprit {
    /// Rank for which the others wait.
    pub rank: Rank,
    /// Reason why the others wait for this rank.
    pub cause: HangCause,
    /// Name of the process group in which the other ranks wait for this rank.
    pub group: String,
    /// Sequence number, in the process group, of the collective call in which the other ranks wait for this rank.
    pub sequence: u64,
    /// The ranks that wait for this rank in the collective call.
    pub waiting: Vec<Rank>,
    /// Time for which the ranks in `waiting` have waited in the collective call: the longest time of any of them.
    pub since: Duration,
    text: String,
}

impl Culprit {
    /// Returns true if both culprits have the same rank, cause and collective call.
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

/// A disagreement about a collective call, in which no side has a majority of the ranks. Its `Display` describes the
/// difference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dispute {
    /// Name of the process group whose members disagree.
    pub group: String,
    /// Sequence number, in the process group, of the collective call about which the members disagree.
    pub sequence: u64,
    /// How long the disagreement has lasted.
    pub since: Duration,
    /// True if it may end by itself: ranks wait in a circle that contains sends or receives, which programs often begin
    /// long before they wait for them.
    pub may_resolve: bool,
    text: String,
}

impl Dispute {
    /// Returns true if both disagreements are about the same collective call.
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

/// The result of [`judge`]: the ranks that cause a hang, or a disagreement between ranks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HangVerdict {
    /// The ranks that cause the hang; empty if none is known. All are found by the same kind of evidence: the most
    /// conclusive kind that exists.
    pub culprits: Vec<Culprit>,
    /// A disagreement between ranks about a collective call, if it is not known which side is right.
    pub dispute: Option<Dispute>,
    /// True if a collective call of any process group has been in progress for at least the argument `pending_min` of
    /// `judge`.
    pub is_stuck: bool,
}

/// Finds the ranks for which others have waited in a collective call for at least `pending_min`, and the cause.
///
/// ```
/// # extern crate taskd_kernel as taskd_core;
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
    let ways = [frozen, ended, odd, left_out, absent, unreported, circle];
    let culprits = ways.iter().map(|way| way(reports, &stuck)).find(|found| !found.is_empty()).unwrap_or_default();
    let dispute = if culprits.is_empty() { dispute(&stuck) } else { None };
    HangVerdict { culprits, dispute, is_stuck: !stuck.is_empty() }
}

/// Finds ranks that have made another collective call than the majority under the same sequence number of a process
/// group, even if no rank waits.
///
/// No time limit is needed: all members of a group make the same call under one sequence number, however many calls
/// each has made.
#[must_use]
pub fn disagreement(reports: &[RankReport]) -> Vec<Culprit> {
    let groups = Group::gather(reports);
    let stuck: Vec<Stuck<'_>> = groups.iter().filter_map(|group| group.stuck(reports, Duration::ZERO)).collect();
    odd(reports, &stuck)
}

/// Finds group members whose process is stopped or sends no heartbeat.
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
        let called = if place.absent.contains(&rank.0) { " and has not made this call" } else { "" };
        let text = format!("{rank} is frozen: {how}{called}; {place} waits for {rank}");
        culprits.push(place.culprit(rank.0, HangCause::Frozen { is_certain }, text));
    }
    culprits
}

/// Finds group members whose process ended before it made the call.
fn ended(reports: &[RankReport], stuck: &[Stuck<'_>]) -> Vec<Culprit> {
    let ended = reports.iter().filter(|report| report.state == ProcessState::Ended);
    let culprit = |report: &RankReport| {
        let rank = report.rank;
        let place = stuck.iter().find(|s| s.absent.contains(&rank.0) || s.unknown.contains(&rank.0))?;
        let text = format!("{rank} has ended, and {place} waits for it: it made fewer calls than the other ranks");
        Some(place.culprit(rank.0, HangCause::Ended, text))
    };
    ended.filter_map(culprit).collect()
}

/// Finds group members that have made another call under the same sequence number.
fn odd(_: &[RankReport], stuck: &[Stuck<'_>]) -> Vec<Culprit> {
    let mut culprits = Vec::new();
    for place in stuck {
        for (rank, call) in &place.odd {
            let (cause, how) = match place.skips_to(call) {
                true => (HangCause::Skipped, "has skipped"),
                false => (HangCause::Mismatch, "does not take part in"),
            };
            let text = format!("{} {how} {place}: it has called {} instead", Rank(*rank), words(call));
            culprits.push(place.culprit(*rank, cause, text));
        }
    }
    culprits
}

/// Finds members that already wait in another group, and have omitted the call on their way there: they have always made
/// it before.
fn left_out(reports: &[RankReport], stuck: &[Stuck<'_>]) -> Vec<Culprit> {
    let mut culprits = Vec::new();
    for place in stuck {
        for report in reports.iter().filter(|report| place.absent.contains(&report.rank.0)) {
            let rank = report.rank;
            let waits = stuck.iter().find_map(|s| Some((s, *s.calling.get(&rank.0)?)));
            let Some((elsewhere, call)) = waits else { continue };
            if habit::has_omitted(report, (elsewhere.group.name, call), place) {
                let (call, group) = (words(call), elsewhere.group.name);
                let text = format!("{rank} has skipped {place}: it waits in {call} of group {group}");
                culprits.push(place.culprit(rank.0, HangCause::Skipped, text));
            }
        }
    }
    culprits
}

/// Finds members that have not reached the call, and do not wait in another group.
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

/// Finds members that left no record of their calls, although others did.
fn unreported(reports: &[RankReport], stuck: &[Stuck<'_>]) -> Vec<Culprit> {
    let silent = reports.iter().filter(|report| report.state == ProcessState::Unreported);
    let culprit = |report: &RankReport| {
        let rank = report.rank;
        let place = stuck.iter().find(|s| s.unknown.contains(&rank.0))?;
        let text = format!(
            "{rank} left no record of its calls, although other ranks did, and {place} waits: {rank} is dead, or unable \
             to write"
        );
        Some(place.culprit(rank.0, HangCause::Unreported, text))
    };
    silent.filter_map(culprit).collect()
}

/// Handles ranks that all wait for each other: finds the members that are in the minority in every stuck group with
/// absent members.
fn circle(_: &[RankReport], stuck: &[Stuck<'_>]) -> Vec<Culprit> {
    let blocked = blocked(stuck);
    let places = || blocked.iter().copied();
    let minorities: Option<Vec<BTreeSet<u32>>> = places().map(Stuck::minority).collect();
    let Some(minority) = minorities.into_iter().flatten().reduce(|a, b| &a & &b) else { return Vec::new() };
    let culprit = |rank: u32| {
        let left_out = places().find(|s| s.absent.contains(&rank))?;
        let (place, call) = places().find_map(|s| Some((s, s.calling.get(&rank)?)))?;
        let text = format!(
            "{} has skipped {left_out}, and waits for other ranks in {} of group {}",
            Rank(rank),
            words(call),
            place.group.name
        );
        Some(left_out.culprit(rank, HangCause::Skipped, text))
    };
    minority.into_iter().filter_map(culprit).collect()
}

/// Returns the calls that cannot complete by themselves: they wait for a member that waits for other ranks in such a call.
/// A call that all members have made is slow, and those that wait in it will come.
fn blocked<'s, 'a>(stuck: &'s [Stuck<'a>]) -> Vec<&'s Stuck<'a>> {
    let waiting: BTreeSet<u32> = stuck.iter().flat_map(|s| s.calling.keys().chain(s.odd.keys()).copied()).collect();
    let mut coming: BTreeSet<u32> = stuck.iter().flat_map(|s| &s.absent - &waiting).collect();
    loop {
        let known = coming.len();
        for place in stuck.iter().filter(|s| s.unknown.is_empty() && s.shapes.len() == 1) {
            if place.absent.is_subset(&coming) {
                coming.extend(place.calling.keys());
            }
        }
        if coming.len() == known {
            return stuck.iter().filter(|s| !s.absent.is_subset(&coming)).collect();
        }
    }
}

/// Describes the disagreement that has lasted longest.
fn dispute(stuck: &[Stuck<'_>]) -> Option<Dispute> {
    let blocked = blocked(stuck).into_iter().filter(|s| s.unknown.is_empty());
    let place = stuck.iter().filter(|s| s.is_tied()).chain(blocked).max_by_key(|s| s.since())?;
    let text = if place.is_tied() {
        let sides: Vec<String> = place.sides().map(|(call, who)| format!("{} {call}", ranks(&who))).collect();
        format!(
            "the members of group {} have made different calls under number {}: {}",
            place.group.name,
            place.sequence,
            sides.join(", ")
        )
    } else {
        let missing: Vec<Rank> = place.absent.iter().copied().map(Rank).collect();
        format!(
            "{place} waits for {}, which wait for other ranks in other groups: the groups are called in different \
             orders",
            ranks(&missing)
        )
    };
    let may_resolve = !place.is_tied() && stuck.iter().any(|s| s.group.is_point_to_point);
    let (group, sequence, since) = (place.group.name.to_owned(), place.sequence, place.since());
    Some(Dispute { group, sequence, since, may_resolve, text })
}

/// Describes a call, for people.
fn words(call: &Call) -> String {
    match call.elements {
        0 => call.operation.clone(),
        elements => format!("{} of {elements} {}", call.operation, call.data_type),
    }
}

/// Maximum number of ranks that a sentence names.
const NAMED_MAX: usize = 8;

/// Formats ranks, for people: `ranks 0, 1 and 3`.
pub(super) fn ranks(ranks: &[Rank]) -> String {
    let named: Vec<String> = ranks.iter().take(NAMED_MAX).map(|rank| rank.0.to_string()).collect();
    match (ranks.len(), named.split_last()) {
        (0, _) | (_, None) => "no rank".to_owned(),
        (1, Some((only, _))) => format!("rank {only}"),
        (count, _) if count > NAMED_MAX => format!("ranks {} and {} more", named.join(", "), count - NAMED_MAX),
        (_, Some((last, others))) => format!("ranks {} and {last}", others.join(", ")),
    }
}

#[cfg(test)]
mod tests;
