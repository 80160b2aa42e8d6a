//! The PyTorch job of the example `pytorch_recover`: its supervision, faults from outside, and the phases of each
//! recovery.

mod account;
mod compared;
mod copies;
mod cut;
mod faults;
mod figures;
mod job;
mod lines;
mod strategy;
mod striker;

pub use account::{Account, Ending, Recovery, Started};
pub use compared::Compared;
pub use copies::Copies;
pub use cut::cut;
pub use faults::{Fault, Strike, Victim};
pub use job::{Job, Outcome, Run, Supervised};
pub use lines::{Line as StepLine, first_common, now, read as read_lines};
pub use strategy::Strategy;
