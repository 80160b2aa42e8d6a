//! Prints the logs as plain text, for operators that investigate an incident.

mod decisions;

use super::history::{History, Life};
use super::{Entry, JournalError, Step};
use crate::job::Seq;
use crate::kernel::text;
use std::io::{self, Write};
use std::path::Path;

/// Writes everything in the journal's logs in `dir` to `out` as text: one line for each input of the decision
/// kernel, and one indented line for each command that the kernel returned.
///
/// # Errors
/// Returns [`JournalError`] if there is no readable log, or if the output cannot be written.
pub fn dump(dir: &Path, out: &mut dyn Write) -> Result<(), JournalError> {
    let history = History::open(dir)?;
    write_all(&history, out).map_err(|source| JournalError::Output { source })
}

/// Writes the decisions in the journal's logs in `dir` to `out` as text, in order of time.
///
/// The text shows when incidents were opened, decided and closed, the operators' orders with their answers, the
/// worlds, and the end of the job. Each line begins with the UTC wall-clock time, or with job time where the log
/// has none.
///
/// # Errors
/// Returns [`JournalError`] in the same cases as [`dump`].
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
        let from = if after == Seq(0) { "from an empty state".to_owned() } else { format!("continuing after {after}") };
        let (job, ranks, ms) = (header.job_name(), header.ranks, header.started_unix_ms);
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
    let input = input.as_ref().map_or_else(|| "observations removed from the log".to_owned(), text::input);
    line(out, "", &format!("{:>10} {:>14}  {input}", seq.0, now.to_string()))?;
    match commands {
        Some(commands) => commands.iter().try_for_each(|c| line(out, "             ->  ", &text::command(c))),
        None => line(out, "             ->  ", &"commands whose record is lost"),
    }
}

/// Writes one line, even if texts from programs or operators contain line breaks.
fn line(out: &mut dyn Write, mark: &str, text: &dyn ToString) -> io::Result<()> {
    writeln!(out, "{mark}{}", text::on_one_line(&text.to_string()))
}
