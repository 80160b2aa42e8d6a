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
//! | `recorder` | `libtaskd.so` |
//! | `forms` | the form of its records |
//! | `buffers` | the buffers that mspti fills |
//! | `records` | what lies in them |
//! | `texts` | what the names of markers say |
//! | `cache` | texts that were met lately, and what they say |
//! | `joins` | beginnings and ends, of hosts and devices |
//! | `translate` | from mspti's records to the recorder's |
//! | `figures` | what it counts, told as records |

mod buffers;
pub mod cache;
mod entry;
pub mod figures;
pub mod forms;
pub mod joins;
mod mspti;
mod recorder;
pub mod records;
mod run;
pub mod texts;
pub mod translate;
