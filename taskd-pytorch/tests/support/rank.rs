//! A rank as a launcher would start it, with a page that the test reads.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use super::python::PYTHON;

/// Offsets in the page.
pub(crate) const STATE: u64 = 20;
pub(crate) const STEP: u64 = 48;
pub(crate) const STEP_TIME: u64 = 56;
pub(crate) const BEAT_TIME: u64 = 64;
const WORD_OFFSET: u64 = 72;

/// Stands for the guard's child between fork and exec: names itself in the page, then becomes the program.
const BEFORE_EXEC: &str = r"
import os, struct, sys
start = open('/proc/self/stat', 'rb').read().rsplit(b')', 1)[1].split()[19]
with open(os.environ['TASKD_LIFELINE'], 'r+b') as page:
    page.seek(16)
    page.write(struct.pack('=I', os.getpid()))
    page.seek(24)
    page.write(struct.pack('=Q', int(start)))
os.execvp(sys.argv[1], sys.argv[1:])
";

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
        let mut page = vec![0; 4096];
        page[..8].copy_from_slice(b"TASKDPG1");
        page[8..12].copy_from_slice(&1u32.to_ne_bytes());
        page[12..16].copy_from_slice(&4096u32.to_ne_bytes());
        fs::write(rank.page(), page).unwrap();
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
        let mut command = Command::new(&*PYTHON);
        command.args(["-I", "-S", "-c", BEFORE_EXEC]).args(argv);
        command.env("PYTHONPATH", concat!(env!("CARGO_MANIFEST_DIR"), "/python"));
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command.env("PYTHON", &*PYTHON).env("PAGE", self.page());
        command.env("TASKD_LIFELINE", self.page()).env("TASKD_BEAT_MS", "20");
        command.env("TORCHELASTIC_ERROR_FILE", self.error_file());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
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

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
