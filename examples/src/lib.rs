//! Modules that several example programs share: the frame of a program, faults from outside, the account of a run, the
//! training program of the quick start, and the jobs of PyTorch, MindSpore and torchrun.

pub mod account;
pub mod books;
pub mod breakdown;
pub mod clock;
pub mod culprit;
pub mod digits;
pub mod faults;
pub mod files;
pub mod hosts;
#[cfg(feature = "live")]
pub mod live;
pub mod mindspore;
pub mod observe;
pub mod overhead;
pub mod program;
pub mod recover;
pub mod samples;
pub mod shards;
pub mod traced;
pub mod trainer;
