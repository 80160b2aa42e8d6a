//! The MindSpore job of the example `mindspore_train`: its supervision, faults from outside, the cost of each recovery,
//! and the time that plain msrun takes for the same.

mod faults;
mod job;
mod msrun;
mod phases;
mod soak;

pub use faults::{Fault, Plan};
pub use job::{Job, Outcome, RANKS};
pub use msrun::after_kill as msrun_after_kill;
pub use phases::{Phases, Recovery, Start};
pub use soak::{Run, run};
