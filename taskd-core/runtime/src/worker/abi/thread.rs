//! The recorder of each thread: a thread gets a ring with its first record, and releases it at its end.
//!
//! Records are only counted if no ring is available, in a thread that has ended, and in a signal handler that
//! interrupts a record.

use super::process::recorder;
use super::recorder::{Kind, Range, StepRange, ThreadRecorder};
use std::cell::RefCell;

/// Maximum number of steps of one thread that can be open at once and are recorded with their CPU time.
const STEPS_MAX: usize = 4;

/// A thread's recorder, and its open steps.
pub(super) struct Thread {
    recorder: ThreadRecorder<'static>,
    steps: [Option<StepRange>; STEPS_MAX],
}

thread_local! {
    static OWN: RefCell<Option<Thread>> = const { RefCell::new(None) };
}

/// Calls a function with the recorder of this thread.
#[inline]
pub(super) fn with_own<R: Default>(what: impl FnOnce(&mut Thread) -> R) -> R {
    let Some(recorder) = recorder() else { return R::default() };
    let done = OWN.try_with(|own| {
        let mut own = own.try_borrow_mut().ok()?;
        Some(what(own.get_or_insert_with(|| Thread { recorder: recorder.thread(), steps: [None; STEPS_MAX] })))
    });
    done.ok().flatten().unwrap_or_else(|| {
        recorder.count_refused();
        R::default()
    })
}

/// Calls a function with the recorder of this thread, if the kind is on.
#[inline]
pub(super) fn with_own_if_on<R: Default>(kind: Kind, what: impl FnOnce(&mut Thread) -> R) -> R {
    match recorder().is_some_and(|recorder| recorder.is_on(kind)) {
        true => with_own(what),
        false => R::default(),
    }
}

impl Thread {
    /// Returns the thread's recorder.
    #[inline]
    pub(super) const fn recorder(&mut self) -> &mut ThreadRecorder<'static> {
        &mut self.recorder
    }

    /// Begins a step.
    pub(super) fn begin_step(&mut self, number: u64) -> Option<Range> {
        let step = self.recorder.begin_step(number)?;
        let place = self.steps.iter().position(Option::is_none).unwrap_or(0); // the first was never ended
        self.steps[place] = Some(step);
        Some(step.range())
    }

    /// Ends a range.
    #[inline]
    pub(super) fn end(&mut self, range: Range) {
        match range.kind() {
            Kind::Step => self.end_step(range),
            _ => self.recorder.end(range),
        }
    }

    /// Ends a step; a step that another thread began is recorded without its CPU time.
    fn end_step(&mut self, range: Range) {
        let open = self.steps.iter_mut().find(|open| open.is_some_and(|step| step.range() == range));
        match open.and_then(Option::take) {
            Some(step) => self.recorder.end_step(step),
            None => self.recorder.end(range),
        }
    }
}
