//! Modules of the soak runs and benchmarks: the jobs under fire of `chaos_pytorch`, `chaos_recovery` and
//! `chaos_frameworks`, the comparison of `bench_recovery`, and the external observation of a job's processes.

pub mod bench_recovery;
pub mod chaos;
pub mod chaos_recovery;
pub mod frameworks;
mod outside;
