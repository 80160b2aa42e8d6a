//! The rank's end of the lifeline: a lock that the kernel releases when the process dies, a heartbeat, and the last
//! step.
//!
//! This module writes into the page; nothing that it reads there changes the behaviour of the program.

use super::claim;
use super::page::{Fields, LOCK_OFFSET, Page, state};
use rustix::thread::futex::{self, Flags};
use rustix::time::ClockId;
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The bits of a futex word that hold the thread id.
const TID_MASK: u32 = 0x3fff_ffff;
/// Number of words of a `pthread_mutex_t` that are searched for the futex word.
const MUTEX_WORDS_MAX: usize = 16;
/// Minimum, default and maximum interval between two heartbeats, in milliseconds.
const BEAT_MS: (u64, u64, u64) = (10, 500, 60_000);
/// Stack size of the heartbeat thread in bytes.
const STACK_BYTES: usize = 64 << 10;

/// Lifeline of this process: it signals the process's death to the guard before the Linux kernel has freed the
/// process's memory.
///
/// ```
/// use taskd_core::worker::Lifeline;
///
/// let lifeline = Lifeline::take_from_env(); // in `main`, before threads are started
/// for step in 1..=3 {
///     // train
///     if let Some(lifeline) = lifeline {
///         lifeline.step(step);
///     }
/// }
/// ```
#[derive(Clone, Copy)]
pub struct Lifeline {
    page: &'static Fields,
}

impl Lifeline {
    /// Opens the lifeline that the launcher has prepared for this process, and starts a thread that writes heartbeats
    /// to it.
    ///
    /// Call this on the main thread: the guard learns of a death early because the Linux kernel releases a lock of that
    /// thread when the thread ends. In three cases only heartbeats and steps are reported, and the death is not
    /// reported early: another thread calls this; the Linux kernel does not release the locks of a dead process; or the
    /// launcher has started a wrapper around this process, and the wrapper's exit then counts as the rank's.
    ///
    /// Returns `None` if this process is not a rank (for example a helper process of a rank), if `TASKD_HOOKS=0` is
    /// set, or if there is no lifeline. Training continues without a lifeline.
    #[must_use]
    pub fn take_from_env() -> Option<Lifeline> {
        static HEARTBEAT: Once = Once::new();
        if std::env::var_os("TASKD_HOOKS").is_some_and(|hooks| hooks == "0") {
            return None;
        }
        let path = std::env::var_os("TASKD_LIFELINE")?;
        let path = Path::new(&path);
        let page = Page::open_to_write(path).ok()?;
        if !is_this_process(&page) && claim::claim(path, &page).is_none() {
            return None;
        }
        let lifeline = Lifeline { page: page.leak() };
        let is_started = lifeline.page.claimant().is_none(); // the guard waits for the end of the process it started
        if is_started && rustix::thread::gettid() == rustix::process::getpid() {
            lifeline.hold();
        }
        let every = beat_every(std::env::var("TASKD_HEARTBEAT_INTERVAL_MS").ok().as_deref());
        HEARTBEAT.call_once(|| lifeline.start_heartbeat(every));
        Some(lifeline)
    }

    /// Reports that the training step with this number is complete; the program counts its steps from 1. Costs one or
    /// two system calls.
    ///
    /// Does nothing in a process that was forked from the rank.
    pub fn step(self, number: u64) {
        if is_this_process_by_pid(self.page) {
            self.page.step.store(number, Ordering::Release);
            self.page.step_at.store(monotonic_nanos(), Ordering::Release);
        }
    }

    /// Locks the lock permanently, once in the life of the page, or records that this is not possible.
    fn hold(self) {
        if self.page.state.load(Ordering::Acquire) != state::NEVER_TAKEN {
            return;
        }
        let own = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let own_word = || self.page.lock_words(MUTEX_WORDS_MAX).position(|word| word & TID_MASK == own);
        let is_locked = kernel_releases_locks() && lock_for_ever(self.page);
        let state = match is_locked.then(own_word).flatten() {
            Some(word) => {
                self.page.lock_at.store(u32::try_from(LOCK_OFFSET + 4 * word).unwrap_or(0), Ordering::Release);
                state::HELD
            }
            None => state::UNAVAILABLE,
        };
        self.page.state.store(state, Ordering::Release);
        let _ = futex::wake(&self.page.state, Flags::empty(), 1); // wakes the waiting guard, which otherwise polls
    }

    fn start_heartbeat(self, every: Duration) {
        self.page.beat_at.store(monotonic_nanos(), Ordering::Release);
        let beating = std::thread::Builder::new().name("taskd-heartbeat".into()).stack_size(STACK_BYTES);
        let _ = beating.spawn(move || {
            loop {
                std::thread::park_timeout(every);
                self.page.beat_at.store(monotonic_nanos(), Ordering::Release);
            }
        }); // if there is no thread, there is no heartbeat
    }
}

impl std::fmt::Debug for Lifeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lifeline")
            .field("state", &self.page.state_name())
            .field("last_step", &self.page.last_step())
            .finish()
    }
}

/// Returns true if a page is this process's: a helper has another pid, and a stranger with the same pid another start
/// time.
fn is_this_process(page: &Fields) -> bool {
    let start_time = crate::proc_fs::Stat::read(rustix::process::getpid()).map(|stat| stat.start_time);
    is_this_process_by_pid(page) && start_time == Some(page.start_time.load(Ordering::Acquire))
}

fn is_this_process_by_pid(page: &Fields) -> bool {
    page.pid.load(Ordering::Acquire) == rustix::process::getpid().as_raw_nonzero().get().unsigned_abs()
}

/// Returns true if the kernel knows this thread's list of robust locks: only then does it release them. It does not
/// under qemu-user and in some sandboxes, although glibc creates robust mutexes there too.
fn kernel_releases_locks() -> bool {
    let (mut list, mut length) = (std::ptr::null_mut::<libc::c_void>(), 0usize);
    // SAFETY: both pointers are valid for writing; what comes back is not followed.
    let known = unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut list, &raw mut length) };
    known == 0 && !list.is_null()
}

/// Creates the mutex of the page and locks it with this thread. Returns false if that fails.
fn lock_for_ever(page: &'static Fields) -> bool {
    let mutex: *mut libc::pthread_mutex_t = page.lock_address().cast();
    let mut kind = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
    let kind = kind.as_mut_ptr();
    // SAFETY: the mutex lies in the page, which is never unmapped, aligned and with room for it; the page is ours alone
    // (its pid and start time are this process's, and the state shows that the mutex is not made yet). `kind` is
    // initialised before it is used. Other processes touch the mutex's futex word only, atomically, as its
    // implementation allows.
    unsafe {
        libc::pthread_mutexattr_init(kind) == 0
            && libc::pthread_mutexattr_setpshared(kind, libc::PTHREAD_PROCESS_SHARED) == 0
            && libc::pthread_mutexattr_setrobust(kind, libc::PTHREAD_MUTEX_ROBUST) == 0
            && libc::pthread_mutex_init(mutex, kind) == 0
            && libc::pthread_mutexattr_destroy(kind) == 0
            && libc::pthread_mutex_lock(mutex) == 0
    }
}

fn beat_every(text: Option<&str>) -> Duration {
    let (least, usual, most) = BEAT_MS;
    Duration::from_millis(text.and_then(|ms| ms.parse().ok()).unwrap_or(usual).clamp(least, most))
}

/// `CLOCK_MONOTONIC` in nanoseconds.
fn monotonic_nanos() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heartbeat_has_bounds() {
        let ms = |text| beat_every(text).as_millis();
        assert_eq!(
            [ms(None), ms(Some("x")), ms(Some("0")), ms(Some("250")), ms(Some("99999999"))],
            [500, 500, 10, 250, 60_000]
        );
    }

    /// Returns the page of a thread that has run `what` with it and ended.
    fn after(what: impl FnOnce(Lifeline) + Send + 'static) -> Lifeline {
        let lifeline = Lifeline { page: Page::create(0, 1, 1, 0).unwrap().1.leak() };
        std::thread::spawn(move || what(lifeline)).join().unwrap();
        lifeline
    }

    #[test]
    fn only_a_lifeline_that_the_kernel_releases_is_held() {
        let is_released = |page: &Fields| page.lock_words(MUTEX_WORDS_MAX).any(|word| word & futex::OWNER_DIED != 0);
        let locks_are_released = is_released(after(|lifeline| assert!(lock_for_ever(lifeline.page))).page);
        let lifeline = after(Lifeline::hold);
        let word = if locks_are_released { "\"held\"" } else { "\"unavailable\"" };
        assert!(format!("{lifeline:?}").contains(word), "{lifeline:?}, and not {word}");
        assert_eq!(is_released(lifeline.page), locks_are_released);
    }
}
