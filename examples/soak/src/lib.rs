//! Modules of the soak runs and benchmarks: the jobs under fire of `chaos_pytorch`, `chaos_recovery` and
//! `chaos_frameworks`, the comparison of `bench_recovery`, the campaign of `bench_diagnosis`, and the external observation of a job's processes.

pub mod bench_diagnosis;
pub mod bench_recovery;
pub mod chaos;
pub mod chaos_recovery;
pub mod frameworks;
mod outside;
