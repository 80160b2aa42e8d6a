//! What NPUs do, as the vendor's mspti tells it within the training process.
//!
//! It has ranks load a probe, which brings mspti's records into the recorder of `taskd-core`; there they are switched, taken out,
//! stored and exported like all others. It interprets none of them.
//!
//! | file | its part |
//! |---|---|
//! | `profile` | what a rank's environment needs, and where libmspti.so is looked for |
//! | `launch` | a launcher that gives it to ranks |
//! | `cann` | the environment of CANN's `set_env.sh` |
//! | `source` | what the probes count and miss, as facts |
//! | `probe` | the probe, a crate of its own that the build script makes a library of |
//!
//! # What is recorded
//! | of mspti | becomes | while these kinds are on |
//! |---|---|---|
//! | markers of domain `default`: `step <n>`, `dataloader`, `save_checkpoint`, `forward` | spans of the kind | that kind |
//! | markers of domain `communication`, in both published forms | spans of `Communication` | `Communication` |
//! | every other marker | spans and instants of `Marker` | `Marker` |
//! | a marker's half on the device | the same kind, on device and stream; a step's number is its correlation | that kind |
//! | kernels | spans of `Kernel` | `Kernel` |
//! | calls of the runtime | spans of `Api`, with the correlation of what they ask for | `Api` |
//! | copies and fills of memory | spans of `Copy` | `Copy` |
//! | communications of the device (the newer `COMMUNICATION`, else `HCCL`) | spans of `Communication` on device and stream | `Communication` and `Kernel` |
//!
//! Kinds are switched while training runs; mspti is asked for what is on and for nothing else, and unsubscribed when all is off.
//!
//! # What is missing
//! mspti drops records without a word when it gets no buffer. There are 100 of 2 MiB: 3.7 million markers. The probe counts the
//! requests that it could not serve, and tells all that it counts as figures among the records, as `mspti.records` and
//! `mspti.refused_requests`; [`watch`] makes facts of them.
//!
//! # What it was run on
//! A stand-in for libmspti.so, compiled from C in this crate's tests. It proves the binding, the protocol and the parsing, and
//! nothing of a device's time, a driver, or what mspti costs a real training. Production code says when it meets it.

mod cann;
mod launch;
mod profile;
mod source;

pub use cann::{CannEnv, CannError, SET_ENV, VARIABLES_BYTES_MAX};
pub use launch::AscendLauncher;
pub use profile::{MsptiProfile, PROBE, ProfileError};
pub use source::{FACTS_MAX, MsptiSink, MsptiSource, watch};
