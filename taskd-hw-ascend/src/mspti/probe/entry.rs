//! How it begins: with the process, before its own program does.
//!
//! In every process but the one that records it does nothing more than to look at its environment. It begins on the process's
//! first thread, so that whoever opens the recorder afterwards finds it open, and mspti's own constructors have run when it is
//! asked for anything.

use super::figures;
use super::libtaskd::Libtaskd;
use super::mspti::Mspti;
use super::own_thread;
use super::run::{self, OWN_KINDS, Probe};
use std::panic::{AssertUnwindSafe, catch_unwind};

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    let _ = catch_unwind(begin_here); // no panic reaches the program
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
            give_up(&recorder, "the probe has met an error of its own; training goes on without");
        }
    };
    if let Err(error) = own_thread::start("taskd-mspti", probe) {
        give_up(&recorder, &format!("there is no thread for it: {error}"));
    }
}

/// Says why what only mspti tells is not recorded.
fn give_up(recorder: &Libtaskd, why: &str) {
    OWN_KINDS.iter().for_each(|kind| {
        recorder.hooked(*kind);
        recorder.except(*kind, why);
    });
    let told = figures::unavailable(why, run::clock(run::REALTIME), |name| recorder.name(name.as_bytes()));
    recorder.import(&[told]);
}
