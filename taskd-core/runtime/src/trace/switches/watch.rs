//! A watched file that switches: the `profilingSwitch` document at the path where a platform writes it.
//!
//! A thread of its own reads the file, so that no other thread waits for the file system. An unreadable file switches
//! nothing.
//!
//! The whole file is read every [`LOOK_EVERY`]: it is short, and reading it takes some microseconds. inotify would have
//! to watch the file, the directory with the kubelet's `..data`, and the directory that it points to, and renew each
//! watch after every change; it does not report changes that another host makes on a shared file system, so polling
//! would be needed in addition. Modification times and inodes are less reliable than the content: a file can change
//! twice within one tick of its file system's clock.

use super::Requested;
use super::control::TraceControl;
use crate::job::Name;
use rustix::fs::OFlags;
use serde::Serialize;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};
use taskd_kernel::trace::switches::cut;

/// Interval between reads of the watched file of trace switches.
pub const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Maximum length of the watched file of trace switches, in bytes. A longer file is not applied, and counted in
/// [`FileStatus::refused`].
pub const FILE_BYTES_MAX: usize = 64 << 10;

/// Minimum interval between two log messages.
const SAY_EVERY: Duration = Duration::from_secs(30);

/// Maximum number of unknown keys that a message names.
const KEYS_SHOWN_MAX: usize = 4;

/// Name of the file as the origin of a request.
const FILE: Name = Name::new("file");

/// Status of the file from which the runtime reads the trace switches (which kinds of records ranks trace), with
/// counters of the reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FileStatus {
    /// Path of the file from which the trace switches are read.
    pub path: String,
    /// Current problem with the file of trace switches, and its remedy; `null` if there is none.
    pub trouble: Option<String>,
    /// Number of attempts to read the file of trace switches.
    pub looks: u64,
    /// Number of times that new content of the file of trace switches was applied as a request.
    pub switched: u64,
    /// Number of attempts to read the file of trace switches at which it did not exist.
    pub absent: u64,
    /// Number of attempts to read the file of trace switches at which it was unreadable or invalid.
    pub refused: u64,
    /// Number of messages about the file of trace switches that were sent to the host program's `tracing` subscriber,
    /// at most one per 30 seconds.
    pub messages: u64,
}

/// Watcher of a file of trace switches, which select the kinds of records that ranks trace. Dropping this value
/// ends the watching.
///
/// The content of the file is applied as a request when it is first read, and again whenever it changes. Unchanged
/// content is not applied again, so an operator's request stays in force until the file changes. While the file is
/// absent or invalid, the switches stay as they are.
#[derive(Debug)]
#[must_use = "the file is followed until this is dropped"]
pub struct SwitchFile {
    _alive: Sender<()>,
}

impl SwitchFile {
    /// Watches a file of trace switches and applies its content to `control`. A separate thread reads the file, so that
    /// an unresponsive file system delays no other thread. The file may be created later, removed and replaced. Use one
    /// watcher per `TraceControl`.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be created.
    pub fn follow(path: impl Into<PathBuf>, control: TraceControl) -> io::Result<SwitchFile> {
        let (alive, dropped) = channel();
        let mut follower = Follower::new(path.into(), control);
        thread::Builder::new().name("taskd-switches".into()).spawn(move || {
            loop {
                follower.look(Instant::now());
                if dropped.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Disconnected) {
                    return;
                }
            }
        })?;
        Ok(SwitchFile { _alive: alive })
    }
}

/// State of the watching thread between two reads.
#[derive(Debug)]
struct Follower {
    path: PathBuf,
    control: TraceControl,
    /// The last request read from the file.
    taken: Option<Requested>,
    /// Time and text of the last message; the text is empty if the problem has gone since.
    logged: Option<(Instant, String)>,
}

impl Follower {
    fn new(path: PathBuf, control: TraceControl) -> Follower {
        control.note_file(|file| *file = FileStatus { path: path.display().to_string(), ..FileStatus::default() });
        Follower { path, control, taken: None, logged: None }
    }

    fn look(&mut self, now: Instant) {
        self.control.note_file(|file| file.looks += 1);
        let trouble = match read(&self.path) {
            Ok(document) => self.take(&document),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.control.note_file(|file| file.absent += 1);
                Some("it does not exist: create it to switch recording".to_owned())
            }
            Err(error) => {
                self.control.note_file(|file| file.refused += 1);
                Some(format!("it cannot be read: {error}"))
            }
        };
        self.log(now, trouble.as_deref().unwrap_or_default());
        self.control.note_file(|file| file.trouble = trouble);
    }

    /// Switches if the request in the file has changed. Returns the problem with the file, if any.
    fn take(&mut self, document: &[u8]) -> Option<String> {
        let (requested, unknown) = match Requested::parse(document) {
            Ok(read) => read,
            Err(error) => {
                self.control.note_file(|file| file.refused += 1);
                return Some(error.to_string());
            }
        };
        if self.taken != Some(requested) {
            self.taken = Some(requested);
            let ranks = self.control.switch(requested, FILE);
            self.control.note_file(|file| file.switched += 1);
            tracing::info!(path = %self.path.display(), %requested, ranks, "the file has switched the recorded kinds");
        }
        if unknown.is_empty() {
            return None;
        }
        let count = unknown.len();
        let shown: Vec<String> = unknown.into_iter().take(KEYS_SHOWN_MAX).map(cut).collect();
        Some(format!("{count} of its keys are unknown ({}): check them for misspelt kinds", shown.join(", ")))
    }

    /// Logs a problem once, and at most one message per [`SAY_EVERY`].
    fn log(&mut self, now: Instant, trouble: &str) {
        if let Some((at, text)) = &mut self.logged {
            if trouble.is_empty() {
                text.clear();
            }
            if text == trouble || now.saturating_duration_since(*at) < SAY_EVERY {
                return;
            }
        }
        if !trouble.is_empty() {
            tracing::warn!(path = %self.path.display(), "the file for the switches: {trouble}");
            self.control.note_file(|file| file.messages += 1);
            self.logged = Some((now, trouble.to_owned()));
        }
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let nonblock = OFlags::NONBLOCK.bits().cast_signed(); // opening a pipe without a writer would block
    let file = OpenOptions::new().read(true).custom_flags(nonblock).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut document = Vec::new();
    file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut document)?;
    match document.len() > FILE_BYTES_MAX {
        true => Err(io::Error::other(format!("it is longer than {FILE_BYTES_MAX} bytes"))),
        false => Ok(document),
    }
}

#[cfg(test)]
mod tests;
