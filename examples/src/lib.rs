//! What several example programs share: their frame, faults from outside, the account of a run, and the training program
//! of the quick start.

pub mod account;
pub mod books;
pub mod digits;
pub mod faults;
pub mod program;
pub mod trainer;
