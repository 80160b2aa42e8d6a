//! The guard's single wait: epoll with typed tokens.

use super::procs::Key;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Maximum number of events taken at once; the others come with the next call.
const EVENTS_MAX: usize = 64;
/// Longest wait, since before Linux 5.11 epoll cannot wait for 25 days or more. For a longer wait the caller waits
/// again.
const WAIT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Source of an event. The order of the variants is the order in which events are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Token {
    /// The time until which processes may run is over.
    Fence,
    /// A lifeline has reported a death.
    Lifelines,
    /// A signal is pending.
    Signals,
    /// Standbys have got their control groups.
    Settled,
    /// A child has ended.
    Child(Key),
    /// The owner's process has ended.
    OwnerProcess,
    /// A client connects.
    Listener,
    /// Another guard has tested whether this one exists.
    Claim,
    /// A file was removed from the run directory.
    Place,
    /// A connection can be read or written.
    Conn(Key),
    /// The stdout pipe has output.
    Stdout(Key),
    /// The stderr pipe has output.
    Stderr(Key),
    /// A standby has sent a message, or has ended.
    Seat(Key),
    /// A standby has printed output.
    SeatOutput(Key),
}

impl Token {
    const KINDS: u64 = 16;

    const fn pack(self) -> u64 {
        match self {
            Token::Lifelines => 0,
            Token::Signals => 1,
            Token::OwnerProcess => 2,
            Token::Listener => 3,
            Token::Child(key) => 4 + key * Token::KINDS,
            Token::Conn(key) => 5 + key * Token::KINDS,
            Token::Stdout(key) => 6 + key * Token::KINDS,
            Token::Stderr(key) => 7 + key * Token::KINDS,
            Token::Seat(key) => 8 + key * Token::KINDS,
            Token::SeatOutput(key) => 9 + key * Token::KINDS,
            Token::Claim => 10,
            Token::Place => 11,
            Token::Fence => 12,
            Token::Settled => 13,
        }
    }

    const fn unpack(packed: u64) -> Token {
        let key = packed / Token::KINDS;
        match packed % Token::KINDS {
            0 => Token::Lifelines,
            1 => Token::Signals,
            2 => Token::OwnerProcess,
            3 => Token::Listener,
            4 => Token::Child(key),
            5 => Token::Conn(key),
            6 => Token::Stdout(key),
            7 => Token::Stderr(key),
            8 => Token::Seat(key),
            10 => Token::Claim,
            11 => Token::Place,
            12 => Token::Fence,
            13 => Token::Settled,
            _ => Token::SeatOutput(key),
        }
    }
}

/// Events requested for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interest {
    /// Readable.
    pub(super) bytes: bool,
    /// Writable.
    pub(super) room: bool,
}

/// The set of watched descriptors.
#[derive(Debug)]
pub(super) struct Poll {
    epoll: OwnedFd,
}

impl Poll {
    pub(super) fn new() -> io::Result<Poll> {
        Ok(Poll { epoll: epoll::create(CreateFlags::CLOEXEC)? })
    }

    /// Watches `source` for input and for its end. Closing the descriptor removes it.
    pub(super) fn add(&self, source: impl AsFd, token: Token) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, source, EventData::new_u64(token.pack()), EventFlags::IN)?)
    }

    /// Changes the watch of `source` to input, room to write, both, or only its end.
    pub(super) fn set(&self, source: impl AsFd, token: Token, interest: Interest) -> io::Result<()> {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, interest.bytes);
        flags.set(EventFlags::OUT, interest.room);
        Ok(epoll::modify(&self.epoll, source, EventData::new_u64(token.pack()), flags)?)
    }

    pub(super) fn remove(&self, source: impl AsFd) {
        let _ = epoll::delete(&self.epoll, source); // it may never have been added
    }

    /// Waits for events, at most for `limit`; returns them with the most urgent first.
    pub(super) fn wait(&self, limit: Option<Duration>) -> Vec<Token> {
        let limit = limit.and_then(|limit| Timespec::try_from(limit.min(WAIT_MAX)).ok());
        let mut events = Vec::<Event>::with_capacity(EVENTS_MAX);
        let waited = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), limit.as_ref());
        if waited.is_err() {
            return Vec::new(); // interrupted
        }
        let mut tokens: Vec<Token> = events.iter().map(|event| Token::unpack(event.data.u64())).collect();
        tokens.sort_unstable();
        tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_packing() {
        let all = [
            Token::Lifelines,
            Token::Signals,
            Token::OwnerProcess,
            Token::Listener,
            Token::Child(0),
            Token::Conn(1),
            Token::Stdout(1 << 40),
            Token::Stderr(77),
            Token::Seat(3),
            Token::Fence,
            Token::Settled,
            Token::SeatOutput(1 << 40),
        ];
        for token in all {
            assert_eq!(Token::unpack(token.pack()), token);
        }
    }
}
