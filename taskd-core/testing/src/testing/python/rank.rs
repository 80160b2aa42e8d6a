//! A rank as a launcher would start it, with a page that the test reads.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use super::pythons::system;
use super::start;
use crate::launch::python::{PythonFile, write_helper};

/// Offset in the lifeline page (the memory that a rank shares with its guard) of the state of the lifeline (`u32`).
pub const STATE: u64 = 20;
/// Offset in the lifeline page of the last completed step's number (`u64`).
pub const STEP: u64 = 48;
/// Offset in the lifeline page of the time of the last completed step, in nanoseconds of the monotonic clock (`u64`).
pub const STEP_TIME: u64 = 56;
/// Offset in the lifeline page of the last heartbeat's time, in nanoseconds of the monotonic clock (`u64`).
pub const BEAT_TIME: u64 = 64;
const WORD_OFFSET: u64 = 72;

/// A rank for tests: a directory with the lifeline page on which its processes are started, and the rank's Python
/// helper.
#[derive(Debug)]
pub struct Rank {
    dir: TempDir,
    helper: TempDir,
}

/// The state of a rank's lifeline, a lock in the lifeline page that the operating system releases when the rank dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifeline {
    /// No process has taken the lifeline.
    Untaken,
    /// The process that took the lifeline is alive.
    Held,
    /// The process that took the lifeline has died, or has executed another program.
    Released,
}

impl Rank {
    /// Creates a rank whose Python helper contains these files of a framework.
    ///
    /// # Panics
    /// Panics if files cannot be written.
    #[must_use]
    pub fn new(framework: &[PythonFile]) -> Rank {
        let rank = Rank { dir: tempfile::tempdir().unwrap(), helper: tempfile::tempdir().unwrap() };
        write_helper(&rank.helper(), framework).unwrap();
        fs::write(rank.page(), start::page()).unwrap();
        rank
    }

    /// Returns the directory with the lifeline page and the files of the test. Programs find the path of the page in
    /// the environment variable `PAGE`.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the directory with the Python helper, which is the rank's `PYTHONPATH`.
    #[must_use]
    pub fn helper(&self) -> PathBuf {
        start::helper_in(&self.helper)
    }

    /// Returns the path of the rank's lifeline page.
    #[must_use]
    pub fn page(&self) -> PathBuf {
        self.dir.path().join("page")
    }

    /// Returns the path of the file in which the rank has to record its failure.
    #[must_use]
    pub fn error_file(&self) -> PathBuf {
        self.dir.path().join("error.json")
    }

    /// Writes a file next to the lifeline page and returns its path.
    ///
    /// # Panics
    /// Panics if the file cannot be written.
    pub fn file(&self, name: &str, text: &str) -> String {
        let path = self.dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Returns a command that runs `argv` as the process that the lifeline page names, with its output captured. The
    /// environment variable `PYTHON` is the path of [`system`].
    #[must_use]
    pub fn command(&self, argv: &[&str]) -> Command {
        let mut command = start::start(&self.page(), &self.helper(), argv);
        command.env("TASKD_ERROR_FILE", self.error_file());
        command
    }

    /// Runs a Python program as the rank, until it ends.
    ///
    /// # Panics
    /// Panics if the program cannot be started.
    pub fn run(&self, program: &str) -> Output {
        self.command(&[system(), "-c", program]).output().unwrap()
    }

    /// Returns the `u32` at this offset of the lifeline page.
    ///
    /// # Panics
    /// Panics if the page cannot be read.
    #[must_use]
    pub fn u32(&self, at: u64) -> u32 {
        let mut bytes = [0; 4];
        fs::File::open(self.page()).unwrap().read_exact_at(&mut bytes, at).unwrap();
        u32::from_ne_bytes(bytes)
    }

    /// Returns the `u64` at this offset of the lifeline page.
    ///
    /// # Panics
    /// Panics if the page cannot be read.
    #[must_use]
    pub fn u64(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        fs::File::open(self.page()).unwrap().read_exact_at(&mut bytes, at).unwrap();
        u64::from_ne_bytes(bytes)
    }

    /// Returns the state of the rank's lifeline.
    #[must_use]
    pub fn lifeline(&self) -> Lifeline {
        const OWNER_DIED: u32 = 0x4000_0000;
        match self.u32(STATE) {
            0 => Lifeline::Untaken,
            _ if self.u32(u64::from(self.u32(WORD_OFFSET))) & OWNER_DIED != 0 => Lifeline::Released,
            _ => Lifeline::Held,
        }
    }
}
