//! `libtaskd_cupti.so`: what CUPTI tells of the GPU, brought into the recorder of the training process.
//!
//! It is a crate of its own, which needs nothing but the standard library; the build script of `taskd-hw-cuda` builds it, and
//! programs carry it with them. CUDA's driver loads it when the process begins to use CUDA (`CUDA_INJECTION64_PATH`): without
//! CUDA it is never there. In a process that is not to record it does nothing; it never fails a program, never prints, never
//! makes a training step wait, and calls nothing of CUPTI's from within CUPTI.
//!
//! | file | its part |
//! |---|---|
//! | `entry` | what CUDA's driver calls |
//! | `run` | the probe's thread: follows the switches, flushes, brings records |
//! | `cupti` | the vendor's library: where it is looked for, its functions |
//! | `own_thread`, `signals`, `dl`, `libtaskd`, `buffers` | what every vendor's probe has: its thread, signals held back, libraries that are loaded, the recorder's, buffers |
//! | `records` | what lies in them |
//! | `names` | what the names of kernels say, and the numbers of names |
//! | `translate` | from CUPTI's records to the recorder's |
//! | `record` | the form of the recorder's records, the same for all |
//! | `figures` | what the probe counts, told as records |

mod buffers;
mod cupti;
mod dl;
mod entry;
pub mod figures;
mod libtaskd;
pub mod names;
mod own_thread;
pub mod record;
pub mod records;
mod run;
mod signals;
pub mod translate;

use record::Record;
use std::time::Duration;

/// Buffers at one time, those that wait to be read among them.
const BUFFERS_MAX: usize = 32;
/// How long the end of the program waits for what the vendor still has.
const END_WITHIN: Duration = Duration::from_millis(600);
