//! What the threads that may block hand over to the source that must not.
//!
//! It holds nothing back and orders nothing.

use crate::xid::PciAddress;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use taskd_core::trace::Fact;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// Most pieces of news that wait for the source; one reading of one device is one.
const NEWS_MAX: usize = 1024;

/// One piece of news.
#[derive(Debug)]
pub(super) struct News {
    /// When it was seen.
    pub(super) at: Instant,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    /// Facts, ready to be told.
    Facts(Vec<Fact>),
    /// An Xid, which may come by another way as well.
    Xid(Xid),
    /// So many were lost where they come from.
    Lost(u64),
    /// Nothing can be had any more, and why. Told once, until it can again.
    Gone(String),
    /// All is well, and there is nothing to tell.
    Beat,
    /// The devices that are watched, with their places.
    Devices(Vec<(u16, Option<PciAddress>)>),
}

/// An Xid error, by one of its ways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Xid {
    pub(super) via: Via,
    pub(super) place: Place,
    pub(super) code: u32,
    pub(super) text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Via {
    Nvml,
    KernelLog,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Device(u16),
    Pci(PciAddress),
    /// An NVSwitch.
    Switch(Option<PciAddress>),
    Unknown,
}

/// Where threads put their news.
#[derive(Clone, Debug)]
pub(super) struct Outbox {
    sender: mpsc::Sender<News>,
    shared: Arc<Shared>,
}

/// What threads and source both see.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Facts for which there was no room.
    pub(super) dropped: AtomicU64,
    /// What is being done, for whoever wonders why nothing comes.
    pub(super) doing: Mutex<String>,
    pub(super) stop: Stop,
}

impl std::ops::Deref for Outbox {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Outbox {
    pub(super) fn new() -> (Outbox, Inbox) {
        let (sender, news) = mpsc::channel(NEWS_MAX);
        let shared = Arc::<Shared>::default();
        (Outbox { sender, shared: Arc::clone(&shared) }, Inbox { news, shared })
    }

    /// For what comes again: it is counted when there is no room. Whether it was taken.
    pub(super) fn offer(&self, what: What) -> bool {
        match self.sender.try_send(News { at: Instant::now(), what }) {
            Ok(()) => return true,
            Err(TrySendError::Full(News { what: What::Facts(facts), .. })) => {
                self.dropped.fetch_add(facts.len() as u64, Ordering::Relaxed);
            }
            Err(TrySendError::Full(_)) => {}
            Err(TrySendError::Closed(_)) => self.stop.now(),
        }
        false
    }

    /// For what happens once: waits for room.
    pub(super) fn put(&self, at: Instant, what: What) {
        if self.sender.blocking_send(News { at, what }).is_err() {
            self.stop.now();
        }
    }

    /// Says what is being done.
    pub(super) fn doing(&self, what: String) {
        *self.doing.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }
}

/// Where the source finds its threads' news. They end when it is dropped.
#[derive(Debug)]
pub(super) struct Inbox {
    pub(super) news: mpsc::Receiver<News>,
    pub(super) shared: Arc<Shared>,
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.shared.stop.now();
    }
}

/// How threads are told to end, and how they wait.
#[derive(Debug, Default)]
pub(super) struct Stop {
    is_over: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    pub(super) fn now(&self) {
        *self.is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    pub(super) fn is_over(&self) -> bool {
        *self.is_over.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for so long, or until the end. True: it is the end.
    pub(super) fn wait(&self, within: Duration) -> bool {
        let is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(is_over, within, |over| !*over);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}
