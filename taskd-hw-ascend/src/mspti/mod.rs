//! NPU activity recorded through mspti, the vendor's profiling interface inside of the training process.
//!
//! Ranks load a probe that writes mspti's records into the recorder of `taskd-core`. There they are switched, read,
//! stored and exported like all other records. The module does not interpret them.
//!
//! | file | content |
//! |---|---|
//! | `profile` | environment of ranks, and the search path of libmspti.so |
//! | `launch` | a launcher that adds it to ranks |
//! | `cann` | the environment of CANN's `set_env.sh` |
//! | `source` | the probes' counters and missing records, as facts |
//! | `probe` | the probe, a separate crate that the build script compiles into a library |
//!
//! # What is recorded
//! | mspti's record | becomes | while these kinds are on |
//! |---|---|---|
//! | markers of domain `default`: `step <n>`, `dataloader`, `save_checkpoint`, `forward` | spans of that kind | that kind |
//! | markers of domain `communication`, in both published formats | spans of `Communication` | `Communication` |
//! | all other markers | spans and instants of `Marker` | `Marker` |
//! | the device half of a marker | the same kind, with device and stream; the number of a step is its correlation | that kind |
//! | kernels | spans of `Kernel` | `Kernel` |
//! | calls of the runtime | spans of `Api`, with the correlation of the work that they request | `Api` |
//! | memory copies and fills | spans of `Copy` | `Copy` |
//! | communication on the device (the newer `COMMUNICATION`, else `HCCL`) | spans of `Communication` with device and stream | `Communication` and `Kernel` |
//!
//! Kinds can be switched during training. The probe enables in mspti exactly the kinds that are on, and unsubscribes
//! when all are off.
//!
//! # Missing records
//! mspti drops records silently when it gets no buffer. There are 100 buffers of 2 MiB, room for 3.7 million markers.
//! The probe counts the requests that it could not serve, and writes all of its counters among the records, such as
//! `mspti.records` and `mspti.refused_requests`; [`reader`] turns them into facts.
//!
//! # Test coverage
//! A stand-in for libmspti.so, compiled from C in this crate's tests. It covers the binding, the protocol and the
//! parsing, but not device time stamps, a real driver, or mspti's overhead in a real training. Production code reports
//! when it loads a stand-in.

mod cann;
mod launch;
mod profile;
mod source;

pub use cann::{CannEnv, CannError, SET_ENV, VARIABLES_BYTES_MAX};
pub use launch::AscendLauncher;
pub use profile::{MsptiProfile, PROBE, ProfileError};
pub use source::{FAMILY, MsptiSink, MsptiSource, UNAVAILABLE, reader};
