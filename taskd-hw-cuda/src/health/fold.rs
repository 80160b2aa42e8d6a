//! Deduplicates Xids: one that arrives through both channels, or repeatedly, is reported once.
//!
//! The module reads no clock: callers pass times.

use super::news::{Via, Xid};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use taskd_core::job::Domain;

/// After an Xid of a device was reported, repetitions within this time are counted but not reported.
pub(super) const FOLD_WITHIN: Duration = Duration::from_secs(2);

/// NVML's event has less detail than the kernel log and may arrive first, so it waits this long for the log line.
pub(super) const LOG_WITHIN: Duration = Duration::from_millis(200);

/// Maximum number of Xids that are remembered. If all of them are recent, one more clears the whole memory.
const REMEMBERED_MAX: usize = 4096;

type Key = (Domain, u32);

#[derive(Debug, Default)]
pub(super) struct Fold {
    /// Time at which each Xid was last reported, by domain and Xid number.
    told: BTreeMap<Key, Instant>,
    /// Xids from NVML that wait for the line of the kernel log about the same error.
    held: Vec<(Instant, Key, Xid)>,
    /// True if the kernel log is readable.
    log_is_read: bool,
    /// Number of repetitions that were not reported.
    pub(super) folded: u64,
}

impl Fold {
    pub(super) fn new(log_is_read: bool) -> Fold {
        Fold { log_is_read, ..Fold::default() }
    }

    /// Takes one Xid and returns what to report now.
    pub(super) fn take(&mut self, at: Instant, about: Domain, xid: Xid) -> Option<(Instant, Domain, Xid)> {
        let key = (about, xid.code);
        if self.told.get(&key).is_some_and(|told| at.saturating_duration_since(*told) < FOLD_WITHIN) {
            self.folded += 1;
            return None;
        }
        let is_held = self.held.iter().position(|(_, held, _)| *held == key);
        match xid.via {
            Via::Nvml if is_held.is_some() => {
                self.folded += 1;
                None
            }
            Via::Nvml if self.log_is_read => {
                self.held.push((at, key, xid));
                None
            }
            _ => {
                let since = is_held.map_or(at, |i| self.held.remove(i).0.min(at));
                self.tell(at, since, key, xid)
            }
        }
    }

    /// Returns the time at which the first waiting Xid has to be released.
    pub(super) fn due(&self) -> Option<Instant> {
        self.held.iter().map(|(at, ..)| *at + LOG_WITHIN).min()
    }

    /// Returns the Xids that have waited long enough.
    pub(super) fn release(&mut self, now: Instant) -> Vec<(Instant, Domain, Xid)> {
        let is_due = |(at, ..): &mut (Instant, Key, Xid)| *at + LOG_WITHIN <= now;
        let due: Vec<_> = self.held.extract_if(.., is_due).collect();
        due.into_iter().filter_map(|(at, key, xid)| self.tell(now, at, key, xid)).collect()
    }

    fn tell(&mut self, now: Instant, since: Instant, key: Key, xid: Xid) -> Option<(Instant, Domain, Xid)> {
        if self.told.len() >= REMEMBERED_MAX {
            self.told.retain(|_, told| now.saturating_duration_since(*told) < FOLD_WITHIN);
            if self.told.len() >= REMEMBERED_MAX {
                self.told.clear();
            }
        }
        let about = key.0.clone();
        self.told.insert(key, now);
        Some((since, about, xid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::news::Place;
    use taskd_core::job::{Name, NodeId};

    fn device() -> Domain {
        Domain::Device(NodeId(Name::new("n")), 3)
    }

    fn xid(via: Via, code: u32) -> Xid {
        Xid { via, place: Place::Device(3), code, text: format!("{via:?}") }
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn xid_received_both_ways_is_reported_once_with_the_log_text() {
        for log_first in [true, false] {
            let (mut fold, t) = (Fold::new(true), Instant::now());
            let (first, second) = if log_first { (Via::KernelLog, Via::Nvml) } else { (Via::Nvml, Via::KernelLog) };
            let mut sent: Vec<_> = fold.take(t, device(), xid(first, 79)).into_iter().collect();
            sent.extend(fold.take(t + ms(50), device(), xid(second, 79)));
            sent.extend(fold.release(t + ms(500)));
            assert_eq!(sent.len(), 1, "the log first: {log_first}");
            assert_eq!((sent[0].0, sent[0].2.text.as_str()), (t, "KernelLog"));
            assert_eq!(fold.due(), None);
        }
    }

    #[test]
    fn nvml_xid_is_reported_if_the_log_is_silent_or_unreadable() {
        let (mut fold, t) = (Fold::new(true), Instant::now());
        assert_eq!(fold.take(t, device(), xid(Via::Nvml, 48)), None);
        assert_eq!(fold.due(), Some(t + LOG_WITHIN));
        assert_eq!(fold.release(t + ms(199)), []);
        assert_eq!(fold.release(t + LOG_WITHIN).len(), 1);
        let mut fold = Fold::default();
        assert!(fold.take(t, device(), xid(Via::Nvml, 48)).is_some(), "there is no log to wait for");
    }

    #[test]
    fn xid_flood_is_reported_every_two_seconds_and_counted() {
        let (mut fold, t) = (Fold::new(true), Instant::now());
        let sent = (0..50).filter_map(|i| fold.take(t + ms(i * 100), device(), xid(Via::KernelLog, 13))).count();
        assert_eq!((sent, fold.folded), (3, 47));
        assert!(fold.take(t + ms(4950), device(), xid(Via::KernelLog, 45)).is_some(), "another one is another one");
    }

    #[test]
    fn remembered_xids_are_bounded() {
        let (mut fold, t) = (Fold::default(), Instant::now());
        for code in 0..10_000 {
            assert!(fold.take(t, device(), xid(Via::KernelLog, code)).is_some());
        }
        assert!(fold.told.len() <= REMEMBERED_MAX);
    }
}
