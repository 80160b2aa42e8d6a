//! Output of processes, read from their pipes as fast as it comes, so that a write never blocks a rank.
//!
//! This module keeps the end of stderr in memory for the exit report and passes all output to the log writer.

use super::logs::{LogId, Logs};
use super::poll::Poll;
use crate::job::{Exit, printable};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// Maximum number of bytes read from one pipe before the others get their turn: a full pipe of the usual size.
pub(super) const TURN_BYTES_MAX: usize = 64 << 10;
/// Maximum number of bytes read from a pipe after its process has ended: a pipe of the largest size that is usually
/// allowed.
pub(super) const LAST_BYTES_MAX: usize = 1 << 20;

/// One output pipe of a process.
#[derive(Debug)]
pub(super) struct Stream {
    /// Reading end of the pipe; `None` after the last writer has closed it.
    pipe: Option<OwnedFd>,
    log: LogId,
    /// The user's log file, which both streams of a process share.
    shared: Option<LogId>,
    /// The last bytes of the output; for stderr only.
    tail: Option<VecDeque<u8>>,
}

impl Stream {
    /// Makes a stream whose output goes to a log.
    pub(super) const fn new(pipe: OwnedFd, log: LogId, shared: Option<LogId>) -> Stream {
        Stream { pipe: Some(pipe), log, shared, tail: None }
    }

    /// Also keeps the end of the output in memory.
    pub(super) fn keeping_tail(mut self) -> Stream {
        self.tail = Some(VecDeque::new());
        self
    }

    pub(super) const fn pipe(&self) -> Option<&OwnedFd> {
        self.pipe.as_ref()
    }

    /// Reads the available output, until about `bytes_max` bytes are read.
    pub(super) fn drain(&mut self, bytes_max: usize, poll: &Poll, logs: &Logs, scratch: &mut [u8]) {
        let mut read = 0;
        while read < bytes_max
            && let Some(pipe) = &self.pipe
        {
            match rustix::io::read(pipe, &mut *scratch) {
                Ok(0) => self.close(poll, logs),
                Ok(n) => {
                    read += n;
                    self.logs().for_each(|log| logs.write(log, &scratch[..n]));
                    if let Some(tail) = &mut self.tail {
                        keep_last(tail, &scratch[..n]);
                    }
                }
                Err(rustix::io::Errno::INTR) => (),
                Err(rustix::io::Errno::AGAIN) => return,
                Err(_) => self.close(poll, logs),
            }
        }
    }

    /// Writes a line of the guard after the process's own output. The line is not part of the kept end.
    pub(super) fn say(&self, logs: &Logs, line: &str) {
        if self.pipe.is_some() {
            self.logs().for_each(|log| logs.write(log, line.as_bytes()));
        }
    }

    /// Closes the pipe.
    pub(super) fn close(&mut self, poll: &Poll, logs: &Logs) {
        if let Some(pipe) = self.pipe.take() {
            poll.remove(pipe);
            self.logs().for_each(|log| logs.close(log));
        }
    }

    fn logs(&self) -> impl Iterator<Item = LogId> {
        [Some(self.log), self.shared].into_iter().flatten()
    }

    /// Returns the last lines, at most [`Exit::STDERR_TAIL_BYTES_MAX`] bytes.
    pub(super) fn tail_text(&self) -> String {
        let bytes: Vec<u8> = self.tail.iter().flatten().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let text = printable(&text); // longer than before, so it is cut once more
        let mut from = text.len().saturating_sub(Exit::STDERR_TAIL_BYTES_MAX); // replaced bytes make it longer
        while !text.is_char_boundary(from) {
            from += 1;
        }
        let is_cut = bytes.len() >= Exit::STDERR_TAIL_BYTES_MAX;
        let whole_lines = text[from..].find('\n').filter(|_| is_cut).map_or(0, |end| end + 1);
        text[from + whole_lines..].to_owned()
    }
}

fn keep_last(tail: &mut VecDeque<u8>, bytes: &[u8]) {
    let new = &bytes[bytes.len().saturating_sub(Exit::STDERR_TAIL_BYTES_MAX)..];
    let over = (tail.len() + new.len()).saturating_sub(Exit::STDERR_TAIL_BYTES_MAX);
    tail.drain(..over.min(tail.len()));
    tail.extend(new);
}
