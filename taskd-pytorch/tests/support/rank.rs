//! A rank as a launcher would start it, with a page that the test reads.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use tempfile::TempDir;

use super::python::PYTHON;
use super::start;

/// Offsets in the page.
pub(crate) const STATE: u64 = 20;
pub(crate) const STEP: u64 = 48;
pub(crate) const STEP_TIME: u64 = 56;
pub(crate) const BEAT_TIME: u64 = 64;
const WORD_OFFSET: u64 = 72;

/// A directory with a page, and ranks started on it.
#[derive(Debug)]
pub(crate) struct Rank {
    pub(crate) dir: TempDir,
}

/// The lifeline's word as the kernel and the guard see it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Lifeline {
    Untaken,
    Held,
    Released,
}

impl Rank {
    pub(crate) fn new() -> Rank {
        let rank = Rank { dir: tempfile::tempdir().unwrap() };
        fs::write(rank.page(), start::page()).unwrap();
        rank
    }

    pub(crate) fn page(&self) -> PathBuf {
        self.dir.path().join("page")
    }

    pub(crate) fn error_file(&self) -> PathBuf {
        self.dir.path().join("error.json")
    }

    /// Writes a file beside the page and gives its path.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// `argv` as the process that the page names, its output captured.
    pub(crate) fn command(&self, argv: &[&str]) -> Command {
        let mut command = start::start(&self.page(), argv);
        command.env("TORCHELASTIC_ERROR_FILE", self.error_file());
        command
    }

    /// Runs a Python program as the rank, to its end.
    pub(crate) fn run(&self, program: &str) -> Output {
        self.command(&[&PYTHON, "-c", program]).output().unwrap()
    }

    pub(crate) fn u32(&self, at: u64) -> u32 {
        let mut bytes = [0; 4];
        fs::File::open(self.page()).unwrap().read_exact_at(&mut bytes, at).unwrap();
        u32::from_ne_bytes(bytes)
    }

    pub(crate) fn u64(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        fs::File::open(self.page()).unwrap().read_exact_at(&mut bytes, at).unwrap();
        u64::from_ne_bytes(bytes)
    }

    pub(crate) fn lifeline(&self) -> Lifeline {
        const OWNER_DIED: u32 = 0x4000_0000;
        match self.u32(STATE) {
            0 => Lifeline::Untaken,
            _ if self.u32(u64::from(self.u32(WORD_OFFSET))) & OWNER_DIED != 0 => Lifeline::Released,
            _ => Lifeline::Held,
        }
    }
}
