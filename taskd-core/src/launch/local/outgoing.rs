//! What is said to the guard: whole frames, in the order in which they were given.
//!
//! The link's task writes them as the socket takes them. The last word of a launcher that is dropped is written by whoever
//! drops it: then there may be neither a task nor a runtime any more. So it holds the connection by a descriptor of its
//! own, which the end of a runtime does not close.

use crate::launch::guard::wire::{self, Call, ToGuard};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// How often a socket that is full is waited for until the last word is given up: the guard has not run for so long then,
/// and does what it was told for the loss of its owner.
const LAST_WORD_WAITS: u32 = 10;
/// How long each time.
const LAST_WORD_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// The way to the guard, shared by the link's task and by who drops the launcher.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    way: Mutex<Way>,
    /// Something was added that the task does not know of.
    pub(super) added: Notify,
}

#[derive(Debug, Default)]
struct Way {
    /// `None`: there is no connection.
    socket: Option<OwnedFd>,
    unsent: Vec<u8>,
    /// How often everything was told to stop.
    wound_down: u64,
}

/// Why a call is not sent.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotSent {
    #[error("everything was told to stop before this was started")]
    Withdrawn,
    #[error(transparent)]
    TooLong(#[from] io::Error),
}

impl Outgoing {
    fn way(&self) -> MutexGuard<'_, Way> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner) // no code of others runs under it
    }

    /// What waits goes out on this connection from now on.
    pub(super) fn connect(&self, stream: &impl AsFd) -> io::Result<()> {
        self.way().socket = Some(stream.as_fd().try_clone_to_owned()?);
        Ok(())
    }

    /// The connection is over, and with it what was not sent.
    pub(super) fn disconnect(&self) {
        let mut way = self.way();
        (way.socket, way.unsent) = (None, Vec::new());
    }

    /// How often everything was told to stop until now.
    pub(super) fn wound_down(&self) -> u64 {
        self.way().wound_down
    }

    /// Adds a call that was ordered when everything had been told to stop so often.
    pub(super) fn add(&self, id: u64, call: Call, ordered_at: u64) -> Result<(), NotSent> {
        let starts = matches!(call, Call::Start(_));
        let frame = wire::encode(&ToGuard::Call { id, call })?;
        let mut way = self.way();
        if starts && ordered_at < way.wound_down {
            return Err(NotSent::Withdrawn);
        }
        way.unsent.extend_from_slice(&frame);
        Ok(())
    }

    /// Bytes that the socket has not taken yet.
    pub(super) fn unsent(&self) -> usize {
        self.way().unsent.len()
    }

    /// Sends what the socket takes.
    ///
    /// # Errors
    /// `WouldBlock` when it does not take all; anything else means that nobody is there any more.
    pub(super) fn flush(&self) -> io::Result<()> {
        self.way().flush()
    }

    /// Tells the guard to stop everything, or to end as well, without a task. Starts that were ordered before it and not
    /// sent are withdrawn. Waits for a tenth of a second at most.
    pub(super) fn say_now(&self, word: &ToGuard) {
        let mut way = self.way();
        way.wound_down += 1;
        let Ok(frame) = wire::encode(word) else { return }; // a few bytes always have a form
        if way.socket.is_none() {
            return; // there is nobody who runs anything for us
        }
        way.unsent.extend_from_slice(&frame);
        for _ in 0..LAST_WORD_WAITS {
            match (way.flush(), &way.socket) {
                (Err(error), Some(socket)) if error.kind() == io::ErrorKind::WouldBlock => {
                    let _ = rustix::event::poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&LAST_WORD_WAIT));
                }
                _ => break,
            }
        }
        drop(way);
        self.added.notify_one();
    }
}

impl Way {
    fn flush(&mut self) -> io::Result<()> {
        let Some(socket) = &self.socket else { return Ok(()) };
        while !self.unsent.is_empty() {
            match rustix::net::send(socket, &self.unsent, SendFlags::NOSIGNAL) {
                Ok(n) => drop(self.unsent.drain(..n)),
                Err(Errno::INTR) => (),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::guard::wire::{FRAME_BYTES_MAX, Frames, WireBatch};
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    fn start() -> Call {
        Call::Start(WireBatch { specs: Vec::new(), orders: Vec::new() })
    }

    #[test]
    fn the_last_word_comes_whole_behind_what_was_half_sent_and_overtakes_no_start() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let outgoing = Outgoing::default();
        outgoing.connect(&ours).unwrap();
        drop(ours); // as when the runtime and its task are gone
        while outgoing.flush().is_ok() {
            outgoing.add(0, start(), 0).unwrap(); // until the socket is full, most likely within a frame
        }
        let reader = std::thread::spawn(move || {
            let (mut frames, mut part, mut heard) = (Frames::new(FRAME_BYTES_MAX), [0; 4096], Vec::new());
            while let Ok(n @ 1..) = theirs.read(&mut part) {
                frames.push(&part[..n]);
                while let Some(message) = frames.next::<ToGuard>().unwrap() {
                    heard.push(message);
                }
            }
            heard
        });
        let ordered_at = outgoing.wound_down();
        outgoing.say_now(&ToGuard::Dropped { grace: Duration::from_secs(7) });
        assert!(matches!(outgoing.add(1, start(), ordered_at), Err(NotSent::Withdrawn)));
        assert!(outgoing.add(1, Call::Counters, ordered_at).is_ok(), "only starts are withdrawn");
        outgoing.disconnect();
        let heard = reader.join().unwrap();
        assert!(matches!(heard.last(), Some(ToGuard::Dropped { grace }) if *grace == Duration::from_secs(7)));
        assert!(heard.len() > 2);
    }

    #[test]
    fn a_guard_that_does_not_read_holds_up_nobody() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let outgoing = Outgoing::default();
        outgoing.connect(&ours).unwrap();
        while outgoing.flush().is_ok() {
            outgoing.add(0, start(), 0).unwrap();
        }
        let begun = std::time::Instant::now();
        outgoing.say_now(&ToGuard::Dropped { grace: Duration::ZERO });
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    }
}
