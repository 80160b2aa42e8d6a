//! The single wait point of the server: Linux's epoll, level-triggered, with a token for each ready descriptor.
//!
//! It owns only its own descriptor; the system forgets watched descriptors that are closed.

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Maximum number of events returned at once.
const READY_MAX: usize = 512;
/// Time that it polls for more events before it sleeps: a sender has to wake a sleeping thread, which takes longer than
/// sending.
const LOOK: Duration = Duration::from_micros(30);

#[derive(Debug)]
pub(super) struct Poller {
    epoll: OwnedFd,
    /// Time for which the poller polls for events before it sleeps; zero on a single processor, which the senders need.
    look: Duration,
}

/// The events of the last wait.
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

/// The events to wait for on a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interest {
    /// Wait until the descriptor is readable.
    Input,
    /// Wait until the descriptor is writable.
    Output,
    /// Wait until the descriptor is readable or writable.
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

/// A ready descriptor: readable, unless a field states otherwise.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    pub(super) token: u64,
    pub(super) output: bool,
    /// True if the connection is broken.
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

    /// Waits for events for `timeout` at most, and replaces the content of `events`. If that had events, it polls
    /// briefly first, since more are likely to follow soon.
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
        // Rounded up to whole milliseconds, the resolution of Linux 4.18.
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
