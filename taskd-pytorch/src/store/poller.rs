//! One place to wait at: Linux's epoll, level-triggered, with a number for whatever is ready.
//!
//! It owns no descriptor but its own; who is closed is forgotten by the system.

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Most that are told at once.
const READY_MAX: usize = 512;
/// How long it looks for more before it sleeps: whoever sends something to a sleeper has to wake it, which takes longer than to send.
const LOOK: Duration = Duration::from_micros(30);

#[derive(Debug)]
pub(super) struct Poller {
    epoll: OwnedFd,
    /// None where there is one processor, which the others need to send.
    look: Duration,
}

/// Who was ready when it was last waited.
#[derive(Default)]
pub(super) struct Events(Vec<Event>);

impl Events {
    pub(super) fn ready(&self) -> impl Iterator<Item = Ready> {
        self.0.iter().map(Ready::from)
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Events({})", self.0.len())
    }
}

/// What somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interest {
    /// To read.
    Input,
    /// To write.
    Output,
    /// Either.
    Both,
}

impl Interest {
    const fn flags(self) -> EventFlags {
        match self {
            Interest::Input => EventFlags::IN,
            Interest::Output => EventFlags::OUT,
            Interest::Both => EventFlags::IN.union(EventFlags::OUT),
        }
    }
}

/// Who is ready: to be read from, if nothing else is said.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    pub(super) token: u64,
    pub(super) output: bool,
    /// The connection is broken.
    pub(super) broken: bool,
}

impl Poller {
    pub(super) fn new() -> io::Result<Poller> {
        let is_alone = std::thread::available_parallelism().is_ok_and(|processors| processors.get() == 1);
        let look = if is_alone { Duration::ZERO } else { LOOK };
        Ok(Poller { epoll: epoll::create(CreateFlags::CLOEXEC)?, look })
    }

    pub(super) fn add(&self, fd: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(token), interest.flags())?)
    }

    pub(super) fn change(&self, fd: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, fd, EventData::new_u64(token), interest.flags())?)
    }

    pub(super) fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd); // it is closed next, which does the same
    }

    /// Waits until somebody is ready, so long at most. What `events` held is gone; if it held something there is more to come
    /// soon, most likely.
    pub(super) fn wait(&self, timeout: Option<Duration>, Events(events): &mut Events) -> io::Result<()> {
        let look =
            if events.is_empty() { Duration::ZERO } else { timeout.map_or(self.look, |most| most.min(self.look)) };
        events.clear();
        events.reserve(READY_MAX);
        let begun = Instant::now();
        while begun.elapsed() < look {
            self.ready_within(Some(Duration::ZERO), events)?;
            if !events.is_empty() {
                return Ok(());
            }
        }
        self.ready_within(timeout, events)
    }

    fn ready_within(&self, timeout: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()> {
        // Whole milliseconds, up: the form that Linux 4.18 has.
        let timeout = timeout.map(|timeout| {
            let millis = i64::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX).min(86_400_000);
            Timespec { tv_sec: millis / 1000, tv_nsec: millis % 1000 * 1_000_000 }
        });
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl From<&Event> for Ready {
    fn from(event: &Event) -> Ready {
        let flags = event.flags;
        Ready {
            token: event.data.u64(),
            output: flags.contains(EventFlags::OUT),
            broken: flags.intersects(EventFlags::ERR.union(EventFlags::HUP)),
        }
    }
}
