//! How long each communication waited for other ranks.
//!
//! The trace's own figure counts if it has one. Otherwise a member of a collective waits from its start to the latest
//! start of all members, by aligned clocks, and one side of a send waits for the start of the other side; a wait is never
//! longer than the event. If a member's clock drifts, its starts say nothing: all members end together, so that a member
//! waits for as much as its event is longer than the shortest one.

use crate::clocks::Alignment;
use crate::matches::Matches;
use crate::pairing::Pairs;

/// Waits in nanoseconds of each row, in the order of [`Matches::calls`]; `None`: unknown.
pub(crate) type Waits = Vec<Vec<Option<u64>>>;

/// Returns the waits of all communication events.
pub(crate) fn waits(matches: &Matches<'_>, pairs: &Pairs, alignment: &Alignment) -> Waits {
    let recorded = |details: Option<&crate::model::Communication>| details.and_then(|details| details.wait_ns);
    let mut waits: Waits =
        matches.calls.iter().map(|calls| calls.iter().map(|call| recorded(call.details)).collect()).collect();
    for run in &matches.runs {
        let members = matches.members(run);
        wait_together(matches, members, alignment, run.is_synchronous, &mut waits);
    }
    for pair in &pairs.pairs {
        wait_together(matches, &[pair.send, pair.receive], alignment, true, &mut waits);
    }
    waits
}

/// Sets the waits of operations that wait for each other.
fn wait_together(
    matches: &Matches<'_>,
    members: &[(u32, u32)],
    alignment: &Alignment,
    ends_together: bool,
    waits: &mut Waits,
) {
    let start =
        |member: &(u32, u32)| matches.event(*member).start_ns.saturating_sub(alignment.offsets[member.0 as usize]);
    let length = |member: &(u32, u32)| matches.event(*member).duration_ns;
    let drifts = ends_together && members.iter().any(|member| alignment.drifts[member.0 as usize]);
    let latest = members.iter().map(start).max().unwrap_or_default();
    let shortest = members.iter().map(length).min().unwrap_or_default();
    for member in members {
        let wait = &mut waits[member.0 as usize][member.1 as usize];
        if wait.is_none() {
            let waited = if drifts { length(member) - shortest } else { latest.abs_diff(start(member)) };
            *wait = Some(waited.min(length(member)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::waits;
    use crate::clocks::align;
    use crate::index::Index;
    use crate::matches::Matches;
    use crate::pairing::Pairs;
    use crate::synthetic::{Job, trace};

    /// Waits of all communication in a synthetic trace, by start of the event.
    fn of(job: &Job, drift: bool) -> Vec<Vec<Option<u64>>> {
        let trace = trace(job, 3);
        let index = Index::new(&trace);
        let matches = Matches::new(&index);
        let pairs = Pairs::new(&index, &matches);
        let mut alignment = align(&index, &matches, &pairs);
        if drift {
            alignment.drifts.fill(true);
        }
        waits(&matches, &pairs, &alignment)
    }

    #[test]
    fn waits_from_matches_equal_the_recorded_ones() {
        let recorded = of(&Job { records_wait: true, ..Job::default() }, false);
        assert!(recorded.iter().flatten().any(|wait| wait.is_some_and(|wait| wait > 100_000)));
        assert_eq!(of(&Job::default(), false), recorded);
    }

    #[test]
    fn waits_of_drifting_clocks_come_from_durations() {
        assert_eq!(of(&Job::default(), true), of(&Job { records_wait: true, ..Job::default() }, false));
    }
}
