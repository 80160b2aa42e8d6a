//! A rank as a launcher would start it, with a page that the test reads.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use super::pythons::system;
use super::start;
use crate::launch::python::{PythonFile, write_helper};

/// Where the page has the state of the lifeline (`u32`).
pub const STATE: u64 = 20;
/// Where the page has the number of the last completed step (`u64`).
pub const STEP: u64 = 48;
/// Where the page has the time of that step, in nanoseconds of the monotonic clock (`u64`).
pub const STEP_TIME: u64 = 56;
/// Where the page has the time of the last heartbeat, in nanoseconds of the monotonic clock (`u64`).
pub const BEAT_TIME: u64 = 64;
const WORD_OFFSET: u64 = 72;

/// A directory with a page, and ranks started on it.
#[derive(Debug)]
pub struct Rank {
    dir: TempDir,
    helper: TempDir,
}

/// The lifeline's word as the kernel and the guard see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifeline {
    /// Nobody has taken it.
    Untaken,
    /// Its owner lives.
    Held,
    /// Its owner has died, or has become another program.
    Released,
}

impl Rank {
    /// One with the helper of a framework with these files.
    ///
    /// # Panics
    /// Where files cannot be written.
    #[must_use]
    pub fn new(framework: &[PythonFile]) -> Rank {
        let rank = Rank { dir: tempfile::tempdir().unwrap(), helper: tempfile::tempdir().unwrap() };
        write_helper(&rank.helper(), framework).unwrap();
        fs::write(rank.page(), start::page()).unwrap();
        rank
    }

    /// The directory with the page, and with what the test writes there. Programs find the page as `$PAGE`.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The directory with the helper.
    #[must_use]
    pub fn helper(&self) -> PathBuf {
        start::helper_in(&self.helper)
    }

    /// The page.
    #[must_use]
    pub fn page(&self) -> PathBuf {
        self.dir.path().join("page")
    }

    /// Where the rank is to record its failure.
    #[must_use]
    pub fn error_file(&self) -> PathBuf {
        self.dir.path().join("error.json")
    }

    /// Writes a file beside the page and gives its path.
    ///
    /// # Panics
    /// Where it cannot be written.
    pub fn file(&self, name: &str, text: &str) -> String {
        let path = self.dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// `argv` as the process that the page names, its output captured. `$PYTHON` is [`system`].
    #[must_use]
    pub fn command(&self, argv: &[&str]) -> Command {
        let mut command = start::start(&self.page(), &self.helper(), argv);
        command.env("TASKD_ERROR_FILE", self.error_file());
        command
    }

    /// Runs a Python program as the rank, to its end.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn run(&self, program: &str) -> Output {
        self.command(&[system(), "-c", program]).output().unwrap()
    }

    /// What the page holds there.
    ///
    /// # Panics
    /// If it cannot be read.
    #[must_use]
    pub fn u32(&self, at: u64) -> u32 {
        let mut bytes = [0; 4];
        fs::File::open(self.page()).unwrap().read_exact_at(&mut bytes, at).unwrap();
        u32::from_ne_bytes(bytes)
    }

    /// What the page holds there.
    ///
    /// # Panics
    /// If it cannot be read.
    #[must_use]
    pub fn u64(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        fs::File::open(self.page()).unwrap().read_exact_at(&mut bytes, at).unwrap();
        u64::from_ne_bytes(bytes)
    }

    /// How the lifeline stands.
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
