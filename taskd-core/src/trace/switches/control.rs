//! The switch in the host program's hand: one request for all recorders, those that come later included.
//!
//! It waits for nothing: a request is one word into each recorder's file. It follows no file and knows no operator.

use super::requested::{PerKind, Requested, Switch};
use super::rule::{Mode, effective};
use super::status::{RankStatus, Told, TraceStatus};
use super::watch::FileStatus;
use crate::job::{Name, Rank};
use crate::trace::Origin;
use crate::trace::recorder::Recording;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What all ranks record, and how they stand. Clones share it.
///
/// Until something is asked for, each rank records what its environment says. Whoever asks last is followed: host program,
/// operator or file. A rank that is started later, or anew, gets what is in force when its recorder is attached.
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
    /// What is in force, and who asked for it.
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

/// The switches of one recorder, in a mapping of its own beside that of whoever takes records out.
#[derive(Debug)]
pub struct SwitchHandle(Recording);

impl SwitchHandle {
    /// The switches of the recorder in this memory.
    ///
    /// # Errors
    /// When it is none of a recorder's, or cannot be mapped.
    pub fn open(memory: &File) -> io::Result<SwitchHandle> {
        Ok(SwitchHandle(Recording::open(memory.try_clone()?)?))
    }

    fn told(&mut self) -> Told {
        let SwitchHandle(recording) = self;
        Told { switches: recording.switches(), hooked: recording.hooked(), exceptions: recording.exceptions() }
    }
}

impl TraceControl {
    /// With nothing asked for, and no recorder yet.
    #[must_use]
    pub fn new(mode: Mode) -> TraceControl {
        TraceControl { mode, state: Arc::default() }
    }

    /// How requests are taken.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// What is in force; `None` until something was asked for.
    #[must_use]
    pub fn requested(&self) -> Option<Requested> {
        self.state().request.as_ref().map(|(requested, _)| *requested)
    }

    /// What ranks record now: what is in force, or, until something was asked for, the kinds that a rank at least records.
    /// Where there is no rank yet: [`Requested::USUAL`], with which ranks start.
    #[must_use]
    pub fn in_force(&self) -> Requested {
        let mut state = self.state();
        if let Some((requested, _)) = &state.request {
            return *requested;
        }
        let switches: Vec<_> = state.ranks.values_mut().map(|attached| attached.handle.told().switches).collect();
        match switches.is_empty() {
            true => Requested::USUAL,
            false => PerKind::KINDS.map(|kind| Switch::from(switches.iter().any(|on| on.has(kind)))),
        }
    }

    /// Switches all ranks, and those that come later. Returns how many have a recorder now; they record accordingly from
    /// their next record on. `by` is who asks, for [`status`](Self::status).
    pub fn switch(&self, requested: Requested, by: impl Into<Name>) -> usize {
        self.state().switch(requested, by.into(), self.mode)
    }

    /// The same, unless something was asked for before: what was in force under an earlier supervisor.
    pub fn restore(&self, requested: Requested, by: impl Into<Name>) {
        let mut state = self.state();
        if state.request.is_none() {
            state.switch(requested, by.into(), self.mode);
        }
    }

    /// Takes a rank's recorder, and switches it to what is in force. It takes the place of an earlier start of the same
    /// rank; one of an even earlier start is dropped.
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

    /// Forgets a rank's recorder: its process has ended. That of a later start stays.
    pub fn detach(&self, origin: Origin) {
        let mut state = self.state();
        if state.ranks.get(&origin.rank).is_some_and(|known| known.origin == origin) {
            state.ranks.remove(&origin.rank);
        }
    }

    /// What is switched, and how every rank stands at this moment, as its process says.
    #[must_use]
    pub fn status(&self) -> TraceStatus {
        let mut state = self.state();
        let each = |attached: &mut Attached| RankStatus::of(attached.origin, &attached.handle.told());
        let ranks = state.ranks.values_mut().map(each).collect();
        TraceStatus::of(self.mode, state.request.clone(), ranks, state.file.clone())
    }

    /// Notes how the file stands that is followed.
    pub(super) fn note_file(&self, note: impl FnOnce(&mut FileStatus)) {
        note(self.state().file.get_or_insert_default());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner) // no work under it can panic half-way
    }
}
