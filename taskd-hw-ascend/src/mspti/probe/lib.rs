//! `libtaskd_mspti.so`: writes the NPU activity that mspti reports into the recorder of the training process.
//!
//! It is a separate crate that depends on the standard library only. The build script of `taskd-hw-ascend` builds it,
//! and programs embed it. `LD_PRELOAD` loads it. In a process that does not record, the probe does nothing. It never
//! makes a program fail, never prints, never makes a training step wait, and never calls mspti from inside an mspti
//! callback.
//!
//! | file | content |
//! |---|---|
//! | `entry` | entry point: starts the probe's thread at the start of the process |
//! | `run` | the probe's thread: follows the switches, flushes, imports records |
//! | `mspti` | the vendor's library: search path and functions |
//! | `own_thread`, `signals`, `dl`, `libtaskd`, `buffers`, `clock`, `counters`, `slots` | parts shared by all vendors' probes: thread, blocked signals, dynamic loading, the recorder's library, buffers, clocks, counters as records, slots of a cache |
//! | `forms` | layout of the recorder's records, the same for all probes |
//! | `records` | parser of mspti's buffers |
//! | `texts` | meaning of marker names |
//! | `cache` | cache of recent texts and their meanings |
//! | `joins` | pairs starts and ends, of hosts and devices |
//! | `translate` | conversion of mspti's records into the recorder's |
//! | `figures` | the probe's counters |

pub mod cache;
mod entry;
pub mod figures;
pub mod joins;
mod mspti;
pub mod records;
mod run;
pub mod texts;
pub mod translate;

pub use taskd_probe::record as forms;
use taskd_probe::{buffers, clock, counters, dl, libtaskd, own_thread, slots};
use std::time::Duration;

/// Maximum number of buffers in use, including those that wait to be read.
const BUFFERS_MAX: usize = 100;
/// Time that the exit of the program waits for the records that mspti still has.
const END_WITHIN: Duration = Duration::from_millis(300);
