//! Prints the output of ranks to the supervisor's own output, each line prefixed with its rank.
//!
//! An unfinished line (a progress bar, a question) is printed as it grows; if another rank prints meanwhile, the line
//! is broken. A progress bar, which returns to the start of its line, becomes a new line each time, as with torchrun:
//! several ranks cannot overwrite one line.
//!
//! A separate thread follows the log files, so that a blocked terminal delays nothing else. It reads what the guard has
//! written and changes nothing.

use crate::job::{Incarnation, ProcId, Role};
use crate::launch::guard::run_dir::RunDir;
use crate::private;
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::fs::inotify::{CreateFlags, WatchFlags};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Maximum backlog in one file, in bytes; beyond it the older part is skipped and counted.
const BEHIND_BYTES_MAX: u64 = 1 << 20;
/// Maximum length of a line in bytes; a longer line is broken.
const LINE_BYTES_MAX: usize = 16 << 10;
/// Time after which an unfinished line is printed as far as it was written.
const SHOWN_WITHIN: Duration = Duration::from_millis(250);
/// Time that the end waits for the last lines to be printed.
const LAST_LINES_WITHIN: Duration = Duration::from_secs(1);
/// Stack size of the thread in bytes.
const STACK_BYTES: usize = 128 << 10;

/// The thread's handle. Dropping it ends the thread without waiting for the last lines.
#[derive(Debug)]
pub(super) struct Tee(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Event descriptor that signals a change of one of the next two fields.
    bell: OwnedFd,
    new: Mutex<Vec<(ProcId, Begin)>>,
    ended: AtomicBool,
    dropped_bytes: AtomicU64,
    finished: Notify,
}

/// Selects the start of the printed output of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// Print the output from the beginning: the process was started by this launcher.
    Start,
    /// Print the output from now on: the process ran before.
    Now,
}

impl Tee {
    /// Starts the thread, which follows no process yet.
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
            open: OpenLines::of_this_process(),
        };
        let thread = std::thread::Builder::new().name("taskd-tee".into()).stack_size(STACK_BYTES);
        thread.spawn(move || follower.run())?;
        Ok(Tee(shared))
    }

    /// Follows a process, and stops following an earlier incarnation of its role.
    pub(super) fn follow(&self, proc: ProcId, begin: Begin) {
        self.0.new.lock().unwrap_or_else(PoisonError::into_inner).push((proc, begin));
        self.0.ring();
    }

    /// Returns the number of bytes that were skipped or that the output did not accept.
    pub(super) fn dropped_bytes(&self) -> u64 {
        self.0.dropped_bytes.load(Ordering::Relaxed)
    }

    /// Prints the remaining output and ends; stops waiting for an output that does not accept it.
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
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes()); // fails only if it is signalled already
    }

    fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.ring();
    }
}

/// The state of the thread.
struct Follower {
    shared: Arc<Shared>,
    run_dir: RunDir,
    /// Time at which the thread was started, in seconds since the Unix epoch: output from before it belongs to an
    /// earlier job.
    begun_s: i64,
    watcher: OwnedFd,
    followed: BTreeMap<Role, Followed>,
    open: OpenLines,
}

/// The followed output of one process.
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
            let now = Instant::now();
            let mut next = None::<Instant>;
            for tail in self.followed.values_mut().flat_map(|followed| &mut followed.tails) {
                tail.advance(&mut self.open, now, &self.shared.dropped_bytes);
                if ended {
                    tail.finish(&mut self.open, &self.shared.dropped_bytes);
                }
                let due = tail.show(&mut self.open, now, &self.shared.dropped_bytes);
                next = next.into_iter().chain(due).min();
            }
            if ended {
                return self.shared.finished.notify_one();
            }
            self.wait(next.map(|next| next.saturating_duration_since(now)));
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
                let _ = rustix::fs::inotify::remove_watch(&self.watcher, old.watch); // it may be gone already
                for tail in &mut old.tails {
                    tail.advance(&mut self.open, Instant::now(), &self.shared.dropped_bytes);
                    tail.finish(&mut self.open, &self.shared.dropped_bytes);
                }
            }
            if let Ok(followed) = self.begin_with(&proc, begin) {
                self.followed.insert(proc.role, followed);
            }
        }
    }

    fn begin_with(&self, proc: &ProcId, begin: Begin) -> io::Result<Followed> {
        let directory = self.run_dir.proc_dir(proc);
        private::make_dir(&directory)?;
        let what = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO;
        let watch = rustix::fs::inotify::add_watch(&self.watcher, &directory, what)?;
        let tails = [("stdout.log", false), ("stderr.log", true)].map(|(file, is_stderr)| {
            let path = directory.join(file);
            let older = fs::metadata(&path).ok().filter(|m| begin == Begin::Now || m.mtime() < self.begun_s);
            let open = older.and_then(|m| Some((File::open(&path).ok()?, m.len())));
            Tail { path, open, line: Line::new(format!("[{}] ", proc.role), is_stderr) }
        });
        Ok(Followed { incarnation: proc.incarnation, watch, tails })
    }

    /// Waits until something was written, the event descriptor is signalled, or `at_most` has passed. All files are
    /// read then, so the file that changed does not matter.
    fn wait(&self, at_most: Option<Duration>) {
        let sources = [PollFd::new(&self.shared.bell, PollFlags::IN), PollFd::new(&self.watcher, PollFlags::IN)];
        let mut sources = sources;
        let at_most = at_most.and_then(|at_most| (at_most + Duration::from_millis(1)).try_into().ok()); // never too early
        let _ = rustix::event::poll(&mut sources, at_most.as_ref()); // interrupted: one extra read
        for source in [&self.shared.bell, &self.watcher] {
            let mut taken = [0u8; 4096];
            while rustix::io::read(source, &mut taken).is_ok_and(|n| n == taken.len()) {}
        }
    }
}

/// One followed file and the position up to which it was printed.
struct Tail {
    path: PathBuf,
    /// The open file and the position up to which it was read.
    open: Option<(File, u64)>,
    line: Line,
}

impl Tail {
    /// Prints the new content of the file.
    fn advance(&mut self, open: &mut OpenLines, now: Instant, dropped: &AtomicU64) {
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
            let text = self.line.take(&new, now, open);
            text.print(self.line.is_stderr, dropped);
            // The file may have been replaced meanwhile.
            match fs::metadata(&self.path) {
                Ok(now) if now.ino() != found.ino() => self.open = None,
                _ => return,
            }
        }
    }

    /// Prints an unfinished line that has not grown for a while; returns the time of the next call if a line is
    /// pending.
    fn show(&mut self, open: &mut OpenLines, now: Instant, dropped: &AtomicU64) -> Option<Instant> {
        let due = self.line.since? + SHOWN_WITHIN;
        if due > now {
            return Some(due);
        }
        let text = self.line.shown(open);
        text.print(self.line.is_stderr, dropped);
        None
    }

    /// Prints a last line without a line end.
    fn finish(&mut self, open: &mut OpenLines, dropped: &AtomicU64) {
        let text = self.line.end(open);
        text.print(self.line.is_stderr, dropped);
    }
}

/// Text to print for one stream of a process.
#[derive(Debug, Default, PartialEq, Eq)]
struct Text {
    /// True if an unfinished line on the other stream has to be ended first.
    ends_other: bool,
    text: Vec<u8>,
}

/// The unfinished line on each output stream: the prefix of its rank, and which stream it was written to.
#[derive(Debug, Default)]
struct OpenLines {
    /// Unfinished lines by stream, stdout first; only the first is used if both streams are one terminal.
    lines: [Option<(String, bool)>; 2],
    is_one: bool,
}

impl OpenLines {
    fn of(&mut self, is_stderr: bool) -> &mut Option<(String, bool)> {
        &mut self.lines[usize::from(is_stderr && !self.is_one)]
    }
}

impl OpenLines {
    fn of_this_process() -> OpenLines {
        let is_one = io::stdout().is_terminal() && io::stderr().is_terminal();
        OpenLines { is_one, ..OpenLines::default() }
    }
}

impl Text {
    fn print(&self, is_stderr: bool, dropped: &AtomicU64) {
        let put = |is_stderr: bool, text: &[u8]| match is_stderr {
            true => io::stderr().lock().write_all(text),
            false => io::stdout().lock().write_all(text).and_then(|()| io::stdout().flush()),
        };
        let ended = if self.ends_other { put(!is_stderr, b"\n") } else { Ok(()) };
        let printed = if self.text.is_empty() { Ok(()) } else { put(is_stderr, &self.text) };
        if ended.and(printed).is_err() {
            dropped.fetch_add(self.text.len() as u64, Ordering::Relaxed);
        }
    }
}

/// The line that is being read from one stream of a process.
struct Line {
    prefix: String,
    is_stderr: bool,
    /// Bytes that were read and are not printed yet.
    bytes: Vec<u8>,
    /// Time of the last new bytes, if there are bytes that are not printed.
    since: Option<Instant>,
    /// True if a part of the line was printed.
    is_begun: bool,
    /// True if the previous line ended with a carriage return: a following line feed belongs to it.
    has_returned: bool,
}

impl Line {
    const fn new(prefix: String, is_stderr: bool) -> Line {
        Line { prefix, is_stderr, bytes: Vec::new(), since: None, is_begun: false, has_returned: false }
    }

    /// Adds bytes that were read, and returns the text to print.
    fn take(&mut self, new: &[u8], now: Instant, open: &mut OpenLines) -> Text {
        let mut text = Text::default();
        for byte in new {
            let has_returned = std::mem::take(&mut self.has_returned);
            let has_something = self.is_begun || !self.bytes.is_empty();
            match byte {
                b'\n' if has_returned => {}
                b'\r' if !has_something => {}
                b'\n' | b'\r' => {
                    self.put(&mut text, true, open);
                    self.has_returned = *byte == b'\r';
                }
                byte => {
                    self.bytes.push(*byte);
                    if self.bytes.len() >= LINE_BYTES_MAX {
                        self.put(&mut text, true, open);
                    }
                }
            }
        }
        if !new.is_empty() {
            self.since = (!self.bytes.is_empty()).then_some(now);
        }
        text
    }

    /// Returns the text to print of an unfinished line.
    fn shown(&mut self, open: &mut OpenLines) -> Text {
        let mut text = Text::default();
        self.put(&mut text, false, open);
        text
    }

    /// Returns the text to print at the end of the stream.
    fn end(&mut self, open: &mut OpenLines) -> Text {
        let mut text = Text::default();
        if self.is_begun || !self.bytes.is_empty() {
            self.put(&mut text, true, open);
        }
        text
    }

    /// Appends the unprinted bytes to `text`, as a continuation of the line that this one has begun unless another line
    /// has ended it meanwhile.
    fn put(&mut self, text: &mut Text, is_end: bool, open: &mut OpenLines) {
        let line = open.of(self.is_stderr);
        let goes_on =
            line.as_ref().is_some_and(|(prefix, on_stderr)| (prefix, *on_stderr) == (&self.prefix, self.is_stderr));
        let was_ended = self.is_begun && !goes_on && self.bytes.is_empty();
        if !goes_on && !was_ended {
            match line.take() {
                Some((_, on_stderr)) if on_stderr != self.is_stderr => text.ends_other = true,
                Some(_) => text.text.push(b'\n'),
                None => {}
            }
            text.text.extend_from_slice(self.prefix.as_bytes());
        }
        text.text.append(&mut self.bytes);
        if !is_end {
            *line = Some((self.prefix.clone(), self.is_stderr));
        } else if !was_ended {
            text.text.push(b'\n');
            *line = None;
        }
        (self.is_begun, self.since) = (!is_end, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of two ranks, and their printed output.
    struct Printing {
        lines: [Line; 3],
        open: OpenLines,
        now: Instant,
    }

    const OUT_0: usize = 0;
    const ERR_0: usize = 1;
    const OUT_1: usize = 2;

    impl Printing {
        fn on(is_one: bool) -> Printing {
            let line = |prefix: &str, is_stderr| Line::new(prefix.to_owned(), is_stderr);
            let lines = [line("[0] ", false), line("[0] ", true), line("[1] ", false)];
            Printing { lines, open: OpenLines { is_one, ..OpenLines::default() }, now: Instant::now() }
        }

        fn reads(&mut self, which: usize, text: &str) -> String {
            text_of(self.lines[which].take(text.as_bytes(), self.now, &mut self.open))
        }

        /// Returns what is printed when no data has arrived for a while.
        fn waits(&mut self, which: usize) -> String {
            match self.lines[which].since {
                Some(_) => text_of(self.lines[which].shown(&mut self.open)),
                None => String::new(),
            }
        }

        fn ends(&mut self, which: usize) -> String {
            text_of(self.lines[which].end(&mut self.open))
        }
    }

    fn text_of(text: Text) -> String {
        let other = if text.ends_other { "(other)" } else { "" };
        format!("{other}{}", String::from_utf8(text.text).unwrap())
    }

    #[test]
    fn a_progress_bar_is_shown_as_it_moves() {
        let mut all = Printing::on(false);
        assert_eq!(all.reads(OUT_0, "\r  0%|    |"), "");
        assert_eq!(all.waits(OUT_0), "[0]   0%|    |");
        assert_eq!(all.waits(OUT_0), "", "once");
        assert_eq!(all.reads(OUT_0, "\r 50%|##  |"), "\n");
        assert_eq!(all.reads(OUT_0, "\r 75%|### |"), "[0]  50%|##  |\n");
        assert_eq!(all.reads(OUT_0, "\r100%|####|\n"), "[0]  75%|### |\n[0] 100%|####|\n");
        // Another kind of progress bar: each state ends with a carriage return.
        assert_eq!(all.reads(OUT_0, "1 of 2\r"), "[0] 1 of 2\n");
        assert_eq!(all.reads(OUT_0, "2 of 2\r"), "[0] 2 of 2\n");
        assert_eq!(all.reads(OUT_0, "\ndone\r"), "[0] done\n", "the end of a line, in two pieces");
        assert_eq!(all.reads(OUT_0, "\nof a file\r\n\r\n\nx\n"), "[0] of a file\n[0] \n[0] \n[0] x\n");
    }

    #[test]
    fn a_line_goes_on_where_it_was_left_unless_another_one_was_printed() {
        let mut all = Printing::on(false);
        assert_eq!(all.reads(OUT_0, "loading"), "");
        assert_eq!(all.waits(OUT_0), "[0] loading");
        assert_eq!(all.reads(OUT_0, " ... done\nnext"), " ... done\n");
        assert_eq!(all.waits(OUT_0), "[0] next");
        assert_eq!(all.reads(OUT_1, "hello\n"), "\n[1] hello\n");
        assert_eq!(all.reads(OUT_0, "\n"), "", "its line was ended");
        assert_eq!(all.reads(OUT_0, "more"), "");
        assert_eq!((all.waits(OUT_0), all.reads(OUT_1, "x\n")), ("[0] more".to_owned(), "\n[1] x\n".to_owned()));
        assert_eq!(all.reads(OUT_0, " of it\n"), "[0]  of it\n");
        assert_eq!((all.ends(OUT_0), all.ends(OUT_1)), (String::new(), String::new()));
        all.reads(OUT_0, "no end");
        assert_eq!(all.waits(OUT_0), "[0] no end");
        assert_eq!(all.ends(OUT_0), "\n");
        all.reads(OUT_0, "nor here");
        assert_eq!(all.ends(OUT_0), "[0] nor here\n");
    }

    #[test]
    fn the_two_streams_are_one_on_a_terminal_only() {
        for (is_one, error) in [(true, "(other)[0] oh\n"), (false, "[0] oh\n")] {
            let mut all = Printing::on(is_one);
            all.reads(OUT_0, "loading");
            assert_eq!(all.waits(OUT_0), "[0] loading");
            assert_eq!(all.reads(ERR_0, "oh\n"), error);
            assert_eq!(all.reads(OUT_0, "!\n"), if is_one { "[0] !\n" } else { "!\n" });
        }
    }

    #[test]
    fn a_line_without_end_is_broken() {
        let mut all = Printing::on(false);
        let long = "x".repeat(LINE_BYTES_MAX);
        assert_eq!(all.reads(OUT_0, &format!("{long}y\n")), format!("[0] {long}\n[0] y\n"));
    }
}
