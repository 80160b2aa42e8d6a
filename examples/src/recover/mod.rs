//! The PyTorch job of the example `pytorch_recover`: its supervision, faults from outside, and what each recovery took.

mod cut;
mod faults;
mod job;
mod lines;
mod told;

pub use faults::{Fault, Strike, Victim};
pub use job::{Job, Outcome, Run, Strategy};
pub use told::{Recovery, Told};
