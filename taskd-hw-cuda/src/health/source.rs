//! The NVML source: merges what its threads found, in order of time and without duplicates.
//!
//! The source never blocks: calls that may block run on threads of their own.

use super::builder::{NvmlBuilder, Settings};
use super::codes::error;
use super::driver::Opened;
use super::fold::Fold;
use super::metric::XIDS_FOLDED;
use super::news::{Inbox, News, Place, What, Xid};
use crate::xid::{PciAddress, SXID, XID};
use async_trait::async_trait;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use taskd_core::job::{Domain, NodeId};
use taskd_core::trace::{Fact, Signal, SourceError, SourceInfo, TraceBatch, TraceSource, WhenFull};

/// Maximum number of GPUs that an NVML source watches on its node. It does not watch further GPUs.
pub const DEVICES_MAX: u16 = 64;

/// Maximum number of facts per batch.
const BATCH_FACTS_MAX: usize = 1024;

/// Number of intervals without an answer after which NVML is reported as silent, but not before [`SILENT_MIN`].
const SILENT_INTERVALS: u32 = 6;
const SILENT_MIN: Duration = Duration::from_secs(20);

/// Source of a node's GPU health (see the [module](super)).
///
/// NVML calls can block, some of them forever, when the driver does not work properly, so they run on separate threads.
/// If NVML has not answered for six intervals, and for at least 20 s, the source returns one error that names the
/// reading in progress. It also returns an error when NVML stops working, and then tries to open NVML again every 10 s.
///
/// ```
/// use taskd_core::job::{Name, NodeId};
/// use taskd_hw_cuda::health::{NvmlSource, Unavailable};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let here = NodeId(Name::new("localhost"));
/// match NvmlSource::builder(here).with_library("/no/driver/here.so").open().await {
///     Ok(source) => drop(source), // into a runtime with it
///     Err(Unavailable::NoLibrary { .. }) => {} // a machine without GPUs
///     Err(other) => panic!("{other}"),
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct NvmlSource {
    settings: Settings,
    info: SourceInfo,
    inbox: Inbox,
    devices: Vec<(u16, Option<PciAddress>)>,
    fold: Fold,
    folded_told: u64,
    /// Facts that were received and not returned yet.
    seen: Vec<(Instant, Fact)>,
    failed: Option<SourceError>,
    heard: Instant,
    is_silent: bool,
}

impl NvmlSource {
    /// Returns a builder of a source for the GPUs of this machine, whose name in the job is `node`.
    #[must_use]
    pub fn builder(node: NodeId) -> NvmlBuilder {
        NvmlBuilder::new(node)
    }

    pub(super) fn new(
        settings: Settings,
        opened: Opened,
        inbox: Inbox,
        log_is_read: bool,
        first: Vec<Fact>,
    ) -> NvmlSource {
        let info = SourceInfo::new("nvml").with_queue(256, WhenFull::Wait);
        let now = Instant::now();
        NvmlSource {
            settings,
            info: if opened.stand_in { info.with_stand_in() } else { info },
            inbox,
            devices: opened.devices,
            fold: Fold::new(log_is_read),
            folded_told: 0,
            seen: first.into_iter().map(|fact| (now, fact)).collect(),
            failed: None,
            heard: now,
            is_silent: false,
        }
    }

    fn node(&self) -> Domain {
        Domain::Node(self.settings.node.clone())
    }

    fn silent_at(&self) -> Instant {
        self.heard + SILENT_MIN.max(self.settings.interval * SILENT_INTERVALS)
    }

    fn take(&mut self, News { at, what }: News) {
        match what {
            What::Facts(facts) => self.seen.extend(facts.into_iter().map(|fact| (at, fact))),
            What::Xid(xid) => {
                if let Some(about) = self.about(&xid) {
                    let told = self.fold.take(at, about, xid);
                    self.seen.extend(told.map(tell));
                }
                return; // sent by other threads, so no sign that NVML answers
            }
            What::Lost(count) => {
                let fact = Fact::new(self.node(), Signal::Lost { count });
                self.seen.push((at, fact));
                return;
            }
            What::Gone(why) => {
                let text = format!("NVML stopped working: {why}; it is retried every few seconds");
                self.failed = Some(SourceError::Unavailable(text));
            }
            What::Devices(devices) => self.devices = devices,
            What::Beat => {}
        }
        self.heard = Instant::now();
        self.is_silent = false;
    }

    /// Returns the domain that an Xid is about, or `None` if its device is not to be watched.
    fn about(&self, xid: &Xid) -> Option<Domain> {
        let device = |index| Some(Domain::Device(self.settings.node.clone(), index));
        match xid.place {
            Place::Device(index) => device(index),
            Place::Pci(pci) => match self.devices.iter().find(|(_, place)| *place == Some(pci)) {
                Some((index, _)) => device(*index),
                // A wanted device may be missing from NVML's list, and this may be its Xid.
                None if self.settings.devices.as_ref().is_some_and(|all| all.len() == self.devices.len()) => None,
                None => Some(self.node()),
            },
            Place::Switch(_) | Place::Unknown => Some(self.node()),
        }
    }

    /// Returns the next batch or error, or `None` if there is nothing to return yet.
    fn ready(&mut self) -> Option<Result<TraceBatch, SourceError>> {
        let dropped = self.inbox.shared.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            self.seen.push((Instant::now(), Fact::new(self.node(), Signal::Lost { count: dropped })));
        }
        if self.seen.is_empty() {
            return self.failed.take().map(Err);
        }
        if self.fold.folded > self.folded_told {
            self.folded_told = self.fold.folded;
            let signal = Signal::Metric { name: XIDS_FOLDED, value: self.folded_told as f64 };
            self.seen.push((Instant::now(), Fact::new(self.node(), signal)));
        }
        self.seen.sort_by_key(|(at, _)| *at);
        let count = self.seen.len().min(BATCH_FACTS_MAX);
        let now = Instant::now();
        let facts = self.seen.drain(..count).map(|(at, fact)| fact.with_age(now.saturating_duration_since(at)));
        Some(Ok(TraceBatch::of(facts.collect())))
    }

    fn silent(&mut self) {
        self.is_silent = true;
        let doing = self.inbox.shared.doing.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let age = self.heard.elapsed().as_secs();
        let text =
            format!("NVML has not answered for {age} s ({doing}): the driver may be stuck, see the kernel's log");
        self.failed = Some(SourceError::Unavailable(text));
    }
}

/// Converts an Xid, with its time and domain, into a fact.
fn tell((at, about, xid): (Instant, Domain, Xid)) -> (Instant, Fact) {
    let (family, text) = match xid.place {
        Place::Switch(Some(pci)) => (SXID, format!("switch {pci}: {}", xid.text)),
        Place::Switch(None) => (SXID, xid.text),
        Place::Pci(pci) if !matches!(about, Domain::Device(..)) => (XID, format!("device {pci}: {}", xid.text)),
        _ => (XID, xid.text),
    };
    (at, Fact::new(about, error(family, xid.code.to_string().into(), text)))
}

#[async_trait]
impl TraceSource for NvmlSource {
    fn info(&self) -> SourceInfo {
        self.info.clone()
    }

    async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>> {
        // Whatever is received stays in `self` until it is returned, so a call that is dropped loses nothing.
        loop {
            while let Ok(news) = self.inbox.news.try_recv() {
                self.take(news);
                if self.seen.len() >= BATCH_FACTS_MAX {
                    break;
                }
            }
            let released = self.fold.release(Instant::now());
            self.seen.extend(released.into_iter().map(tell));
            if let Some(ready) = self.ready() {
                return Some(ready);
            }
            let due = self.fold.due().map(tokio::time::Instant::from_std);
            let silent_at = tokio::time::Instant::from_std(self.silent_at());
            tokio::select! {
                biased;
                news = self.inbox.news.recv() => self.take(news?),
                () = until(due) => {}
                () = tokio::time::sleep_until(silent_at), if !self.is_silent => self.silent(),
            }
        }
    }

    async fn close(&mut self) {
        self.inbox.shared.stop.now();
    }
}

async fn until(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
