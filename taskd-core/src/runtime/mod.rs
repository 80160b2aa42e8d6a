//! Builder and shell: the only code that awaits. It feeds the kernel, writes the logs, and carries commands out.
//!
//! It decides nothing. Time limits are the kernel's, so a launcher that never answers cannot stall a plan; what happens
//! at a full queue is said by its source.
//!
//! | file | its part |
//! |---|---|
//! | `builder` | collects plugins, reports everything that is wrong at once |
//! | `shell` | the loop: one input, one step, its commands |
//! | `clock` | the one map from the shell's clock to job time, the discovery of our own sleep, and what the calendar says |
//! | `queues` | bounded queues between sources and kernel |
//! | `sources` | the task of each source: batches, questions, failures |
//! | `carry` | commands to the launcher in order, answers back |
//! | `log` | writes each step before its commands leave, and says when it cannot |
//! | `past` | what is taken up of an earlier supervisor's log |
//! | `calls` | orders and questions of handles, and their answers |
//! | `news` | what operators see in their log: a sentence for each incident opened, decided, closed |
//! | `output` | where the output of processes is, for status, reports and news |
//! | `handle` | what the host program holds while the job runs |
//! | `leave` | the ways to leave a job that has not ended |
//! | `signals` | SIGTERM and SIGINT as such a leave, where the host program asks for it |
//! | `control` | the handle on a local socket, as JSON lines |
//! | `exit_code` | with which code a program ends that ran a job |

mod builder;
mod calls;
mod carry;
mod clock;
pub mod control;
pub mod exit_code;
mod handle;
mod leave;
mod log;
mod news;
mod output;
mod outset;
mod past;
mod queues;
mod shell;
mod signals;
mod sources;

pub use builder::{BuildError, Problem, RuntimeBuilder};
pub use carry::LAUNCHER_QUEUE_MAX;
pub use handle::{Announcement, ControlError, EVENTS_KEPT, RuntimeHandle};
pub use leave::Leave;
pub use shell::{HAND_OVER_WITHIN, Runtime};
