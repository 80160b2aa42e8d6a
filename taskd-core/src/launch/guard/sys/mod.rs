//! What the guard asks of Linux that neither the standard library nor rustix offers safely: signals, the steps between
//! fork and exec, waiting for any child, descriptors.
//!
//! Every function does one system call, or a few that belong together; it decides nothing. Only the files of this directory have
//! `unsafe` in the guard.

mod descriptors;
mod ended;
mod fork;
mod schedule;
mod signals;

pub(super) use descriptors::keep_only_stdin;
pub(super) use ended::{Ended, how_ended, next_ended};
pub(super) use fork::{BeforeExec, before_exec, fork_program, leave_parent, use_one_heap};
pub(super) use schedule::{hurry, hurry_end, may_undo_nice, schedule_process};
pub(super) use signals::{InitSignal, ignore_terminal_signals, next_init_signal, read_signals, take_signals};
