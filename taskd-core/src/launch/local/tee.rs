//! What ranks print, on the supervisor's own output: each line with its rank in front.
//!
//! It follows the log files from a thread of its own, so that a terminal that stands still holds up nobody. It reads what
//! the guard has written and changes nothing.

use crate::job::{Incarnation, ProcId, Role};
use crate::launch::guard::run_dir::RunDir;
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::fs::inotify::{CreateFlags, WatchFlags};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// How far it may be behind in one file, in bytes; beyond it the older part is passed over and counted.
const BEHIND_BYTES_MAX: u64 = 1 << 20;
/// A longer line is broken.
const LINE_BYTES_MAX: usize = 16 << 10;
/// How long the end waits for the last lines to be printed.
const LAST_LINES_WITHIN: Duration = Duration::from_secs(1);
/// Stack of the thread in bytes.
const STACK_BYTES: usize = 128 << 10;

/// The thread's handle. Dropping it ends the thread without waiting for the last lines.
#[derive(Debug)]
pub(super) struct Tee(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Rings when one of the next two has changed.
    bell: OwnedFd,
    new: Mutex<Vec<(ProcId, Begin)>>,
    ended: AtomicBool,
    dropped_bytes: AtomicU64,
    finished: Notify,
}

/// From where on a process's output is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// From its start: it was started by this launcher.
    Start,
    /// From now on: it ran before.
    Now,
}

impl Tee {
    /// Starts the thread, which follows nobody yet.
    pub(super) fn start(run_dir: PathBuf) -> io::Result<Tee> {
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared {
            bell,
            new: Mutex::default(),
            ended: AtomicBool::new(false),
            dropped_bytes: AtomicU64::new(0),
            finished: Notify::new(),
        });
        let follower = Follower {
            shared: Arc::clone(&shared),
            run_dir: RunDir::new(run_dir),
            begun_s: rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec,
            watcher: rustix::fs::inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?,
            followed: BTreeMap::new(),
        };
        let thread = std::thread::Builder::new().name("taskd-tee".into()).stack_size(STACK_BYTES);
        thread.spawn(move || follower.run())?;
        Ok(Tee(shared))
    }

    /// Follows a process, and no longer an earlier incarnation of its role.
    pub(super) fn follow(&self, proc: ProcId, begin: Begin) {
        self.0.new.lock().unwrap_or_else(PoisonError::into_inner).push((proc, begin));
        self.0.ring();
    }

    /// Bytes that were passed over, or that nobody took.
    pub(super) fn dropped_bytes(&self) -> u64 {
        self.0.dropped_bytes.load(Ordering::Relaxed)
    }

    /// Prints what is there and ends; gives up on an output that does not take it.
    pub(super) async fn finish(&self) {
        let finished = self.0.finished.notified();
        self.0.end();
        let _ = tokio::time::timeout(LAST_LINES_WITHIN, finished).await;
    }
}

impl Drop for Tee {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Shared {
    fn ring(&self) {
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes()); // fails only when it rings as it is
    }

    fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.ring();
    }
}

/// The thread's own things.
struct Follower {
    shared: Arc<Shared>,
    run_dir: RunDir,
    /// What was printed before that is an earlier job's.
    begun_s: i64,
    watcher: OwnedFd,
    followed: BTreeMap<Role, Followed>,
}

/// The output of one process.
struct Followed {
    incarnation: Incarnation,
    watch: i32,
    tails: [Tail; 2],
}

impl Follower {
    fn run(mut self) {
        loop {
            let ended = self.shared.ended.load(Ordering::Acquire);
            self.take_new();
            for tail in self.followed.values_mut().flat_map(|followed| &mut followed.tails) {
                tail.advance(&self.shared.dropped_bytes);
                if ended {
                    tail.finish(&self.shared.dropped_bytes);
                }
            }
            if ended {
                return self.shared.finished.notify_one();
            }
            self.wait();
        }
    }

    fn take_new(&mut self) {
        let new = std::mem::take(&mut *self.shared.new.lock().unwrap_or_else(PoisonError::into_inner));
        for (proc, begin) in new {
            let known = self.followed.get(&proc.role).is_some_and(|old| old.incarnation >= proc.incarnation);
            if known {
                continue;
            }
            if let Some(mut old) = self.followed.remove(&proc.role) {
                let _ = rustix::fs::inotify::remove_watch(&self.watcher, old.watch); // it may have gone with its directory
                for tail in &mut old.tails {
                    tail.advance(&self.shared.dropped_bytes);
                    tail.finish(&self.shared.dropped_bytes);
                }
            }
            if let Ok(followed) = self.begin_with(&proc, begin) {
                self.followed.insert(proc.role, followed);
            }
        }
    }

    fn begin_with(&self, proc: &ProcId, begin: Begin) -> io::Result<Followed> {
        let directory = self.run_dir.proc_dir(proc);
        fs::create_dir_all(&directory)?;
        let what = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO;
        let watch = rustix::fs::inotify::add_watch(&self.watcher, &directory, what)?;
        let tails = [("stdout.log", false), ("stderr.log", true)].map(|(file, is_stderr)| {
            let path = directory.join(file);
            let older = fs::metadata(&path).ok().filter(|m| begin == Begin::Now || m.mtime() < self.begun_s);
            let open = older.and_then(|m| Some((File::open(&path).ok()?, m.len())));
            Tail { path, is_stderr, prefix: format!("[{}] ", proc.role), open, line: Vec::new() }
        });
        Ok(Followed { incarnation: proc.incarnation, watch, tails })
    }

    /// Waits until something was written, or the bell rings. Which file it was does not matter: all are looked at.
    fn wait(&self) {
        let sources = [PollFd::new(&self.shared.bell, PollFlags::IN), PollFd::new(&self.watcher, PollFlags::IN)];
        let mut sources = sources;
        let _ = rustix::event::poll(&mut sources, None); // interrupted: a look too many
        for source in [&self.shared.bell, &self.watcher] {
            let mut taken = [0u8; 4096];
            while rustix::io::read(source, &mut taken).is_ok_and(|n| n == taken.len()) {}
        }
    }
}

/// One file, and how much of it was printed.
struct Tail {
    path: PathBuf,
    is_stderr: bool,
    prefix: String,
    /// The file and how much of it was read.
    open: Option<(File, u64)>,
    /// The beginning of a line whose end is not there yet.
    line: Vec<u8>,
}

impl Tail {
    /// Prints what is new.
    fn advance(&mut self, dropped: &AtomicU64) {
        loop {
            if self.open.is_none() {
                self.open = File::open(&self.path).ok().map(|file| (file, 0));
            }
            let Some((file, read)) = &mut self.open else { return };
            let Ok(found) = file.metadata() else { return };
            let behind = found.len().saturating_sub(*read);
            if behind > BEHIND_BYTES_MAX {
                let passed_over = behind - BEHIND_BYTES_MAX;
                dropped.fetch_add(passed_over, Ordering::Relaxed);
                *read += passed_over;
            }
            let mut new = Vec::new();
            let begun = file.seek(SeekFrom::Start(*read));
            if begun.and_then(|_| file.take(found.len() - *read).read_to_end(&mut new)).is_err() {
                return;
            }
            *read += new.len() as u64;
            self.print(&new, dropped);
            // The file may have been begun anew meanwhile.
            match fs::metadata(&self.path) {
                Ok(now) if now.ino() != found.ino() => self.open = None,
                _ => return,
            }
        }
    }

    fn print(&mut self, new: &[u8], dropped: &AtomicU64) {
        let mut text = Vec::new();
        for part in new.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") || self.line.len() >= LINE_BYTES_MAX {
                text.extend_from_slice(self.prefix.as_bytes());
                text.append(&mut self.line);
                if !text.ends_with(b"\n") {
                    text.push(b'\n');
                }
            }
        }
        let printed = match self.is_stderr {
            true => io::stderr().lock().write_all(&text),
            false => io::stdout().lock().write_all(&text).and_then(|()| io::stdout().flush()),
        };
        if printed.is_err() {
            dropped.fetch_add(text.len() as u64, Ordering::Relaxed);
        }
    }

    /// Prints a last line that has no end.
    fn finish(&mut self, dropped: &AtomicU64) {
        if !self.line.is_empty() {
            self.print(b"\n", dropped);
        }
    }
}
