//! `libtaskd_cupti.so`: writes the GPU activity that CUPTI reports into the recorder of the training process.
//!
//! It is a separate crate that depends on the standard library only. The build script of `taskd-hw-cuda` builds it, and
//! programs embed it. CUDA's driver loads it when the process starts to use CUDA (`CUDA_INJECTION64_PATH`), so
//! processes without CUDA never load it. In a process that does not record, the probe does nothing. It never makes a
//! program fail, never prints, never makes a training step wait, and never calls CUPTI from inside a CUPTI callback.
//!
//! | file | content |
//! |---|---|
//! | `entry` | entry point that CUDA's driver calls |
//! | `run` | the probe's thread: follows the switches, flushes, imports records |
//! | `cupti` | the vendor's library: search path and functions |
//! | `own_thread`, `signals`, `dl`, `libtaskd`, `buffers`, `clock`, `counters`, `slots` | parts shared by all vendors' probes: thread, blocked signals, dynamic loading, the recorder's library, buffers, clocks, counters as records, slots of a cache |
//! | `records` | parser of CUPTI's buffers |
//! | `names` | meaning of kernel names, and the recorder's numbers of names |
//! | `translate` | conversion of CUPTI's records into the recorder's |
//! | `record` | layout of the recorder's records, the same for all probes |
//! | `figures` | the probe's counters |

mod cupti;
mod entry;
pub mod figures;
pub mod names;
pub mod records;
mod run;
pub mod translate;

pub use taskd_probe::record;
use taskd_probe::{buffers, clock, counters, dl, libtaskd, own_thread, slots};
use std::time::Duration;

/// Maximum number of buffers in use, including those that wait to be read.
const BUFFERS_MAX: usize = 32;
/// Time that the exit of the program waits for the records that CUPTI still has.
const END_WITHIN: Duration = Duration::from_millis(600);
