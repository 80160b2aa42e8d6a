//! Entry point: CUDA's driver calls [`InitializeInjection`] when the process starts to use CUDA.
//!
//! In a process that does not record, it only reads an environment variable.

use super::counters;
use super::cupti::Cupti;
use super::figures;
use super::libtaskd::Libtaskd;
use super::own_thread::{self, HAS_ENDED};
use super::run::{OWN_KINDS, Probe};
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

/// Starts the CUPTI probe. CUDA's driver calls this function after it has loaded the library that
/// `CUDA_INJECTION64_PATH` names. Always returns 1, the code for success.
#[unsafe(no_mangle)]
pub extern "C" fn InitializeInjection() -> c_int {
    if !HAS_BEGUN.swap(true, Ordering::AcqRel) {
        let _ = catch_unwind(begin); // panics must not reach the program
    }
    1
}

fn begin() {
    if std::env::var_os("TASKD_LIFELINE").is_none() {
        return;
    }
    let Some(libtaskd) = Libtaskd::load().filter(Libtaskd::open) else { return };
    // CUPTI is looked up on the thread: it must not be called while the driver initializes.
    OWN_KINDS.iter().for_each(|kind| libtaskd.hooked(*kind));
    let probe = move || {
        let _ = catch_unwind(AssertUnwindSafe(|| match Cupti::load() {
            Ok(cupti) => Probe::new(cupti, libtaskd).run(),
            Err(why) => give_up(&libtaskd, &why),
        }));
        HAS_ENDED.store(true, Ordering::Release);
    };
    if let Err(error) = own_thread::start("taskd-cupti", super::END_WITHIN, probe) {
        give_up(&libtaskd, &format!("the probe's thread cannot be started: {error}"));
    }
}

/// Reports the reason why the kinds of records that only CUPTI provides are not recorded.
fn give_up(libtaskd: &Libtaskd, why: &str) {
    counters::give_up(libtaskd, &OWN_KINDS, figures::UNAVAILABLE, why);
}
