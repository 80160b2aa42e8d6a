//! The newest step in a log file: searches its new lines for a number.
//!
//! A bounded part of the file is read per scan. Older lines beyond that are skipped, since only the newest step counts.

use super::streams::{FileId, Stream, read_at};
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

/// Maximum number of bytes of a file read in one scan; a longer line is skipped.
const LOOK_BYTES_MAX: usize = 64 << 10;

/// Pattern that finds the step number in a line of output: the number that follows a fixed text.
///
/// Spaces between the text and the number are ignored. If a line has several matches, the first counts.
///
/// ```
/// use taskd_core::launch::StepPattern;
///
/// let pattern = StepPattern::after("step ");
/// assert_eq!(pattern.step_in("[rank 0] step 17 loss 0.25"), Some(17));
/// assert_eq!(pattern.step_in("steps per epoch: 100"), None);
/// assert_eq!(StepPattern::after("\"step\":").step_in(r#"{"step": 3, "loss": 1.5}"#), Some(3));
/// assert_eq!(StepPattern::after("iteration").step_in(" iteration      120/  500000 |"), Some(120));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepPattern {
    text: String,
}

impl StepPattern {
    /// Makes a pattern that matches the number after `text`.
    pub fn after(text: impl Into<String>) -> StepPattern {
        StepPattern { text: text.into() }
    }

    /// Returns the step number that the pattern finds in a line; `None` if there is none.
    #[must_use]
    pub fn step_in(&self, line: &str) -> Option<u64> {
        if self.text.is_empty() {
            return None;
        }
        line.match_indices(&self.text).find_map(|(at, text)| {
            let behind = line[at + text.len()..].trim_start_matches(' ');
            let digits = behind.find(|c: char| !c.is_ascii_digit()).unwrap_or(behind.len());
            behind[..digits].parse().ok()
        })
    }
}

/// A progress bar does not end its line; it returns to the start of the line.
const LINE_ENDS: [char; 2] = ['\n', '\r'];

fn is_end(byte: &u8) -> bool {
    LINE_ENDS.contains(&char::from(*byte))
}

/// The file to read.
#[derive(Debug)]
enum Log {
    /// The file that a process writes to, under whatever name it has now.
    Stream(File),
    /// The file that has this path now, whichever it is.
    Path(PathBuf),
}

/// Reader of a file that grows.
#[derive(Debug)]
pub(super) struct Tail {
    log: Log,
    /// The file behind the path, as of its last lookup.
    named: Option<(FileId, File)>,
    /// Offset up to which the file was read.
    at: Option<u64>,
}

impl Tail {
    /// Reads a file that a process writes to.
    pub(super) fn of(stream: &Stream) -> io::Result<Tail> {
        Ok(Tail { log: Log::Stream(stream.file.try_clone()?), named: None, at: None })
    }

    /// Reads the file at a path, which may be created or replaced later.
    pub(super) const fn at(path: PathBuf) -> Tail {
        Tail { log: Log::Path(path), named: None, at: None }
    }

    /// Returns the identity of the current file; `None` if it does not exist.
    pub(super) fn id(&mut self) -> Option<FileId> {
        match &self.log {
            Log::Stream(file) => Some(FileId::of(&file.metadata().ok()?)),
            Log::Path(path) => {
                let id = FileId::of(&fs::metadata(path).ok().filter(fs::Metadata::is_file)?);
                if self.named.as_ref().is_none_or(|(known, _)| *known != id) {
                    // A file that replaces another is read from its start.
                    self.at = self.named.is_some().then_some(0);
                    self.named = Some((id, File::open(path).ok()?));
                }
                Some(id)
            }
        }
    }

    /// Returns the newest step in the lines completed since the last scan; in the first scan, in the last lines of the
    /// file.
    pub(super) fn newest(&mut self, pattern: &StepPattern) -> io::Result<Option<u64>> {
        let file = match (&self.log, &self.named) {
            (Log::Stream(file), _) | (_, Some((_, file))) => file,
            _ => return Ok(None),
        };
        let length = file.metadata()?.len();
        let at = self.at.map_or(0, |at| if at > length { 0 } else { at }); // shorter: truncated
        let from = at.max(length.saturating_sub(LOOK_BYTES_MAX as u64));
        let mut buffer = vec![0; usize::try_from(length - from).unwrap_or(LOOK_BYTES_MAX)];
        let read = read_at(file, from, &mut buffer)?;
        let Some(end) = buffer[..read].iter().rposition(is_end) else {
            self.at = Some(if read == LOOK_BYTES_MAX { length } else { from });
            return Ok(None);
        };
        self.at = Some(from + end as u64 + 1);
        let text = String::from_utf8_lossy(&buffer[..end]);
        Ok(text.split(LINE_ENDS).rev().find_map(|line| pattern.step_in(line)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn log() -> (tempfile::TempDir, PathBuf, Tail) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let tail = Tail::at(path.clone());
        (dir, path, tail)
    }

    fn newest(tail: &mut Tail) -> Option<u64> {
        tail.id()?;
        tail.newest(&StepPattern::after("step ")).unwrap()
    }

    fn add(path: &PathBuf, text: &str) {
        let mut file = File::options().create(true).append(true).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    #[test]
    fn the_newest_whole_line_counts_once() {
        let (_dir, path, mut tail) = log();
        assert_eq!(newest(&mut tail), None, "it is not there yet");
        add(&path, "step 1\nstep 2\nsaved\nstep 3");
        assert_eq!(newest(&mut tail), Some(2), "the line with 3 is not complete");
        assert_eq!(newest(&mut tail), None);
        add(&path, "4\n");
        assert_eq!(newest(&mut tail), Some(34));
    }

    #[test]
    fn a_moving_progress_bar_is_reported() {
        let (_dir, path, mut tail) = log();
        add(&path, "\rstep 1 |#   |\rstep 2 |##  |");
        assert_eq!(newest(&mut tail), Some(1), "the other may have more digits");
        add(&path, "\rstep 3 |### |\r");
        assert_eq!(newest(&mut tail), Some(3));
        add(&path, "step 4 |####|\r\nsaved\n");
        assert_eq!(newest(&mut tail), Some(4));
    }

    #[test]
    fn a_replaced_or_truncated_file_is_read_from_its_start() {
        let (_dir, path, mut tail) = log();
        add(&path, "step 100\n");
        assert_eq!(newest(&mut tail), Some(100));
        fs::rename(&path, path.with_extension("old")).unwrap();
        add(&path, "step 101\n");
        assert_eq!(newest(&mut tail), Some(101));
        File::options().write(true).truncate(true).open(&path).unwrap();
        add(&path, "step 7\n");
        assert_eq!(newest(&mut tail), Some(7));
    }

    #[test]
    fn lines_beyond_the_scan_limit_are_skipped_for_the_newest_step() {
        let (_dir, path, mut tail) = log();
        add(&path, &"step 1\n".repeat(LOOK_BYTES_MAX));
        add(&path, "step 2\n");
        assert_eq!(newest(&mut tail), Some(2));
        add(&path, &"x".repeat(2 * LOOK_BYTES_MAX));
        assert_eq!(newest(&mut tail), None);
        add(&path, "\nstep 3\n");
        assert_eq!(newest(&mut tail), Some(3));
    }

    #[test]
    fn a_pattern_wants_digits_that_are_a_number() {
        let pattern = StepPattern::after("step");
        assert_eq!(pattern.step_in("step step 4"), Some(4));
        assert_eq!(pattern.step_in("step 99999999999999999999999"), None);
        assert_eq!(pattern.step_in("step -4"), None);
        assert_eq!(StepPattern::after("").step_in("12"), None);
    }
}
