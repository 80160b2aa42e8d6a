//! The PyTorch job of the example `pytorch_recover`: its supervision, faults from outside, and what each recovery took.

mod compared;
mod copies;
mod cut;
mod faults;
mod figures;
mod job;
mod lines;
mod strategy;
mod striker;
mod told;

pub(crate) use compared::Compared;
pub use copies::Copies;
pub(crate) use cut::cut;
pub use faults::{Fault, Strike, Victim};
pub(crate) use job::Supervised;
pub use job::{Job, Outcome, Run};
pub(crate) use lines::{Line as StepLine, first_common, now, read as read_lines};
pub use strategy::Strategy;
pub use told::{Ending, Recovery, Started, Told};
