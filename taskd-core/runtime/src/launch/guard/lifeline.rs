//! Waits for the release of a rank's lifeline, which is the earliest report of its death.
//!
//! One thread per rank, since only a blocked thread can wait for a futex on every supported kernel. The thread does not
//! allocate and accesses only its page and `/proc`; it passes its result to the event loop, which decides.
//!
//! The kernel releases a robust futex when the thread that holds it leaves its memory: at its death, before the memory
//! is torn down, but also at exec. `/proc/PID/stat` distinguishes the two. An end with exit code 0 is never reported
//! early: `/proc` also shows 0 if the code may not be read, or if only the main thread ended and others continue.

use super::procs::Key;
use crate::job::Termination;
use crate::proc_fs::Stat;
use crate::worker::page::{Fields, Page, state};
use rustix::event::EventfdFlags;
use rustix::process::{Pid, Signal};
use rustix::thread::futex::{self, Flags, OWNER_DIED, WAITERS};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Stack size of a waiting thread in bytes.
const STACK_BYTES: usize = 32 << 10;
/// A death that was found before the exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Death {
    pub(super) key: Key,
    pub(super) how: Termination,
}

/// Queue of the deaths that the threads have found.
#[derive(Debug)]
pub(super) struct Deaths {
    /// Readable while the queue is not empty.
    pub(super) ready: OwnedFd,
    found: Mutex<Vec<Death>>,
}

impl Deaths {
    pub(super) fn new() -> io::Result<Arc<Deaths>> {
        let ready = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Deaths { ready, found: Mutex::default() }))
    }

    pub(super) fn take(&self) -> Vec<Death> {
        let _ = rustix::io::read(&self.ready, &mut [0u8; 8]); // reset; a death from now on is taken below
        std::mem::take(&mut *self.found.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put(&self, death: Death) {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).push(death);
        let _ = rustix::io::write(&self.ready, &1u64.to_ne_bytes()); // fails only if it is readable already
    }
}

/// The thread that waits for one rank.
#[derive(Debug)]
pub(super) struct Waiter {
    page: Arc<Page>,
    ended: Arc<AtomicBool>,
    seen_held: bool,
}

impl Waiter {
    /// Starts the thread.
    pub(super) fn start(
        key: Key,
        pid: Pid,
        start_time: u64,
        page: Arc<Page>,
        deaths: Arc<Deaths>,
    ) -> io::Result<Waiter> {
        let waiter = Waiter { page: Arc::clone(&page), ended: Arc::default(), seen_held: false };
        let ended = Arc::clone(&waiter.ended);
        std::thread::Builder::new().name("taskd-lifeline".into()).stack_size(STACK_BYTES).spawn(move || {
            if wait_until_taken(&page, &ended) && wait_until_released(&page, &ended) {
                match how_it_ended(pid, start_time) {
                    Some(how) => deaths.put(Death { key, how }),
                    None => page.state.store(state::GIVEN_UP, Ordering::Release),
                }
            }
        })?;
        Ok(waiter)
    }

    /// Returns true if the lifeline is held, or was. Also wakes the thread at the first time, which not every rank
    /// does.
    pub(super) fn look(&mut self) -> bool {
        if !self.seen_held && self.page.state.load(Ordering::Acquire) != state::NEVER_TAKEN {
            self.seen_held = true;
            wake(&self.page.state);
        }
        self.seen_held
    }

    /// Returns true if the rank supports a lifeline but cannot hold it.
    pub(super) fn is_unavailable(&self) -> bool {
        self.page.state.load(Ordering::Acquire) == state::UNAVAILABLE
    }

    /// Ends the thread, since the exit is known.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.page.state.store(state::GIVEN_UP, Ordering::Release);
        wake(&self.page.state);
        if let Some(word) = self.page.lock_word() {
            word.fetch_or(OWNER_DIED, Ordering::AcqRel);
            wake(word);
        }
    }
}

fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, Flags::empty(), i32::MAX.unsigned_abs()); // an aligned word of a mapped page: cannot fail
}

/// Returns true once the rank holds its lifeline.
fn wait_until_taken(page: &Fields, ended: &AtomicBool) -> bool {
    loop {
        match page.state.load(Ordering::Acquire) {
            state::HELD => return true,
            state::NEVER_TAKEN if !ended.load(Ordering::Acquire) => (),
            _ => return false,
        }
        let _ = futex::wait(&page.state, Flags::empty(), state::NEVER_TAKEN, None); // then check again
    }
}

/// Returns true once the kernel has released the lock; false if the wait was ended, or the page has no lock.
fn wait_until_released(page: &Fields, ended: &AtomicBool) -> bool {
    let Some(word) = page.lock_word() else { return false };
    loop {
        let now = word.load(Ordering::Acquire);
        if ended.load(Ordering::Acquire) {
            return false;
        }
        if now & OWNER_DIED != 0 {
            return true;
        }
        // Without this bit the kernel wakes no waiter.
        let waiting = now | WAITERS;
        if now == waiting || word.compare_exchange(now, waiting, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            let _ = futex::wait(word, Flags::empty(), waiting, None); // then check again
        }
    }
}

/// Returns how the process is ending; `None` if that is known only at its exit (see the module documentation).
pub(crate) fn how_it_ended(pid: Pid, start_time: u64) -> Option<Termination> {
    let Some(stat) = Stat::read(pid).filter(|stat| stat.start_time == start_time) else {
        return Some(Termination::Unknown);
    };
    // Newer kernels show the signal from the moment at which SIGKILL was sent, before any thread has started to die.
    let is_killed = stat.exit_code == Signal::KILL.as_raw();
    if !is_killed && !stat.is_exiting() && !stat.is_zombie() {
        return None; // exec
    }
    match Termination::of_wait_status(stat.exit_code) {
        Termination::Code(0) => None,
        how => Some(how),
    }
}
