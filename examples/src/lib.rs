//! What several example programs share: their frame, faults from outside, the account of a run, the training program
//! of the quick start, figures taken many times, the soak run of the PyTorch job, and the observed torchrun job.

pub mod account;
pub mod bench_recovery;
pub mod books;
pub mod breakdown;
pub mod chaos;
pub mod chaos_recovery;
pub mod culprit;
pub mod digits;
pub mod faults;
pub mod files;
pub mod frameworks;
mod hosts;
pub mod mindspore;
pub mod observe;
mod outside;
pub mod overhead;
pub mod program;
pub mod recover;
pub mod samples;
pub mod shards;
pub mod traced;
pub mod trainer;
