//! Renders a job's last steps as readable lines.

use crate::job::JobTime;
use crate::kernel::text;
use crate::kernel::{Command, Input};

/// Adds the content of one kernel step, and keeps at least the last `most` lines. Facts and deadlines without
/// consequences are omitted.
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
