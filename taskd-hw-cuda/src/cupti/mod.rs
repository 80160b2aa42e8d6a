//! GPU activity recorded through CUPTI: kernels, copies, CUDA runtime calls, NVTX ranges, and NCCL kernels as
//! communication.
//!
//! CUPTI works only inside of the training process. There a *probe* writes CUPTI's records into the process's recorder.
//! The node reads them together with all other records ([`RecorderSource`](taskd_core::launch::RecorderSource)), so
//! stores and exports contain them. This module provides the probe ([`PROBE`]), the environment that loads it
//! ([`CuptiProfile`]), and the probes' own metrics as facts ([`reader`]).
//!
//! # How the probe is loaded
//! `CUDA_INJECTION64_PATH` names the probe, and CUDA's driver loads it when the process starts to use CUDA. A process
//! without CUDA never loads it. In a process with CUDA and without CUPTI the probe reports, in `TraceStatus` and as a
//! fact, that CUPTI is unavailable, and does nothing else.
//!
//! # What is recorded
//! The kinds `Kernel`, `Copy`, `Api` and `Marker`, each while it is switched on: the probe enables exactly these in
//! CUPTI. With `Kernel` on, NCCL kernels become records of the kind `Communication` while that is on too, with the
//! operation and the data type taken from the kernel's name. NVTX additionally needs `NVTX_INJECTION64_PATH`, which the
//! profile sets if it knows the library. Names are CUPTI's (mangled), cut at 255 bytes.
//!
//! CUPTI has one user per process: while another profiler (`torch.profiler`, Nsight) is active, the probe either gets
//! no records or prevents the other one from getting them. Leave the four kinds off in such jobs; off is the default.
//!
//! # Test coverage
//! A stand-in library for CUPTI, and records written with the layouts of NVIDIA's headers. Not yet run on a GPU.

mod profile;
mod source;

pub use profile::{CuptiProfile, ProfileError};
pub use source::{CuptiSink, CuptiSource, FAMILY, UNAVAILABLE, reader};

use taskd_core::worker::library::Library;

/// The probe `libtaskd_cupti.so`, a library that CUDA loads into a rank to record the activity of its GPU through
/// CUPTI.
pub const PROBE: Library =
    Library::new("libtaskd_cupti", include_bytes!(concat!(env!("OUT_DIR"), "/libtaskd_cupti.so")));

/// The modules of the CUPTI probe that only parse bytes, for tests and for tools that read CUPTI's records.
#[doc(hidden)]
pub mod probe {
    #[path = "figures.rs"]
    pub mod figures;
    #[path = "names.rs"]
    pub mod names;
    #[path = "records.rs"]
    pub mod records;
    #[path = "translate.rs"]
    pub mod translate;
    pub use taskd_probe::{record, slots};
}
