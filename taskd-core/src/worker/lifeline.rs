//! The rank's end of the lifeline: a lock that the kernel releases when the process dies, a heartbeat, the last step.
//!
//! It writes into the page and reads nothing from it that could change what the program does.

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
/// Within how many words of a `pthread_mutex_t` the futex word is looked for.
const MUTEX_WORDS_MAX: usize = 16;
/// Bounds of the time between two heartbeats in milliseconds, and the time where none is set.
const BEAT_MS: (u64, u64, u64) = (10, 500, 60_000);
/// Stack of the heartbeat's thread in bytes.
const STACK_BYTES: usize = 64 << 10;

/// This process's lifeline, which tells the guard of its death before the kernel has torn its memory down.
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
    /// Takes the lifeline that the launcher has laid out for this process, and starts the heartbeat.
    ///
    /// To be called by the main thread, whose end is the end of the process: on another thread only heartbeat and steps
    /// are told, and no early news of a death; the same where the system releases no lock of a process that dies, and where the
    /// process that was started is a wrapper around this one: that one's exit is then the rank's. `None`: this process is not a
    /// rank (it may be a helper of one, or another descendant of the wrapper is the rank), or `TASKD_HOOKS=0` is set, or there is
    /// no lifeline to be had; training goes on without.
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
        let is_started = lifeline.page.claimant().is_none(); // the guard waits for the end of the process that it has started
        if is_started && rustix::thread::gettid() == rustix::process::getpid() {
            lifeline.hold();
        }
        let every = beat_every(std::env::var("TASKD_BEAT_MS").ok().as_deref());
        HEARTBEAT.call_once(|| lifeline.start_heartbeat(every));
        Some(lifeline)
    }

    /// Tells that a training step is completed, by its number as the program counts, from 1. Costs a system call or two.
    ///
    /// A process that was forked from the rank tells nothing.
    pub fn step(self, number: u64) {
        if is_this_process_by_pid(self.page) {
            self.page.step.store(number, Ordering::Release);
            self.page.step_at.store(monotonic_nanos(), Ordering::Release);
        }
    }

    /// Locks the lock for ever, once in the life of the page; says so where that cannot be.
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
        let _ = futex::wake(&self.page.state, Flags::empty(), 1); // the guard waits for it; without, it looks by itself
    }

    fn start_heartbeat(self, every: Duration) {
        self.page.beat_at.store(monotonic_nanos(), Ordering::Release);
        let beating = std::thread::Builder::new().name("taskd-heartbeat".into()).stack_size(STACK_BYTES);
        let _ = beating.spawn(move || {
            loop {
                std::thread::park_timeout(every);
                self.page.beat_at.store(monotonic_nanos(), Ordering::Release);
            }
        }); // no thread, no heartbeat
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

/// Whether a page is about this process: a helper has another pid, a stranger with its pid another start time.
fn is_this_process(page: &Fields) -> bool {
    let start_time = crate::launch::guard::proc_fs::Stat::read(rustix::process::getpid()).map(|stat| stat.start_time);
    is_this_process_by_pid(page) && start_time == Some(page.start_time.load(Ordering::Acquire))
}

fn is_this_process_by_pid(page: &Fields) -> bool {
    page.pid.load(Ordering::Acquire) == rustix::process::getpid().as_raw_nonzero().get().unsigned_abs()
}

/// Whether the kernel knows where this thread's libc lists its robust locks: only then does it release them. It does not
/// under qemu-user and in some sandboxes, and glibc makes robust mutexes all the same.
fn kernel_releases_locks() -> bool {
    let (mut list, mut length) = (std::ptr::null_mut::<libc::c_void>(), 0usize);
    // SAFETY: both pointers are valid for writing; what comes back is not followed.
    let known = unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut list, &raw mut length) };
    known == 0 && !list.is_null()
}

/// Makes the mutex of the page and locks it with this thread. False: it cannot be had.
fn lock_for_ever(page: &'static Fields) -> bool {
    let mutex: *mut libc::pthread_mutex_t = page.lock_address().cast();
    let mut kind = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
    let kind = kind.as_mut_ptr();
    // SAFETY: the mutex lies in the page, which is never unmapped, aligned and with room for it; the page is ours alone
    // (its pid and start time are this process's, and the state says that nobody has made the mutex yet). `kind` is
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

    /// The page of a thread that has done `what` with it and ended.
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
