//! One place to wait for everything: epoll with typed tokens.

use super::procs::Key;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Most events that are taken at once; the others come with the next call.
const EVENTS_MAX: usize = 64;
/// Longest wait: before Linux 5.11 one of 25 days cannot be asked for. Who waits longer looks, and waits again.
const WAIT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// What something happened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Token {
    /// A lifeline has news.
    Lifelines,
    /// A signal has come.
    Signals,
    /// A child has ended.
    Child(Key),
    /// The owner's process has ended.
    OwnerProcess,
    /// Somebody wants to connect.
    Listener,
    /// A guard has looked whether this one is there.
    Claim,
    /// Something was removed from the run directory.
    Place,
    /// A connection has bytes or room.
    Conn(Key),
    /// A pipe has output.
    Stdout(Key),
    /// A pipe has output.
    Stderr(Key),
    /// A standby has said something, or has ended.
    Seat(Key),
    /// A standby has printed something.
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
            _ => Token::SeatOutput(key),
        }
    }
}

/// What is waited for at a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interest {
    /// Something to read.
    pub(super) bytes: bool,
    /// Room to write.
    pub(super) room: bool,
}

/// The set of things that are waited for.
#[derive(Debug)]
pub(super) struct Poll {
    epoll: OwnedFd,
}

impl Poll {
    pub(super) fn new() -> io::Result<Poll> {
        Ok(Poll { epoll: epoll::create(CreateFlags::CLOEXEC)? })
    }

    /// Waits for bytes, or for the end, of `source`. Closing it ends that.
    pub(super) fn add(&self, source: impl AsFd, token: Token) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, source, EventData::new_u64(token.pack()), EventFlags::IN)?)
    }

    /// Waits for bytes in `source`, for room in it, for both, or only for its end.
    pub(super) fn set(&self, source: impl AsFd, token: Token, interest: Interest) -> io::Result<()> {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, interest.bytes);
        flags.set(EventFlags::OUT, interest.room);
        Ok(epoll::modify(&self.epoll, source, EventData::new_u64(token.pack()), flags)?)
    }

    pub(super) fn remove(&self, source: impl AsFd) {
        let _ = epoll::delete(&self.epoll, source); // it may never have been added
    }

    /// Waits, at most for `limit`. What is most urgent comes first.
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
            Token::SeatOutput(1 << 40),
        ];
        for token in all {
            assert_eq!(Token::unpack(token.pack()), token);
        }
    }
}
