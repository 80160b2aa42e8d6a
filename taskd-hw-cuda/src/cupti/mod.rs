//! What GPUs do, by CUPTI: kernels, copies, calls into CUDA's runtime, NVTX ranges, and NCCL's kernels as communication.
//!
//! CUPTI works inside of the training process only. There a *probe* brings its records into the recorder of the process; the
//! node takes them out with all others ([`Recordings`](taskd_core::launch::Recordings)), and so stores and exports have them.
//! This module has the probe ([`PROBE`]), what puts it into a process ([`CuptiProfile`]), and what the probe says of itself, as
//! facts ([`reader`]).
//!
//! # How the probe comes into the process
//! `CUDA_INJECTION64_PATH` names it, and CUDA's driver loads it when the process begins to use CUDA. In a process without CUDA
//! it is never loaded. In one that has CUDA and no CUPTI it says so, where `TraceStatus` shows it and as a fact, and does
//! nothing else.
//!
//! # What is recorded
//! The kinds `Kernel`, `Copy`, `Api` and `Marker`, each while it is switched on: the probe asks CUPTI for what is on, and for
//! nothing else. With `Kernel` on, NCCL's kernels are records of the kind `Communication` while that is on too, with
//! operation and type of elements by the kernel's name. NVTX needs `NVTX_INJECTION64_PATH` besides, which the profile sets
//! where it knows the library. Names are as CUPTI has them (mangled), cut at 255 bytes.
//!
//! CUPTI has one user in a process: while another profiler (`torch.profiler`, Nsight) is active the probe gets nothing or
//! takes it away. Such jobs leave the four kinds off, which they are unless somebody asks.
//!
//! # What it was run on
//! A library that stands in for CUPTI, and records that were written by the layouts of NVIDIA's headers. On no GPU yet.

mod profile;
mod source;

pub use profile::{CuptiProfile, ProfileError};
pub use source::{CuptiSink, CuptiSource, FAMILY, UNAVAILABLE, reader};

use taskd_core::worker::library::Library;

/// The probe, `libtaskd_cupti.so`.
pub const PROBE: Library =
    Library::new("libtaskd_cupti", include_bytes!(concat!(env!("OUT_DIR"), "/libtaskd_cupti.so")));

/// Those files of the probe that touch nothing but bytes, for tests and for tools that read CUPTI's records.
#[doc(hidden)]
pub mod probe {
    #[path = "figures.rs"]
    pub mod figures;
    #[path = "names.rs"]
    pub mod names;
    #[path = "record.rs"]
    pub mod record;
    #[path = "records.rs"]
    pub mod records;
    #[path = "translate.rs"]
    pub mod translate;
}
