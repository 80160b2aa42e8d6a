//! Rank 0's output for observers: one line per step, and the result at the end.
//!
//! The lines are only for observers: training never reads them, and continues if they cannot be written.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::notes::Setbacks;

/// One completed step. A step that a later generation repeats has one line from each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MetricsLine {
    /// Number of completed steps.
    pub step: u64,
    /// Mean loss over this step's batch of the whole world, before the step, in nats.
    pub loss: f32,
    /// When the step was completed: `CLOCK_MONOTONIC` in milliseconds, which every process of this machine shares.
    pub t_ms: u64,
    /// The generation that completed the step.
    pub generation: u64,
}

/// Returns the lines of a metrics file in the order in which they were written. A missing file has no lines.
///
/// An incomplete line is left out: a kill or a full disk can cut one.
///
/// # Errors
/// The file exists and cannot be read.
pub fn read_metrics(path: &Path) -> io::Result<Vec<MetricsLine>> {
    match fs::read(path) {
        Ok(bytes) => {
            Ok(bytes.split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The result of training: the same on every rank, except for [`setbacks`](Self::setbacks).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainerOutcome {
    /// The job.
    pub job: String,
    /// The generation that finished.
    pub generation: u64,
    /// Number of ranks. All of them ended with the same state: the result is only written after a comparison.
    pub world_size: u32,
    /// Number of completed steps.
    pub step: u64,
    /// Mean loss over the whole data set, in nats.
    pub loss: f64,
    /// Share of the data set that is classified correctly, 0.0 to 1.0.
    pub accuracy: f64,
    /// SHA-256 over parameters, momentum and random number generator, in hexadecimal.
    pub state_sha256: String,
    /// How often this rank failed to write or delete a checkpoint or to write a line of metrics in this generation.
    pub setbacks: u64,
}

impl TrainerOutcome {
    /// Reads the result that rank 0 has written to `path`.
    ///
    /// # Errors
    /// There is no result (yet), or the file is not a result.
    pub fn read(path: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&fs::read(path)?)?)
    }
}

/// The file of [`MetricsLine`]s, which grows.
#[derive(Debug)]
pub(super) struct MetricsLog {
    file: File,
    path: PathBuf,
    /// True if the file does not end with a newline, so that the next line must begin with one.
    torn: bool,
}

impl MetricsLog {
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        let mut file = OpenOptions::new().create(true).read(true).append(true).open(&path)?;
        let mut last = [b'\n'];
        if file.seek(SeekFrom::End(0))? > 0 {
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
        }
        Ok(Self { file, path, torn: last != [b'\n'] })
    }

    /// Appends `line`; a failure is counted, and training continues.
    pub(super) fn append(&mut self, line: &MetricsLine, setbacks: &mut Setbacks) {
        let mut text = String::from(if self.torn { "\n" } else { "" });
        let appended = serde_json::to_string(line).map_err(io::Error::from).and_then(|json| {
            text += &json;
            text.push('\n');
            self.file.write_all(text.as_bytes())
        });
        self.torn = appended.is_err();
        if let Err(error) = appended {
            setbacks.note("append to", &self.path, &error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(step: u64, generation: u64) -> MetricsLine {
        MetricsLine { step, loss: 0.5, t_ms: 7, generation }
    }

    #[test]
    fn a_line_cut_short_costs_no_other_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut setbacks = Setbacks::default();
        MetricsLog::open(path.clone()).unwrap().append(&line(1, 0), &mut setbacks);
        // A kill in the middle of the second line.
        OpenOptions::new().append(true).open(&path).unwrap().write_all(br#"{"step":2,"lo"#).unwrap();
        let mut log = MetricsLog::open(path.clone()).unwrap();
        log.append(&line(1, 1), &mut setbacks);
        log.append(&line(2, 1), &mut setbacks);
        assert_eq!(read_metrics(&path).unwrap(), [line(1, 0), line(1, 1), line(2, 1)]);
        assert_eq!(setbacks.total(), 0);
    }

    #[test]
    fn a_full_disk_is_counted() {
        let file = OpenOptions::new().append(true).open("/dev/full").unwrap();
        let mut log = MetricsLog { file, path: "/dev/full".into(), torn: false };
        let mut setbacks = Setbacks::default();
        log.append(&line(1, 0), &mut setbacks);
        log.append(&line(2, 0), &mut setbacks);
        assert_eq!((setbacks.total(), log.torn), (2, true));
    }

    #[test]
    fn no_file_has_no_lines() {
        assert_eq!(read_metrics(Path::new("/nonexistent/metrics.jsonl")).unwrap(), []);
    }
}
