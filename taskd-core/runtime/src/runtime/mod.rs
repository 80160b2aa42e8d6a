//! Builder and shell: the only code that awaits. The shell feeds the kernel, writes the logs, and carries commands out.
//!
//! The kernel makes all decisions. It also keeps the time limits, so a launcher that never answers cannot stall a plan.
//! Each source chooses what happens if its queue is full.
//!
//! | file | content |
//! |---|---|
//! | `builder` | collects plugins, and reports all problems together |
//! | `shell` | the main loop: one input, one kernel step, the step's commands |
//! | `clock` | conversion of the shell's clock to job time, detection of suspends, and wall-clock time |
//! | `queues` | bounded queues between sources and kernel |
//! | `sources` | one task per source: batches, probes, failures |
//! | `launcher_task` | sends commands to the launcher in order, and returns its answers |
//! | `log` | logs each step before its commands are sent, and reports when the logs cannot be written |
//! | `host_records` | passes the history of hosts to the kernel, and stores what the kernel adds |
//! | `restore` | resumes from an earlier supervisor's log |
//! | `startup_report` | log lines at job start: usable strategies, coverage of losses |
//! | `queries` | orders and queries of handles, and their answers |
//! | `news` | log lines for operators: one for each incident opened, decided or closed |
//! | `output` | output directories of processes, for status, reports and log lines |
//! | `handle` | the host program's handle of a running job |
//! | `shutdown` | ways to leave a job that has not ended |
//! | `unattended` | the end of a job after its run was dropped |
//! | `signals` | leaving on SIGTERM and SIGINT, if the host program asks for it |
//! | `control` | the handle on a local socket, as JSON lines |
//! | `exit_code` | exit code of a program that ran a job |

mod builder;
mod clock;
pub mod control;
pub use crate::kernel::exit_code;
mod handle;
mod host_records;
mod launcher_task;
mod log;
mod news;
mod output;
mod queries;
mod queues;
mod restore;
mod shell;
mod shutdown;
mod signals;
mod sources;
mod startup_report;
mod unattended;

pub use builder::{BuildError, Problem, RuntimeBuilder};
pub use handle::{ControlError, EVENTS_KEPT, RuntimeHandle, TimestampedEvent};
pub use launcher_task::LAUNCHER_QUEUE_MAX;
pub use shell::{HAND_OVER_WITHIN, Runtime};
pub use shutdown::ShutdownMode;
