//! How it begins: CUDA's driver calls [`InitializeInjection`] when the process begins to use CUDA.
//!
//! In every process but the one that records it does nothing more than to look at its environment.

use super::cupti::Cupti;
use super::figures;
use super::libtaskd::Libtaskd;
use super::own_thread::{self, HAS_ENDED};
use super::run::{self, OWN_KINDS, Probe};
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

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
    if let Err(error) = own_thread::start("taskd-cupti", probe) {
        give_up(&libtaskd, &format!("there is no thread for it: {error}"));
    }
}

/// Says why what only CUPTI tells is not recorded.
fn give_up(libtaskd: &Libtaskd, why: &str) {
    OWN_KINDS.iter().for_each(|kind| libtaskd.except(*kind, why));
    let told = figures::unavailable(why, run::now(), |name| libtaskd.name(name.as_bytes()));
    libtaskd.import(&[told]);
}
