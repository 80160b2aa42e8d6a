//! A file that switches: the `profilingSwitch` document where a platform puts it.
//!
//! It never waits in a thread of anybody else's, and never guesses: what it cannot read switches nothing.
//!
//! The file is read every [`LOOK_EVERY`], whole: it is short, and to read it costs some microseconds. inotify would have to watch
//! the file, the directory with the kubelet's `..data`, and the one it points to, each anew after every change; it
//! tells nothing of what another host changes on a shared file system; and so a look every now and then would be needed
//! beside it. Times and inodes say less than the content: a file can change twice within a tick of its file system's clock.

use super::control::TraceControl;
use super::requested::{Requested, cut};
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

/// How often the file is looked at.
pub const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Longest file that is read, in bytes.
pub const FILE_BYTES_MAX: usize = 64 << 10;

/// At most one message in so much time.
const SAY_EVERY: Duration = Duration::from_secs(30);

/// Most unknown keys that a message names.
const KEYS_SHOWN_MAX: usize = 4;

/// Under this name requests of the file are known.
const FILE: Name = Name::new("file");

/// How the file stands that switches, and what was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FileStatus {
    /// Where it is looked for.
    pub path: String,
    /// What is wrong with it, and what would help; `null` when all is well.
    pub trouble: Option<String>,
    /// How often it was looked at.
    pub looks: u64,
    /// How often it has switched.
    pub switched: u64,
    /// Looks at which it was not there.
    pub absent: u64,
    /// Looks at which it could not be read or understood.
    pub refused: u64,
    /// Messages to the host program's subscriber, of which there is at most one in 30 seconds.
    pub messages: u64,
}

/// A file that is followed until this is dropped.
///
/// What it says first switches, and so does every change; what it says over and over does not, so an operator's order holds
/// until the file changes. While it is not there, or is not understood, everything stays as it is.
#[derive(Debug)]
#[must_use = "the file is followed until this is dropped"]
pub struct SwitchFile {
    _alive: Sender<()>,
}

impl SwitchFile {
    /// Follows a file, which may come later, go, and be replaced, in a thread of its own: a file system that does not answer
    /// holds up nobody else. One for each control.
    ///
    /// # Errors
    /// When there is no thread to be had.
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

/// What the thread knows from one look to the next.
#[derive(Debug)]
struct Follower {
    path: PathBuf,
    control: TraceControl,
    /// What the file said last.
    taken: Option<Requested>,
    /// The last message, and when; it is empty when all was well since.
    said: Option<(Instant, String)>,
}

impl Follower {
    fn new(path: PathBuf, control: TraceControl) -> Follower {
        control.note_file(|file| *file = FileStatus { path: path.display().to_string(), ..FileStatus::default() });
        Follower { path, control, taken: None, said: None }
    }

    fn look(&mut self, now: Instant) {
        self.control.note_file(|file| file.looks += 1);
        let trouble = match read(&self.path) {
            Ok(document) => self.take(&document),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.control.note_file(|file| file.absent += 1);
                Some("it is not there: put it there, and it switches".to_owned())
            }
            Err(error) => {
                self.control.note_file(|file| file.refused += 1);
                Some(format!("it cannot be read: {error}"))
            }
        };
        self.tell(now, trouble.as_deref().unwrap_or_default());
        self.control.note_file(|file| file.trouble = trouble);
    }

    /// Switches if the file says something else than before. Returns what there is to complain of.
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
            tracing::info!(path = %self.path.display(), %requested, ranks, "the file has switched what is recorded");
        }
        if unknown.is_empty() {
            return None;
        }
        let count = unknown.len();
        let shown: Vec<String> = unknown.into_iter().take(KEYS_SHOWN_MAX).map(cut).collect();
        Some(format!("{count} of its keys mean nothing here ({}): see that none is a misspelt kind", shown.join(", ")))
    }

    /// Says what is wrong, once, and nothing else within [`SAY_EVERY`].
    fn tell(&mut self, now: Instant, trouble: &str) {
        if let Some((at, text)) = &mut self.said {
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
            self.said = Some((now, trouble.to_owned()));
        }
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let nonblock = OFlags::NONBLOCK.bits().cast_signed(); // a pipe without a writer would hold us
    let file = OpenOptions::new().read(true).custom_flags(nonblock).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
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
