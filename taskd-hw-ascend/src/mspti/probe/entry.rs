//! How it begins: with the process, before its own program does.
//!
//! In every process but the one that records it does nothing more than to look at its environment. It begins on the process's
//! first thread, so that whoever opens the recorder afterwards finds it open, and mspti's own constructors have run when it is
//! asked for anything.

use super::figures;
use super::mspti::Mspti;
use super::recorder::Recorder;
use super::run::{self, HAS_ENDED, IS_ENDING, OWN_KINDS, Probe};
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How long the end of the program waits for what mspti still has.
const END_WITHIN: Duration = Duration::from_millis(300);
const LOOK_EVERY: Duration = Duration::from_millis(1);

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

static THREAD: OnceLock<Thread> = OnceLock::new();
static PID: OnceLock<u32> = OnceLock::new();

extern "C" fn begin() {
    let _ = catch_unwind(begin_here); // no panic reaches the program
}

fn begin_here() {
    if std::env::var_os("TASKD_LIFELINE").is_none() {
        return;
    }
    let Some(recorder) = Recorder::load().filter(Recorder::open) else { return };
    let mspti = match Mspti::load() {
        Ok(mspti) => mspti,
        Err(why) => return give_up(&recorder, &why),
    };
    OWN_KINDS.iter().for_each(|kind| recorder.hooked(*kind));
    let probe = move || {
        let run = AssertUnwindSafe(|| Probe::new(mspti, recorder).run());
        if catch_unwind(run).is_err() {
            give_up(&recorder, "the probe has met an error of its own; training goes on without");
        }
    };
    let started = without_signals(|| thread::Builder::new().name("taskd-mspti".into()).spawn(probe));
    match started {
        Ok(thread) => {
            let _ = (THREAD.set(thread.thread().clone()), PID.set(std::process::id()));
            // SAFETY: a function that takes nothing, and is there as long as the process.
            unsafe { atexit(end) };
        }
        Err(error) => give_up(&recorder, &format!("there is no thread for it: {error}")),
    }
}

/// Says why what only mspti tells is not recorded.
fn give_up(recorder: &Recorder, why: &str) {
    OWN_KINDS.iter().for_each(|kind| {
        recorder.hooked(*kind);
        recorder.except(*kind, why);
    });
    let told = figures::unavailable(why, run::clock(run::REALTIME), |name| recorder.name(name.as_bytes()));
    recorder.import(&[told]);
}

/// Runs when the program ends in order, before mspti is taken down.
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
