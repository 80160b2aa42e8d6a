//! From the records of taskd's own stores to the trace model.
//!
//! It opens no file: the caller passes the batches that a store's reader returns.

mod process;
#[cfg(test)]
mod tests;

use crate::model::{Missing, RankTrace, Trace};
use process::Process;
use std::collections::BTreeMap;
use taskd_runtime::job::Incarnation;
use taskd_runtime::trace::RecordBatch;

/// Maximum number of events that are kept of one rank; later ones are counted, and reported as missing.
pub const EVENTS_MAX: usize = 4_000_000;

/// Collects the records of all ranks, batch by batch, as a [`Trace`].
///
/// Batches of one process must come in the order of recording; those of several processes may be mixed. The processes
/// that a restarted rank has had become one rank of the trace, one after the other.
#[derive(Debug, Default)]
pub struct Records {
    ranks: BTreeMap<u32, Rank>,
    is_running: bool,
}

/// One rank, with the processes that it has had.
#[derive(Debug, Default)]
struct Rank {
    trace: RankTrace,
    processes: BTreeMap<(Incarnation, u32), Process>,
    /// Number of events beyond [`EVENTS_MAX`].
    left_out: u64,
}

impl Records {
    /// Returns a collection for a run that is still going on: ranges of a rank's newest process that have not ended yet
    /// are not named among the missing parts.
    #[must_use]
    pub fn still_running() -> Records {
        Records { is_running: true, ..Records::default() }
    }

    /// Adds a batch.
    pub fn take(&mut self, batch: &RecordBatch) {
        let Rank { trace, processes, left_out } = self.ranks.entry(batch.origin.rank.0).or_default();
        trace.lost = trace.lost.saturating_add(batch.lost);
        let process = processes.entry((batch.origin.incarnation, batch.origin.pid)).or_default();
        for record in &batch.records {
            process.record(record, &batch.names, trace, left_out);
        }
        process.reduce(batch, number_of(batch.origin.incarnation, batch.origin.pid), trace);
    }

    /// Returns the trace. Times are relative to the first event of all ranks.
    ///
    /// A range that has no end, for example because its process was killed, lasts until the last record of its process,
    /// and is named among the [missing](Trace::missing) parts.
    #[must_use]
    pub fn finish(self, title: &str) -> Trace {
        let mut found = Trace { title: title.to_owned(), ..Trace::default() };
        for (number, mut rank) in self.ranks {
            let (mut open, mut orphans) = (0, 0);
            let newest = rank.processes.last_key_value().map(|(process, _)| *process).filter(|_| self.is_running);
            for ((incarnation, pid), process) in rank.processes {
                orphans += process.orphan_ends;
                let unfinished = process.finish(number_of(incarnation, pid), &mut rank.trace, &mut rank.left_out);
                open += if newest == Some((incarnation, pid)) { 0 } else { unfinished };
            }
            let facts = [
                (open, "ranges have no end: their process ended first, or the records of their ends were lost"),
                (orphans, "ends of ranges have no beginning: recording began later, or records were lost"),
                (rank.left_out, "events were left out because the rank has too many: analyze fewer steps"),
                (rank.trace.lost, "records were lost before they were stored: figures of those steps are too small"),
            ];
            for (count, what) in facts.into_iter().filter(|(count, _)| *count > 0) {
                found.missing.push(Missing { rank: Some(number), what: format!("rank {number}: {count} {what}") });
            }
            rank.trace.events.sort_by_key(|event| event.start_ns);
            rank.trace.steps.sort_by_key(|step| step.start_ns);
            rank.trace.step_records.sort_by_key(|step| step.end_ns);
            found.ranks.insert(number, rank.trace);
        }
        found.began_unix_ns = found.first_ns();
        found.shift(found.began_unix_ns.unwrap_or(0));
        found
    }
}

/// Returns the number of a process of a rank.
fn number_of(incarnation: Incarnation, pid: u32) -> u64 {
    (u64::from(incarnation.0) << u32::BITS) | u64::from(pid)
}

impl Trace {
    /// Returns the time of the first event or step.
    fn first_ns(&self) -> Option<i64> {
        let first = |rank: &RankTrace| {
            let event = rank.events.first().map(|event| event.start_ns);
            let step = rank.steps.first().map(|step| step.start_ns);
            event.into_iter().chain(step).min()
        };
        self.ranks.values().filter_map(first).min()
    }

    /// Subtracts a time from all times.
    fn shift(&mut self, by: i64) {
        for rank in self.ranks.values_mut() {
            rank.events.iter_mut().for_each(|event| event.start_ns = event.start_ns.saturating_sub(by));
            rank.steps.iter_mut().for_each(|step| step.start_ns = step.start_ns.saturating_sub(by));
            rank.resources.shift(by.saturating_neg());
        }
    }
}
