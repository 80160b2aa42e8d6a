//! Linux calls of the guard for which neither the standard library nor rustix has a safe interface: signals, the steps
//! between fork and exec, waiting for any child, descriptors.
//!
//! Each function makes one system call, or a few that belong together, and takes no decision. Within the guard, only
//! the files of this directory have `unsafe`.

mod descriptors;
mod fork;
mod schedule;
mod signals;
mod wait_status;

pub(super) use descriptors::keep_only_stdin;
pub(super) use fork::{BeforeExec, before_exec, fork_program, leave_parent, use_one_heap};
pub(super) use schedule::{hurry, hurry_end, may_undo_nice, schedule_process};
pub(super) use signals::{InitSignal, ignore_terminal_signals, next_init_signal, read_signals, take_signals};
pub(super) use wait_status::{Ended, how_ended, next_ended};
