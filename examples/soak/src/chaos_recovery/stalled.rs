//! What may explain why a job hangs, recorded while it does.

use crate::outside::census::{Part, Process};
use crate::outside::{notes, supervised};
use rustix::process::Signal;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long ranks may take to write their stacks.
const STACKS_WITHIN: Duration = Duration::from_secs(2);
/// Lines recorded of each file.
const LINES: usize = 80;

/// Requests every rank's stacks and writes everything to `to`.
pub(crate) async fn dump(to: &Path, headline: &str, dir: &Path, processes: &[Process]) -> std::io::Result<()> {
    for rank in processes.iter().filter(|process| matches!(process.part, Part::Rank { .. }) && process.state != 'Z') {
        let _ = rank.signal(Signal::USR1); // the script writes its stacks to stderr; an ended one does not
    }
    tokio::time::sleep(STACKS_WITHIN).await;
    let mut text = format!("{headline}\n");
    for process in processes {
        let wchan = fs::read_to_string(format!("/proc/{}/wchan", process.pid)).unwrap_or_default();
        let _ = writeln!(text, "{process:?} waits in {wchan:?}");
    }
    let mut files = vec![dir.join(notes::FILE), dir.join(supervised::LOG)];
    let runs = fs::read_dir(dir)?.flatten().map(|entry| entry.path());
    let is_run = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("run"));
    files.extend(runs.filter(is_run).flat_map(|run| printed(&run)));
    for file in files {
        let _ = writeln!(text, "\n--- {}\n{}", file.display(), tail(&file));
    }
    fs::write(to, text)
}

/// Returns the output of the guard and the ranks: all logs of the run directory, the newest last.
fn printed(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let Ok(meta) = entry.metadata() else { continue };
            let is_log = path.extension().is_some_and(|end| end == "log" || end == "err" || end == "stderr");
            match meta.is_dir() {
                true => left.push(path),
                false if is_log && meta.len() > 0 => found.push((meta.modified().ok(), path)),
                false => {}
            }
        }
    }
    found.sort();
    found.into_iter().rev().take(12).rev().map(|(_, path)| path).collect()
}

fn tail(path: &Path) -> String {
    let text = fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let from = text.lines().count().saturating_sub(LINES);
    text.lines().skip(from).collect::<Vec<_>>().join("\n")
}
