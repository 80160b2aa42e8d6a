//! The queue of messages to the guard: whole frames, in the order in which they were added.
//!
//! The link's task writes them as fast as the socket accepts them. When a launcher is dropped, its last message is
//! written by the dropping thread, since there may be neither a task nor a runtime any more. The queue therefore holds
//! a descriptor of the connection of its own, which the end of a runtime does not close.

use crate::launch::guard::wire::{self, Call, ToGuard};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// How often a full socket is waited for before the last message is abandoned: the guard has not run for that time, and
/// will apply its action for the loss of its owner.
const LAST_WORD_WAITS: u32 = 10;
/// Duration of each wait.
const LAST_WORD_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// The outgoing queue, shared by the link's task and by the code that drops the launcher.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    way: Mutex<Way>,
    /// Notified when something was added that the task has not seen.
    pub(super) added: Notify,
}

#[derive(Debug, Default)]
struct Way {
    /// The connection's socket; `None` if there is no connection.
    socket: Option<OwnedFd>,
    unsent: Vec<u8>,
    /// Number of times that a stop of everything was ordered.
    wound_down: u64,
}

/// Reasons why a call is not sent.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotSent {
    #[error("all processes were ordered to stop before this start")]
    Withdrawn,
    #[error(transparent)]
    TooLong(#[from] io::Error),
}

impl Outgoing {
    fn way(&self) -> MutexGuard<'_, Way> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner) // no foreign code runs while it is locked
    }

    /// Sets the connection on which queued messages are sent from now on.
    pub(super) fn connect(&self, stream: &impl AsFd) -> io::Result<()> {
        self.way().socket = Some(stream.as_fd().try_clone_to_owned()?);
        Ok(())
    }

    /// Drops the connection and all messages that were not sent.
    pub(super) fn disconnect(&self) {
        let mut way = self.way();
        (way.socket, way.unsent) = (None, Vec::new());
    }

    /// Returns how often a stop of everything has been ordered.
    pub(super) fn wound_down(&self) -> u64 {
        self.way().wound_down
    }

    /// Adds a call. `ordered_at`: the number of stops of everything at the time of the order.
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

    /// Returns the number of bytes that the socket has not accepted yet.
    pub(super) fn unsent(&self) -> usize {
        self.way().unsent.len()
    }

    /// Sends as much as the socket accepts.
    ///
    /// # Errors
    /// `WouldBlock` if it does not accept everything; any other error means that the guard is gone.
    pub(super) fn flush(&self) -> io::Result<()> {
        self.way().flush()
    }

    /// Sends the guard the message to stop everything, or also to end, without a task. Unsent starts that were ordered
    /// before it are withdrawn. Waits for a tenth of a second at most.
    pub(super) fn say_now(&self, word: &ToGuard) {
        let mut way = self.way();
        way.wound_down += 1;
        let Ok(frame) = wire::encode(word) else { return }; // a few bytes can always be encoded
        if way.socket.is_none() {
            return; // there is no guard that runs anything for this launcher
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
    fn the_last_message_follows_partly_sent_ones_and_withdraws_starts() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let outgoing = Outgoing::default();
        outgoing.connect(&ours).unwrap();
        drop(ours); // as when the runtime and its task are gone
        while outgoing.flush().is_ok() {
            outgoing.add(0, start(), 0).unwrap(); // until the socket is full, most likely within a frame
        }
        let reader = std::thread::spawn(move || {
            let (mut frames, mut part, mut received) = (Frames::new(FRAME_BYTES_MAX), [0; 4096], Vec::new());
            while let Ok(n @ 1..) = theirs.read(&mut part) {
                frames.push(&part[..n]);
                while let Some(message) = frames.next_message::<ToGuard>().unwrap() {
                    received.push(message);
                }
            }
            received
        });
        let ordered_at = outgoing.wound_down();
        outgoing.say_now(&ToGuard::Dropped { grace: Duration::from_secs(7) });
        assert!(matches!(outgoing.add(1, start(), ordered_at), Err(NotSent::Withdrawn)));
        assert!(outgoing.add(1, Call::Counters, ordered_at).is_ok(), "only starts are withdrawn");
        outgoing.disconnect();
        let received = reader.join().unwrap();
        assert!(matches!(received.last(), Some(ToGuard::Dropped { grace }) if *grace == Duration::from_secs(7)));
        assert!(received.len() > 2);
    }

    #[test]
    fn the_last_message_does_not_wait_for_a_guard_that_does_not_read() {
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
