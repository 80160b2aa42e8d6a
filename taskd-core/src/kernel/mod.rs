//! The decisions of the runtime: inputs go in, commands come out.
//!
//! It never awaits, reads a clock, does I/O, rolls dice or iterates a hash map: `now` is an argument, maps are ordered,
//! ids come from counters. The same inputs give the same commands, byte for byte.

mod input;
mod output;
mod view;

pub use input::{Input, Request, Start};
pub use output::{Chosen, Command, Decision, Event, Lost, Refusal};
pub use view::{Proc, View};
