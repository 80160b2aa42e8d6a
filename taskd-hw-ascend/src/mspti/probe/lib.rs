//! `libtaskd_mspti.so`: what mspti tells of the NPU, brought into the recorder of the training process.
//!
//! It is a crate of its own, which needs nothing but the standard library; the build script of `taskd-hw-ascend` builds it, and
//! programs carry it with them. `LD_PRELOAD` loads it. In a process that is not to record it does nothing; it never fails a
//! program, never prints, never makes a training step wait, and calls nothing of mspti from within mspti.
//!
//! | file | its part |
//! |---|---|
//! | `entry` | begins when the process does, in a thread of its own |
//! | `run` | what that thread does: follows the switches, flushes, brings records |
//! | `mspti` | the vendor's library: where it is looked for, its functions |
//! | `own_thread`, `signals`, `dl`, `libtaskd`, `buffers` | what every vendor's probe has: its thread, signals held back, libraries that are loaded, the recorder's, buffers |
//! | `forms` | the form of the recorder's records, the same for all |
//! | `records` | what lies in them |
//! | `texts` | what the names of markers say |
//! | `cache` | texts that were met lately, and what they say |
//! | `joins` | beginnings and ends, of hosts and devices |
//! | `translate` | from mspti's records to the recorder's |
//! | `figures` | what it counts, told as records |

mod buffers;
pub mod cache;
mod dl;
mod entry;
pub mod figures;
pub mod forms;
pub mod joins;
mod libtaskd;
mod mspti;
mod own_thread;
pub mod records;
mod run;
mod signals;
pub mod texts;
pub mod translate;

use forms::Record;
use std::time::Duration;

/// Buffers at one time, those that wait to be read among them.
const BUFFERS_MAX: usize = 100;
/// How long the end of the program waits for what the vendor still has.
const END_WITHIN: Duration = Duration::from_millis(300);
