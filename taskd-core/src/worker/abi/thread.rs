//! The recorder of each thread: it gets a ring with its first record, and gives it back when it ends.
//!
//! What comes when there is none to be had, in a thread that has ended or in a signal handler amid a record, is counted.

use super::process::recorder;
use super::recorder::{Kind, Range, StepRange, ThreadRecorder};
use std::cell::RefCell;

/// Steps of one thread that can be open at one time and are told with their time on the CPU.
const STEPS_MAX: usize = 4;

/// A thread's recorder, and its open steps.
pub(super) struct Thread {
    recorder: ThreadRecorder<'static>,
    steps: [Option<StepRange>; STEPS_MAX],
}

thread_local! {
    static OWN: RefCell<Option<Thread>> = const { RefCell::new(None) };
}

/// Does something with the recorder of this thread.
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

/// Does something with the recorder of this thread, if a kind is on.
#[inline]
pub(super) fn with_own_if_on<R: Default>(kind: Kind, what: impl FnOnce(&mut Thread) -> R) -> R {
    match recorder().is_some_and(|recorder| recorder.is_on(kind)) {
        true => with_own(what),
        false => R::default(),
    }
}

impl Thread {
    /// Its recorder.
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

    /// Ends a step; one that was begun by another thread is told without its time on the CPU.
    fn end_step(&mut self, range: Range) {
        let open = self.steps.iter_mut().find(|open| open.is_some_and(|step| step.range() == range));
        match open.and_then(Option::take) {
            Some(step) => self.recorder.end_step(step),
            None => self.recorder.end(range),
        }
    }
}
