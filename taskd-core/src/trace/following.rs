//! One process's recorder, from when its memory is there until its last record was taken.
//!
//! It has no timer: whoever owns it looks every so often. What records say is for the observer, whom they are for besides,
//! sinks say.

use super::drain::{Calendar, Drain, Drained};
use super::recorder::Recording;
use super::reduce::{Observer, TimedFact};
use super::switches::{SwitchHandle, TraceControl};
use super::{Origin, TraceSink};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Where the page at the beginning of the memory has the process that was started, once another one has claimed it
/// (`worker::page`).
const STARTED_PID_AT: u64 = 80;

/// A process that is followed.
#[derive(Debug)]
pub(crate) struct Following {
    pub(crate) origin: Origin,
    stage: Stage,
    calendar: Option<Calendar>,
}

#[derive(Debug)]
enum Stage {
    /// The memory is there; no recorder was begun in it yet.
    Waiting(File),
    Draining(Box<Drain>),
    /// Nothing more will come.
    Over,
}

/// What one look at a process came to.
#[derive(Debug, Default)]
pub(crate) struct Look {
    pub(crate) facts: Vec<TimedFact>,
    /// There is more: look again.
    pub(crate) is_more: bool,
}

/// Whether a descendant of the process that was started is the rank: its wrapper's memory is its own.
fn is_claimed_from(memory: &File, started: u32) -> bool {
    let mut pid = [0; 4];
    memory.read_exact_at(&mut pid, STARTED_PID_AT).is_ok() && u32::from_ne_bytes(pid) == started
}

impl Following {
    /// A process whose memory this is. It is held from now on, whatever becomes of the process.
    pub(crate) const fn new(origin: Origin, memory: File) -> Following {
        Following { origin, stage: Stage::Waiting(memory), calendar: None }
    }

    pub(crate) const fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    /// The process's time line; `None` while it has no recorder.
    pub(crate) const fn calendar(&self) -> Option<Calendar> {
        self.calendar
    }

    /// Takes what there is, a bounded part at a time. `has_ended`: the process has, so what there is is all.
    ///
    /// # Errors
    /// When its records cannot be had: it is not followed any more.
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
        let recording = match Recording::open(memory.try_clone()?) {
            Ok(recording) => recording,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(error),
            Err(_) => return Ok(()), // memory without a recorder, as most programs have it
        };
        if recording.pid() != self.origin.pid && !is_claimed_from(memory, self.origin.pid) {
            self.stage = Stage::Over; // it was another's memory by the time it was opened
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
