//! What several example programs share: their frame, faults from outside, the account of a run, the training program
//! of the quick start, and the soak run of the PyTorch job.

pub mod account;
pub mod books;
pub mod chaos;
pub mod digits;
pub mod faults;
pub mod program;
pub mod shards;
pub mod trainer;
