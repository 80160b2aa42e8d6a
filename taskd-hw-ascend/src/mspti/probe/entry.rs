//! Entry point: runs at the start of the process, before the program's own code.
//!
//! In a process that does not record, it only reads an environment variable. It runs on the process's first thread, so
//! that the recorder is open for everything that uses it later, and mspti's constructors have run before mspti is
//! called.

use super::counters;
use super::figures;
use super::libtaskd::Libtaskd;
use super::mspti::Mspti;
use super::own_thread;
use super::run::{OWN_KINDS, Probe};
use std::panic::{AssertUnwindSafe, catch_unwind};

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    let _ = catch_unwind(begin_here); // panics must not reach the program
}

fn begin_here() {
    if std::env::var_os("TASKD_LIFELINE").is_none() {
        return;
    }
    let Some(recorder) = Libtaskd::load().filter(Libtaskd::open) else { return };
    let mspti = match Mspti::load() {
        Ok(mspti) => mspti,
        Err(why) => return give_up(&recorder, &why),
    };
    OWN_KINDS.iter().for_each(|kind| recorder.hooked(*kind));
    let probe = move || {
        let run = AssertUnwindSafe(|| Probe::new(mspti, recorder).run());
        if catch_unwind(run).is_err() {
            give_up(&recorder, "the probe has panicked; training continues without it");
        }
    };
    if let Err(error) = own_thread::start("taskd-mspti", super::END_WITHIN, probe) {
        give_up(&recorder, &format!("the probe's thread cannot be started: {error}"));
    }
}

/// Reports the reason why the kinds of records that only mspti provides are not recorded.
fn give_up(recorder: &Libtaskd, why: &str) {
    counters::give_up(recorder, &OWN_KINDS, figures::UNAVAILABLE, why);
}
