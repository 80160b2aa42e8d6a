//! The logs as plain text, for somebody who has to know what happened.

mod decisions;

use super::history::{History, Life};
use super::{Entry, JournalError, Step, text};
use crate::job::Seq;
use std::io::{self, Write};
use std::path::Path;

/// Writes everything that the logs in `dir` hold, a line for each input and, indented, for each command.
///
/// # Errors
/// [`JournalError`] when there is no log that can be read, or the output cannot be written.
pub fn dump(dir: &Path, out: &mut dyn Write) -> Result<(), JournalError> {
    let history = History::open(dir)?;
    write_all(&history, out).map_err(|source| JournalError::Output { source })
}

/// Writes what was decided: incidents as they were opened, decided and closed, orders with their answers, worlds, and how the job
/// ended. Each line begins with its time by the calendar, in UTC, where the log tells that.
///
/// # Errors
/// As [`dump`].
pub fn dump_decisions(dir: &Path, out: &mut dyn Write) -> Result<(), JournalError> {
    let history = History::open(dir)?;
    let written = problems(&history, out).and_then(|()| {
        history.lives().iter().try_for_each(|life| decisions::write_life(life, out))?;
        out.flush()
    });
    written.map_err(|source| JournalError::Output { source })
}

fn problems(history: &History, out: &mut dyn Write) -> io::Result<()> {
    history.problems().iter().try_for_each(|problem| line(out, "! ", problem))
}

fn write_all(history: &History, out: &mut dyn Write) -> io::Result<()> {
    problems(history, out)?;
    for life in history.lives() {
        write_life(life, out)?;
    }
    out.flush()
}

fn write_life(life: &Life, out: &mut dyn Write) -> io::Result<()> {
    let mut plugins = None;
    for (start, after, header) in life.starts() {
        let from = if after == Seq(0) { "from nothing".to_owned() } else { format!("going on after {after}") };
        let (job, ranks, ms) = (header.whose(), header.ranks, header.started_unix_ms);
        line(
            out,
            "# ",
            &format!("job {job}, {ranks} ranks, start {start} of the supervisor at unix time {ms} ms, {from}"),
        )?;
        if plugins.replace(&header.plugins) != Some(&header.plugins) {
            header.plugins.iter().try_for_each(|plugin| line(out, "#   ", plugin))?;
        }
    }
    for seq in life.snapshots() {
        line(out, "# ", &format!("snapshot of {seq}"))?;
    }
    let mut steps = life.steps(Seq(0));
    for entry in steps.by_ref() {
        match entry {
            Entry::Step(step) => write_step(&step, out)?,
            Entry::Missing(missing) => line(out, "! ", &missing)?,
        }
    }
    for problem in steps.problems() {
        line(out, "! ", &problem)?;
    }
    steps.gaps().iter().try_for_each(|gap| line(out, "! ", gap))
}

fn write_step(step: &Step, out: &mut dyn Write) -> io::Result<()> {
    let Step { seq, now, input, commands } = step;
    let input = input.as_ref().map_or_else(|| "observations that are not in the log any more".to_owned(), text::input);
    line(out, "", &format!("{:>10} {:>14}  {input}", seq.0, now.to_string()))?;
    match commands {
        Some(commands) => commands.iter().try_for_each(|c| line(out, "             ->  ", &text::command(c))),
        None => line(out, "             ->  ", &"commands whose record is lost"),
    }
}

/// One line, whatever the texts of programs and people in it hold.
fn line(out: &mut dyn Write, mark: &str, text: &dyn ToString) -> io::Result<()> {
    writeln!(out, "{mark}{}", text::on_one_line(&text.to_string()))
}
