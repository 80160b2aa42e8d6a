//! Channel from the threads that may block to the source that must not block.

use crate::xid::PciAddress;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use taskd_core::trace::Fact;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// Maximum number of items that wait for the source; one reading of one device is one item.
const NEWS_MAX: usize = 1024;

/// One item from a thread.
#[derive(Debug)]
pub(super) struct News {
    /// Time at which it was seen.
    pub(super) at: Instant,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    /// Facts about devices that are ready to be reported.
    Facts(Vec<Fact>),
    /// An Xid from NVML or from the kernel log, which may arrive through the other one as well.
    Xid(Xid),
    /// Number of records of the kernel log that were lost before they could be read.
    Lost(u64),
    /// NVML no longer works; the field is the reason. Sent once, until NVML works again.
    Gone(String),
    /// NVML has answered, and there is nothing to report.
    Beat,
    /// The devices that are watched, by NVML index, with their PCI addresses.
    Devices(Vec<(u16, Option<PciAddress>)>),
}

/// An Xid error as one of the two channels delivered it.
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
    /// An NVSwitch, with its PCI address if it is known.
    Switch(Option<PciAddress>),
    Unknown,
}

/// The threads' end of the channel.
#[derive(Clone, Debug)]
pub(super) struct Outbox {
    sender: mpsc::Sender<News>,
    shared: Arc<Shared>,
}

/// State that the threads share with the source.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Number of facts for which the channel had no room.
    pub(super) dropped: AtomicU64,
    /// The operation in progress, for the error about a silent NVML.
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

    /// Sends an item that recurs: if there is no room, it is dropped and its facts are counted. Returns true if it was
    /// sent.
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

    /// Sends an item that happens once: waits for room.
    pub(super) fn put(&self, at: Instant, what: What) {
        if self.sender.blocking_send(News { at, what }).is_err() {
            self.stop.now();
        }
    }

    /// Records the operation in progress.
    pub(super) fn doing(&self, what: String) {
        *self.doing.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }
}

/// The source's end of the channel. Dropping it ends the threads.
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

/// Stop request for the threads, and the interruptible wait that they use.
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

    /// Waits for this time or until the stop request. Returns true if the stop was requested.
    pub(super) fn wait(&self, within: Duration) -> bool {
        let is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(is_over, within, |over| !*over);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}
