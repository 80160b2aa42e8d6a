//! Drain of one process's recorder, from the creation of its memory until its last record was taken.
//!
//! The owner polls it at intervals. The observer interprets the records; sinks receive them as well.

use super::drain::{Calendar, Drain, Drained};
use super::recorder::RecorderReader;
use super::reduce::{Observer, TimedFact};
use super::switches::{SwitchHandle, TraceControl};
use super::{Origin, TraceSink};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Offset of the pid of the started process in the page at the beginning of the memory, set when another process has
/// claimed the page (`worker::page`).
const STARTED_PID_AT: u64 = 80;

/// A process that is drained.
#[derive(Debug)]
pub(crate) struct RankDrain {
    pub(crate) origin: Origin,
    stage: Stage,
    calendar: Option<Calendar>,
}

#[derive(Debug)]
enum Stage {
    /// The memory exists, but no recorder was begun in it yet.
    Waiting(File),
    Draining(Box<Drain>),
    /// No further records will come.
    Over,
}

/// Result of one poll.
#[derive(Debug, Default)]
pub(crate) struct Look {
    pub(crate) facts: Vec<TimedFact>,
    /// True if there are more records: poll again.
    pub(crate) is_more: bool,
}

/// Returns true if the rank is a descendant of the started process, which is then a wrapper: both use the same memory.
fn is_claimed_from(memory: &File, started: u32) -> bool {
    let mut pid = [0; 4];
    memory.read_exact_at(&mut pid, STARTED_PID_AT).is_ok() && u32::from_ne_bytes(pid) == started
}

impl RankDrain {
    /// Creates a drain for a process with this memory. The memory stays open from now on, even after the process has
    /// ended.
    pub(crate) const fn new(origin: Origin, memory: File) -> RankDrain {
        RankDrain { origin, stage: Stage::Waiting(memory), calendar: None }
    }

    pub(crate) const fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    /// Returns the process's time line; `None` while it has no recorder.
    pub(crate) const fn calendar(&self) -> Option<Calendar> {
        self.calendar
    }

    /// Takes the available records, a bounded number at a time. `has_ended`: the process has ended, so no further ones
    /// will come.
    ///
    /// # Errors
    /// If its records are unreadable: it is not drained any more.
    pub(crate) fn look(
        &mut self,
        has_ended: bool,
        observer: &mut Observer,
        sinks: &mut [Box<dyn TraceSink>],
        control: Option<&TraceControl>,
    ) -> io::Result<Look> {
        let looked = self.open(control).and_then(|()| self.drain(observer, sinks));
        let is_all = looked.as_ref().is_ok_and(|look| !look.is_more);
        if looked.is_err() || has_ended && is_all {
            self.stage = Stage::Over;
            if let Some(control) = control {
                control.detach(self.origin);
            }
        }
        let mut look = looked?;
        if self.is_over() {
            look.facts.extend(observer.settle(self.origin, u64::MAX));
        }
        Ok(look)
    }

    /// Opens the recorder, if it was begun.
    fn open(&mut self, control: Option<&TraceControl>) -> io::Result<()> {
        let Stage::Waiting(memory) = &self.stage else { return Ok(()) };
        let recording = match RecorderReader::open(memory.try_clone()?) {
            Ok(recording) => recording,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(error),
            Err(_) => return Ok(()), // memory without a recorder, as most programs have it
        };
        if recording.pid() != self.origin.pid && !is_claimed_from(memory, self.origin.pid) {
            self.stage = Stage::Over; // the memory belonged to another process by the time it was opened
            return Ok(());
        }
        self.origin.pid = recording.pid();
        let drain = Drain::new(recording, self.origin)?;
        if let Some(control) = control {
            control.attach(self.origin, SwitchHandle::open(memory)?);
        }
        self.calendar = Some(drain.calendar());
        self.stage = Stage::Draining(Box::new(drain));
        Ok(())
    }

    fn drain(&mut self, observer: &mut Observer, sinks: &mut [Box<dyn TraceSink>]) -> io::Result<Look> {
        let Stage::Draining(drain) = &mut self.stage else { return Ok(Look::default()) };
        let Drained { batch, settled } = drain.take()?;
        let mut facts = Vec::new();
        if !batch.records.is_empty() || batch.lost > 0 {
            let batch = Arc::new(batch);
            sinks.iter_mut().for_each(|sink| sink.batch(&batch));
            facts.extend(observer.take(&batch));
            drain.commit()?;
        }
        if let Some(until) = settled {
            facts.extend(observer.settle(self.origin, until));
            facts.extend(observer.pending(self.origin.rank, drain.now()));
        }
        Ok(Look { facts, is_more: settled.is_none() })
    }
}
