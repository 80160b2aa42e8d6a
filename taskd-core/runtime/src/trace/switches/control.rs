//! The switch in the host program: one request for all recorders, including those attached later.
//!
//! A request never waits: it writes one word into each recorder's file. This module watches no file and knows no
//! operator.

use super::Mode;
use super::rule::{KINDS, effective};
use super::status::{RankStatus, Reported, TraceStatus};
use super::watch::FileStatus;
use super::{Requested, Switch};
use crate::job::{Name, Rank};
use crate::trace::Origin;
use crate::trace::recorder::RecorderReader;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Control of the trace kinds that all ranks record. It holds the latest request for trace kinds, and the recorders of
/// the ranks to which this request applies. Clones share the request and the recorders.
///
/// Until the first request, each rank records the kinds that its environment selects. The latest request applies,
/// whether it comes from the host program, an operator or a file. A rank that is started or restarted later gets
/// the request in force when its recorder is attached.
///
/// ```
/// use taskd_core::job::{Incarnation, Rank};
/// use taskd_core::trace::Origin;
/// use taskd_core::trace::recorder::{Kind, Recorder, RecorderConfig};
/// use taskd_core::trace::switches::{Mode, Requested, SwitchHandle, TraceControl};
/// # fn main() -> std::io::Result<()> {
/// let config = RecorderConfig::default();
/// let memory = config.memory()?;
/// let recorder = Recorder::create(memory.try_clone()?, config)?; // in the rank
///
/// let control = TraceControl::new(Mode::Native);
/// let origin = Origin { rank: Rank(0), incarnation: Incarnation(1), pid: std::process::id() };
/// control.attach(origin, SwitchHandle::open(&memory)?);
/// assert_eq!(control.switch(Requested::NONE, "me"), 1);
/// assert!(!recorder.is_on(Kind::Step));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TraceControl {
    mode: Mode,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// The request in force, and the name of its origin.
    request: Option<(Requested, Name)>,
    ranks: BTreeMap<Rank, Attached>,
    file: Option<FileStatus>,
}

impl State {
    fn switch(&mut self, requested: Requested, by: Name, mode: Mode) -> usize {
        let kinds = effective(&requested, mode);
        self.ranks.values().for_each(|attached| attached.handle.0.switch(kinds));
        self.request = Some((requested, by));
        self.ranks.len()
    }
}

#[derive(Debug)]
struct Attached {
    origin: Origin,
    handle: SwitchHandle,
}

/// The switches of one recorder (the trace kinds that are on), in a memory mapping of their own, separate from that
/// of the reader of the recorder's records.
#[derive(Debug)]
pub struct SwitchHandle(RecorderReader);

impl SwitchHandle {
    /// Opens the switches of the recorder that records into `memory`.
    ///
    /// # Errors
    /// Returns an error if the memory is not a recorder's, or cannot be mapped.
    pub fn open(memory: &File) -> io::Result<SwitchHandle> {
        Ok(SwitchHandle(RecorderReader::open(memory.try_clone()?)?))
    }

    fn reported(&mut self) -> Reported {
        let SwitchHandle(recording) = self;
        Reported { switches: recording.switches(), hooked: recording.hooked(), exceptions: recording.exceptions() }
    }
}

impl TraceControl {
    /// Creates a control without a request and without recorders. `mode` is the rule by which a request determines the
    /// kinds that ranks record.
    #[must_use]
    pub fn new(mode: Mode) -> TraceControl {
        TraceControl { mode, state: Arc::default() }
    }

    /// Returns the rule by which a request for trace kinds determines the kinds that ranks record.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the request for trace kinds that is in force; `None` before the first request.
    #[must_use]
    pub fn requested(&self) -> Option<Requested> {
        self.state().request.as_ref().map(|(requested, _)| *requested)
    }

    /// Returns the trace kinds that ranks record now: those of the request in force, or, before the first request,
    /// every kind that at least one rank records. If there is no rank yet: [`Requested::USUAL`], the kinds with which
    /// ranks start.
    #[must_use]
    pub fn in_force(&self) -> Requested {
        let mut state = self.state();
        if let Some((requested, _)) = &state.request {
            return *requested;
        }
        let switches: Vec<_> = state.ranks.values_mut().map(|attached| attached.handle.reported().switches).collect();
        match switches.is_empty() {
            true => Requested::USUAL,
            false => KINDS.map(|kind| Switch::from(switches.iter().any(|on| on.has(kind)))),
        }
    }

    /// Switches trace recording on all ranks, including those attached later, to the kinds in `requested`. Returns the
    /// number of ranks that have a recorder now; each applies the change from its next record on. `by` names the sender
    /// of the request, for [`status`](Self::status).
    pub fn switch(&self, requested: Requested, by: impl Into<Name>) -> usize {
        self.state().switch(requested, by.into(), self.mode)
    }

    /// Applies the request for trace kinds that was in force under an earlier supervisor, unless this control has
    /// received a request since.
    pub fn restore(&self, requested: Requested, by: impl Into<Name>) {
        let mut state = self.state();
        if state.request.is_none() {
            state.switch(requested, by.into(), self.mode);
        }
    }

    /// Adds a rank's recorder and applies the request in force to it. The recorder replaces that of an earlier
    /// incarnation of the same rank. It is ignored if the control already has the recorder of a later incarnation.
    pub fn attach(&self, origin: Origin, handle: SwitchHandle) {
        let mut state = self.state();
        let known = state.ranks.get(&origin.rank);
        if known.is_some_and(|known| known.origin.incarnation > origin.incarnation) {
            return;
        }
        if let Some((requested, _)) = &state.request {
            handle.0.switch(effective(requested, self.mode));
        }
        state.ranks.insert(origin.rank, Attached { origin, handle });
    }

    /// Removes the recorder of a process that has ended. The recorder of a later incarnation stays.
    pub fn detach(&self, origin: Origin) {
        let mut state = self.state();
        if state.ranks.get(&origin.rank).is_some_and(|known| known.origin == origin) {
            state.ranks.remove(&origin.rank);
        }
    }

    /// Returns the request in force, and the current state of each trace kind in every rank, as the rank's process
    /// reports it in its recorder's memory.
    #[must_use]
    pub fn status(&self) -> TraceStatus {
        let mut state = self.state();
        let each = |attached: &mut Attached| RankStatus::of(attached.origin, &attached.handle.reported());
        let ranks = state.ranks.values_mut().map(each).collect();
        TraceStatus::of(self.mode, state.request.clone(), ranks, state.file.clone())
    }

    /// Updates the status of the watched file.
    pub(super) fn note_file(&self, note: impl FnOnce(&mut FileStatus)) {
        note(self.state().file.get_or_insert_default());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner) // no code under the lock can panic half-way
    }
}
