//! How it begins: CUDA's driver calls [`InitializeInjection`] when the process begins to use CUDA.
//!
//! In every process but the one that records it does nothing more than to look at its environment.

use super::cupti::Cupti;
use super::figures;
use super::libtaskd::Libtaskd;
use super::run::{self, HAS_ENDED, IS_ENDING, OWN_KINDS, Probe};
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How long the end of the program waits for what CUPTI still has.
const END_WITHIN: Duration = Duration::from_millis(600);
const LOOK_EVERY: Duration = Duration::from_millis(1);

static HAS_BEGUN: AtomicBool = AtomicBool::new(false);
static THREAD: OnceLock<Thread> = OnceLock::new();
static PID: OnceLock<u32> = OnceLock::new();

/// What CUDA's driver calls in the library that `CUDA_INJECTION64_PATH` names. 1: all is well, whatever is not.
#[unsafe(no_mangle)]
pub extern "C" fn InitializeInjection() -> c_int {
    if !HAS_BEGUN.swap(true, Ordering::AcqRel) {
        let _ = catch_unwind(begin); // no panic reaches the program
    }
    1
}

fn begin() {
    if std::env::var_os("TASKD_LIFELINE").is_none() {
        return;
    }
    let Some(libtaskd) = Libtaskd::load().filter(Libtaskd::open) else { return };
    // CUPTI is looked for on the thread: it must not be asked for anything while the driver is about to begin.
    OWN_KINDS.iter().for_each(|kind| libtaskd.hooked(*kind));
    let probe = move || {
        let _ = catch_unwind(AssertUnwindSafe(|| match Cupti::load() {
            Ok(cupti) => Probe::new(cupti, libtaskd).run(),
            Err(why) => give_up(&libtaskd, &why),
        }));
        HAS_ENDED.store(true, Ordering::Release);
    };
    let started = without_signals(|| thread::Builder::new().name("taskd-cupti".into()).spawn(probe));
    match started {
        Ok(thread) => {
            let _ = (THREAD.set(thread.thread().clone()), PID.set(std::process::id()));
            // SAFETY: a function that takes nothing, and is there as long as the process.
            unsafe { atexit(end) };
        }
        Err(error) => give_up(&libtaskd, &format!("there is no thread for it: {error}")),
    }
}

/// Says why what only CUPTI tells is not recorded.
fn give_up(libtaskd: &Libtaskd, why: &str) {
    OWN_KINDS.iter().for_each(|kind| libtaskd.except(*kind, why));
    let told = figures::unavailable(why, run::now(), |name| libtaskd.name(name.as_bytes()));
    libtaskd.import(&[told]);
}

/// Runs when the program ends in order, before CUPTI is taken down.
extern "C" fn end() {
    let Some(thread) = THREAD.get().filter(|_| PID.get() == Some(&std::process::id())) else { return };
    IS_ENDING.store(true, Ordering::Release);
    thread.unpark();
    let begun = Instant::now();
    while !HAS_ENDED.load(Ordering::Acquire) && begun.elapsed() < END_WITHIN {
        thread::park_timeout(LOOK_EVERY);
    }
}

/// A signal set as the C library has it.
#[repr(C)]
struct Signals([u64; 16]);

unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> c_int;
    fn sigfillset(signals: *mut Signals) -> c_int;
    fn pthread_sigmask(how: c_int, signals: *const Signals, before: *mut Signals) -> c_int;
}

/// Does something with all signals held back: a thread that begins meanwhile gets none of the program's.
fn without_signals<T>(what: impl FnOnce() -> T) -> T {
    const SIG_SETMASK: c_int = 2;
    let (mut all, mut before) = (Signals([0; 16]), Signals([0; 16]));
    // SAFETY: both sets are valid for writing.
    unsafe {
        sigfillset(&raw mut all);
        pthread_sigmask(SIG_SETMASK, &raw const all, &raw mut before);
    }
    let done = what();
    // SAFETY: as above.
    unsafe { pthread_sigmask(SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    done
}
