//! What the sources of a host have reported and no manager has taken: numbered, bounded, and kept over connections,
//! sessions and changes of the manager.

use crate::clock::Moment;
use crate::wire::{BodyError, FactsEntry, FactsItem, FactsMessage, encode};
use bytes::Bytes;
use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use taskd_runtime::job::Domain;
use taskd_runtime::trace::{Fact, Signal, SourceInfo, WhenFull};
use tokio::sync::Notify;

/// Time for which a message waits for the facts of the host's other sources after its first one. Heartbeats of all ranks
/// and all sources so travel together.
pub(super) const GATHER: Duration = Duration::from_millis(25);
/// Number of facts after which a message takes no further entry; the rest follows in the next message. A manager of 10,000
/// hosts gets such a message of each of them at once when it begins.
const MESSAGE_FACTS_MAX: usize = 256;

/// What waits on a host for its manager.
#[derive(Debug)]
pub(super) struct Outbox {
    /// Moment from which this host's own time counts.
    begun: Moment,
    inner: Mutex<Inner>,
    /// Notified when an entry was added.
    filled: Notify,
    /// Notified when entries were removed.
    room: Notify,
}

#[derive(Debug)]
struct Inner {
    /// Number of the last entry.
    last: u64,
    entries: VecDeque<Entry>,
    sources: Vec<Queue>,
}

/// The bound of one source: that which its description states for its queue in a runtime.
#[derive(Debug)]
struct Queue {
    info: SourceInfo,
    /// Entries of the source that wait.
    waiting: u32,
    /// Facts that were dropped since the last report.
    lost: u64,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    source: usize,
    /// This host's own time at which the ages of the facts were stated.
    at: Duration,
    item: FactsItem,
}

impl Outbox {
    pub(super) fn new(begun: Moment, sources: impl IntoIterator<Item = SourceInfo>) -> Outbox {
        let sources = sources.into_iter().map(|info| Queue { info, waiting: 0, lost: 0 }).collect();
        let inner = Inner { last: 0, entries: VecDeque::new(), sources };
        Outbox { begun, inner: Mutex::new(inner), filled: Notify::new(), room: Notify::new() }
    }

    /// Adds what a source has returned, as the source's behaviour at its bound requires: waits for room, or drops and counts
    /// facts. The dropped ones may be under way to the manager: more are reported as lost than are. Cancel-safe: a call that waits has added nothing.
    pub(super) async fn push(&self, source: usize, item: FactsItem) {
        let (at, mut item) = (self.begun.elapsed(), item);
        loop {
            let mut room = pin!(self.room.notified());
            room.as_mut().enable(); // before the attempt: no wake-up is missed
            match self.lock().push(source, at, item) {
                None => return self.filled.notify_waiters(),
                Some(back) => item = back,
            }
            room.await;
        }
    }

    /// Forgets the entries up to the number `after`, which the manager has taken, and waits until there are others.
    /// Returns them as the encoded answer of `sources.next`. They stay here until the manager confirms them: cancel-safe.
    pub(super) async fn next(&self, after: u64) -> Bytes {
        self.forget(after);
        loop {
            let mut filled = pin!(self.filled.notified());
            filled.as_mut().enable();
            if !self.lock().is_empty() {
                break;
            }
            filled.await;
        }
        tokio::time::sleep(GATHER).await;
        let mut facts_max = MESSAGE_FACTS_MAX;
        loop {
            let message = self.lock().message(facts_max, self.begun.elapsed());
            match encode(&message) {
                Ok(bytes) => return bytes,
                Err(BodyError::TooLong(_)) if message.entries.len() > 1 => facts_max = facts_of(&message) / 2,
                Err(error) => {
                    self.lock().drop_first(&error);
                    facts_max = MESSAGE_FACTS_MAX;
                }
            }
        }
    }

    fn forget(&self, after: u64) {
        self.lock().forget(after);
        self.room.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner) // no foreign code runs while it is locked
    }
}

impl Inner {
    /// Returns true if nothing waits: neither entries nor a number of lost facts.
    fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.sources.iter().all(|queue| queue.lost == 0)
    }

    /// Adds an item, or returns it if the source has to wait.
    fn push(&mut self, source: usize, at: Duration, item: FactsItem) -> Option<FactsItem> {
        let queue = self.sources.get_mut(source)?;
        // The end of a source is its last item, so it needs no room.
        if queue.waiting >= queue.info.queue_max.max(1) && !matches!(item, FactsItem::Ended(_)) {
            match queue.info.when_full {
                WhenFull::Wait => return Some(item),
                WhenFull::DropNewest => {
                    queue.lost = queue.lost.saturating_add(facts_in(&item));
                    return None;
                }
                WhenFull::DropOldest => {
                    let oldest = self.entries.iter().position(|entry| entry.source == source);
                    if let Some(dropped) = oldest.and_then(|oldest| self.entries.remove(oldest)) {
                        queue.lost = queue.lost.saturating_add(facts_in(&dropped.item));
                        queue.waiting -= 1;
                    }
                }
            }
        }
        queue.waiting += 1;
        self.append(source, at, item);
        None
    }

    fn append(&mut self, source: usize, at: Duration, item: FactsItem) {
        self.last += 1;
        self.entries.push_back(Entry { number: self.last, source, at, item });
    }

    /// Adds the numbers of lost facts as facts.
    fn report_losses(&mut self, now: Duration) {
        for source in 0..self.sources.len() {
            let Some(queue) = self.sources.get_mut(source).filter(|queue| queue.lost > 0) else { continue };
            let (count, name) = (std::mem::take(&mut queue.lost), queue.info.name.clone());
            queue.waiting += 1;
            tracing::warn!(source = %name, count, "facts of a source are lost: no manager has taken them in time");
            let fact = Fact::new(Domain::Plugin(name), Signal::Lost { count });
            self.append(source, now, FactsItem::Facts(vec![fact]));
        }
    }

    fn message(&mut self, facts_max: usize, now: Duration) -> FactsMessage {
        self.report_losses(now);
        let (mut entries, mut facts) = (Vec::new(), 0);
        for entry in &self.entries {
            if facts >= facts_max && !entries.is_empty() {
                break;
            }
            let mut item = entry.item.clone();
            if let FactsItem::Facts(list) = &mut item {
                facts += list.len();
                let waited = now.saturating_sub(entry.at);
                list.iter_mut().for_each(|fact| fact.age = fact.age.saturating_add(waited));
            }
            let source = u32::try_from(entry.source).unwrap_or(u32::MAX);
            entries.push(FactsEntry { number: entry.number, source, item });
        }
        FactsMessage { sent_nanos: u64::try_from(now.as_nanos()).unwrap_or(u64::MAX), entries }
    }

    fn forget(&mut self, after: u64) {
        while self.entries.front().is_some_and(|entry| entry.number <= after) {
            if let Some(entry) = self.entries.pop_front() {
                self.released(entry.source);
            }
        }
    }

    /// Drops the first entry, which cannot be sent.
    fn drop_first(&mut self, why: &BodyError) {
        if let Some(entry) = self.entries.pop_front() {
            self.released(entry.source);
            if let Some(queue) = self.sources.get_mut(entry.source) {
                tracing::error!(source = %queue.info.name, %why, "facts of a source cannot be sent: they are lost");
                queue.lost = queue.lost.saturating_add(facts_in(&entry.item));
            }
        }
    }

    fn released(&mut self, source: usize) {
        if let Some(queue) = self.sources.get_mut(source) {
            queue.waiting = queue.waiting.saturating_sub(1);
        }
    }
}

fn facts_of(message: &FactsMessage) -> usize {
    let facts = |entry: &FactsEntry| if let FactsItem::Facts(facts) = &entry.item { facts.len() } else { 0 };
    message.entries.iter().map(facts).sum()
}

/// Returns the number of facts in an item, those included of which it reports the loss.
fn facts_in(item: &FactsItem) -> u64 {
    match item {
        FactsItem::Facts(facts) => facts.iter().fold(0, |sum: u64, fact| match fact.signal {
            Signal::Lost { count } => sum.saturating_add(count),
            _ => sum.saturating_add(1),
        }),
        FactsItem::Failed(_) | FactsItem::Ended(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::decode;
    use taskd_runtime::job::Name;

    fn outbox(when_full: WhenFull) -> Outbox {
        Outbox::new(Moment::now(), [SourceInfo::new("steps").with_queue(2, when_full), SourceInfo::new("other")])
    }

    fn step(step: u64) -> FactsItem {
        FactsItem::Facts(vec![Fact::new(Domain::Job, Signal::Progress { step })])
    }

    async fn next(outbox: &Outbox, after: u64) -> Vec<(u64, u32, u64)> {
        let message: FactsMessage = decode(&outbox.next(after).await).expect("it was encoded here");
        let of = |entry: FactsEntry| {
            let FactsItem::Facts(facts) = entry.item else { return (entry.number, entry.source, 0) };
            let value = match &facts[0].signal {
                Signal::Progress { step } => *step,
                Signal::Lost { count } => 1000 + count,
                other => unreachable!("{other:?}"),
            };
            (entry.number, entry.source, value)
        };
        message.entries.into_iter().map(of).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn entries_are_kept_until_they_are_confirmed() {
        let outbox = outbox(WhenFull::Wait);
        outbox.push(0, step(1)).await;
        outbox.push(1, step(2)).await;
        assert_eq!(next(&outbox, 0).await, [(1, 0, 1), (2, 1, 2)], "all sources in one message");
        outbox.push(0, step(3)).await;
        assert_eq!(next(&outbox, 0).await, [(1, 0, 1), (2, 1, 2), (3, 0, 3)], "as nothing was confirmed");
        assert_eq!(next(&outbox, 2).await, [(3, 0, 3)]);
        let mut empty = pin!(outbox.next(3));
        assert!(tokio::time::timeout(Duration::from_secs(60), &mut empty).await.is_err(), "it waits");
        outbox.push(1, FactsItem::Ended(None)).await;
        assert!(!empty.await.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_may_wait_loses_nothing() {
        let outbox = outbox(WhenFull::Wait);
        outbox.push(0, step(1)).await;
        outbox.push(0, step(2)).await;
        let mut third = pin!(outbox.push(0, step(3)));
        assert!(tokio::time::timeout(Duration::from_secs(60), &mut third).await.is_err(), "there is no room");
        assert_eq!(next(&outbox, 1).await, [(2, 0, 2)]);
        third.await;
        assert_eq!(next(&outbox, 2).await, [(3, 0, 3)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_drops_by_its_policy_and_reports_the_number() {
        for (when_full, expected) in [
            (WhenFull::DropNewest, [(1, 0, 1), (2, 0, 2), (3, 0, 1002)]),
            (WhenFull::DropOldest, [(3, 0, 3), (4, 0, 4), (5, 0, 1002)]),
        ] {
            let outbox = outbox(when_full);
            for number in 1..=4 {
                outbox.push(0, step(number)).await;
            }
            assert_eq!(next(&outbox, 0).await, expected, "{when_full:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_sent_is_reported_as_lost() {
        let outbox = outbox(WhenFull::Wait);
        let name = Name::from("x".repeat(crate::wire::BODY_BYTES_MAX));
        let long = Fact::new(Domain::Plugin(name), Signal::Heartbeat);
        outbox.push(0, FactsItem::Facts(vec![long])).await;
        outbox.push(0, step(2)).await;
        assert_eq!(next(&outbox, 0).await, [(2, 0, 2), (3, 0, 1001)]);
    }
}
