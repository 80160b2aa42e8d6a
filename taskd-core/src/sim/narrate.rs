//! A job's last steps as lines for people.

use crate::job::JobTime;
use crate::journal::text;
use crate::kernel::{Command, Input};

/// Adds what one step of the kernel was about, and keeps the last `most` lines or more. Facts and deadlines from which
/// nothing followed are left out.
pub(super) fn step(lines: &mut Vec<String>, most: usize, now: JobTime, input: &Input, commands: &[Command]) {
    if matches!(input, Input::Observed(_) | Input::Deadline) && commands.is_empty() {
        return;
    }
    lines.push(format!("{now}  {}", text::input(input)));
    lines.extend(commands.iter().map(|command| format!("{now}      {}", text::command(command))));
    if lines.len() > most * 2 {
        lines.drain(..lines.len() - most);
    }
}
