//! The works that the framework's thread waits for beside the program, on their way to that thread.
//!
//! All callers hold Python's lock, so that no thread ever waits for a lock of this module. The thread waits here without
//! Python's lock.

use super::api::Object;
use super::objects::{Outcome, Python, Ref};
use std::collections::VecDeque;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Thread};

struct Waiting {
    works: VecDeque<Work>,
    /// The thread that takes them, once it has waited.
    thread: Option<Thread>,
}

struct Work(Ref);

// SAFETY: the reference is used and dropped only under Python's lock, which all callers hold.
unsafe impl Send for Work {}

static WAITING: Mutex<Waiting> = Mutex::new(Waiting { works: VecDeque::new(), thread: None });
/// The thread sleeps, or is about to.
static SLEEPS: AtomicBool = AtomicBool::new(false);

/// Called with a work that no Python code may wait for, until there is a thread for such works; null from then on.
static START: AtomicPtr<Object> = AtomicPtr::new(null_mut());

/// Sets the function that is called until there is a thread. The earlier function is kept: a call may be in it.
pub(super) fn start_with(start: *mut Object) {
    START.store(start, Ordering::Release);
}

/// Has a thread detect the completion of a work.
pub(super) fn watch(python: Python, work: *mut Object) -> Outcome<()> {
    match START.load(Ordering::Acquire) {
        started if started.is_null() => put(python.keep(work)),
        start => drop(python.call_one(start, work)?),
    }
    Ok(())
}

/// There is a thread that takes the works to be watched.
pub(super) fn is_watching() {
    START.store(null_mut(), Ordering::Release); // the function is kept: a call may be in it
}

/// Passes a work to the thread, which is woken if it sleeps.
pub(super) fn put(work: Ref) {
    let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
    waiting.works.push_back(Work(work));
    if SLEEPS.swap(false, Ordering::AcqRel)
        && let Some(thread) = &waiting.thread
    {
        thread.unpark();
    }
}

/// Returns true if no work waits to be taken.
pub(super) fn is_empty() -> bool {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner).works.is_empty()
}

/// Takes the oldest work, for which it waits.
pub(super) fn take(python: Python) -> Ref {
    loop {
        if let Some(Work(work)) = next() {
            return work;
        }
        python.without_lock(sleep);
    }
}

/// Returns the oldest work. If there is none, the thread is going to sleep: a work that is put from now on wakes it.
fn next() -> Option<Work> {
    let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
    let work = waiting.works.pop_front();
    if work.is_none() {
        waiting.thread = Some(thread::current());
        SLEEPS.store(true, Ordering::Release);
    }
    work
}

fn sleep() {
    while SLEEPS.load(Ordering::Acquire) {
        thread::park();
    }
}
