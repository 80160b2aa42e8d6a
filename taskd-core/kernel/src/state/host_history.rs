//! Incidents of each host over weeks, beyond the life of one job: scores, texts for people, and an order of hosts.
//!
//! Time is an argument. The owner stores the history between jobs; this module reads no file.

mod report;

pub(crate) use report::classes;

use crate::job::{IncidentId, Name, NodeId, WallTime};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Maximum number of hosts of a history. One more replaces the host with the oldest last incident; the incidents of
/// that host are counted as dropped.
pub const HOSTS_MAX: usize = 4096;

/// Maximum number of incidents of a host. One more replaces the oldest, which is counted.
pub const INCIDENTS_MAX: usize = 64;

/// Maximum number of incidents of all hosts. One more replaces the oldest, which is counted.
pub const INCIDENTS_TOTAL_MAX: usize = 16_384;

const MS_PER_DAY: u64 = 24 * 3600 * 1000;

/// Half-life of an incident's weight: after this time it counts half.
const HALF_LIFE_MS: u64 = 14 * MS_PER_DAY;

/// Number of days of the period that texts about a host cover.
pub(crate) const PERIOD_DAYS: u64 = 14;

/// Weight of an incident that happens now.
const WEIGHT_NOW: u64 = 1_000_000;

/// An incident of which a host was the place or the cause. Two incidents are the same if all fields are equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HostIncident {
    /// Time of the first decision about the incident.
    pub at: WallTime,
    /// Class of the fault, such as `device`: the `Display` text of a [`FaultClass`](crate::detect::FaultClass).
    pub class: Name,
    /// Name of the job.
    pub job: Name,
    /// Number of the incident within the job.
    pub incident: IncidentId,
}

/// Incidents by host, bounded, with a weight that decays.
///
/// ```
/// # extern crate taskd_kernel as taskd_core;
/// use taskd_core::job::{IncidentId, Name, NodeId};
/// use taskd_core::state::{HostHistory, HostIncident};
///
/// let mut history = HostHistory::new();
/// let incident = |at: &str| HostIncident {
///     at: at.parse().unwrap(),
///     class: Name::new("device"),
///     job: Name::new("llm"),
///     incident: IncidentId(1),
/// };
/// let (bad, good) = (NodeId(Name::new("node-7")), NodeId(Name::new("node-8")));
/// history.record(&bad, incident("2026-07-01T00:00:00.000Z"));
/// history.record(&bad, incident("2026-07-07T00:00:00.000Z"));
/// history.record(&good, incident("2026-04-01T00:00:00.000Z"));
/// let now = "2026-07-09T00:00:00.000Z".parse().unwrap();
/// assert_eq!(history.preferred([&bad, &good], now), [&good, &bad]);
/// assert_eq!(
///     history.line(&bad, now).unwrap(),
///     "node-7: 2 incidents in 14 days, last: device, 2 days ago"
/// );
/// let stored = serde_json::to_string(&history)?;
/// assert_eq!(serde_json::from_str::<HostHistory>(&stored)?, history);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored")]
pub struct HostHistory {
    /// Incidents by host, oldest first. No host has an empty list.
    hosts: BTreeMap<NodeId, Vec<HostIncident>>,
    /// Number of incidents that were dropped at a limit.
    dropped: u64,
    /// Number of incidents of all hosts.
    #[serde(skip)]
    count: usize,
}

/// A history as it is stored: it may exceed the limits, or be out of order.
#[derive(Deserialize)]
struct Stored {
    hosts: BTreeMap<NodeId, Vec<HostIncident>>,
    #[serde(default)]
    dropped: u64,
}

impl From<Stored> for HostHistory {
    fn from(stored: Stored) -> HostHistory {
        let mut history = HostHistory::new().with_dropped(stored.dropped);
        for (host, incidents) in stored.hosts {
            for incident in incidents {
                history.record(&host, incident);
            }
        }
        history
    }
}

impl HostHistory {
    /// Creates an empty history.
    #[must_use]
    pub fn new() -> HostHistory {
        HostHistory::default()
    }

    /// Sets the number of incidents that were dropped before, for a history that is read from storage.
    #[must_use]
    pub const fn with_dropped(mut self, dropped: u64) -> HostHistory {
        self.dropped = dropped;
        self
    }

    /// Adds an incident of a host. Incidents may come in any order. Returns false if the history has the incident
    /// already.
    pub fn record(&mut self, host: &NodeId, incident: HostIncident) -> bool {
        if self.hosts.get(host).is_some_and(|known| known.binary_search(&incident).is_ok()) {
            return false;
        }
        if !self.hosts.contains_key(host) && self.hosts.len() >= HOSTS_MAX {
            let last = |incidents: &[HostIncident]| incidents.last().map(|last| last.at);
            let oldest = self.hosts.iter().min_by_key(|(_, incidents)| last(incidents)).map(|(host, _)| host.clone());
            self.drop_first(oldest, usize::MAX);
        }
        let incidents = self.hosts.entry(host.clone()).or_default();
        let at = incidents.partition_point(|known| *known <= incident);
        incidents.insert(at, incident);
        self.count += 1;
        if incidents.len() > INCIDENTS_MAX {
            self.drop_first(Some(host.clone()), 1);
        }
        if self.count > INCIDENTS_TOTAL_MAX {
            let first = |incidents: &[HostIncident]| incidents.first().map(|first| first.at);
            let oldest = self.hosts.iter().min_by_key(|(_, incidents)| first(incidents)).map(|(host, _)| host.clone());
            self.drop_first(oldest, 1);
        }
        true
    }

    /// Drops the oldest incidents of a host, and counts them.
    fn drop_first(&mut self, host: Option<NodeId>, most: usize) {
        let Some(incidents) = host.as_ref().and_then(|host| self.hosts.get_mut(host)) else { return };
        let gone = incidents.drain(..most.min(incidents.len())).count();
        let is_empty = incidents.is_empty();
        self.count -= gone;
        self.dropped = self.dropped.saturating_add(gone as u64);
        if let Some(host) = host.filter(|_| is_empty) {
            self.hosts.remove(&host);
        }
    }

    /// Returns true if the history has the incident, or had to drop it: the host's list is full, and all its incidents
    /// are newer.
    #[must_use]
    pub fn covers(&self, host: &NodeId, incident: &HostIncident) -> bool {
        self.hosts.get(host).is_some_and(|known| {
            let is_older = known.first().is_some_and(|first| incident < first);
            known.binary_search(incident).is_ok() || known.len() >= INCIDENTS_MAX && is_older
        })
    }

    /// Returns all incidents with their hosts, ordered by host and time.
    pub fn iter(&self) -> impl Iterator<Item = (&NodeId, &HostIncident)> {
        self.hosts.iter().flat_map(|(host, incidents)| incidents.iter().map(move |incident| (host, incident)))
    }

    /// Returns the number of incidents of all hosts.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Returns true if no host has an incident.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the number of incidents that were dropped at a limit.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the score of a host at a time, in millionths: the sum of the weights of its incidents. The weight is
    /// one (1,000,000) for an incident at that time, and halves every 14 days, linearly within each 14 days. Incidents
    /// after that time count as at that time. 0 for an unknown host.
    ///
    /// Integers, because decisions depend on the score, and a replay on another machine must give the same.
    #[must_use]
    pub fn score(&self, host: &NodeId, now: WallTime) -> u64 {
        self.hosts.get(host).into_iter().flatten().map(|incident| weight(age_ms(incident, now))).sum()
    }

    /// Returns the hosts with the `k` highest scores, the highest first, with their scores. Equal scores are ordered by
    /// the host's name.
    #[must_use]
    pub fn top(&self, k: usize, now: WallTime) -> Vec<(&NodeId, u64)> {
        let mut scores: Vec<(&NodeId, u64)> = self.hosts.keys().map(|host| (host, self.score(host, now))).collect();
        scores.sort_by_key(|(host, score)| (Reverse(*score), *host));
        scores.truncate(k);
        scores
    }

    /// Orders hosts for the placement of a job: the lowest score first. Hosts of equal scores keep their order.
    pub fn preferred<'a>(&self, hosts: impl IntoIterator<Item = &'a NodeId>, now: WallTime) -> Vec<&'a NodeId> {
        let mut hosts: Vec<&NodeId> = hosts.into_iter().collect();
        hosts.sort_by_cached_key(|host| self.score(host, now));
        hosts
    }

    /// Returns the time of the newest incident.
    pub(crate) fn newest(&self) -> Option<WallTime> {
        self.hosts.values().filter_map(|incidents| Some(incidents.last()?.at)).max()
    }

    /// Returns the incidents of a host since 14 days before `now`. One after `now` counts: clocks of hosts differ.
    pub(crate) fn recent(&self, host: &NodeId, now: WallTime) -> &[HostIncident] {
        self.hosts.get(host).map_or(&[], |incidents| recent(incidents, now))
    }

    /// Returns the number of incidents of all hosts since 14 days before `now`.
    pub(crate) fn recent_count(&self, now: WallTime) -> usize {
        self.hosts.values().map(|incidents| recent(incidents, now).len()).sum()
    }
}

/// Returns the incidents since 14 days before `now`.
fn recent(incidents: &[HostIncident], now: WallTime) -> &[HostIncident] {
    let since = WallTime::from_unix_ms(now.as_unix_ms().saturating_sub(PERIOD_DAYS * MS_PER_DAY));
    let from = incidents.partition_point(|incident| incident.at < since);
    &incidents[from..]
}

fn age_ms(incident: &HostIncident, now: WallTime) -> u64 {
    now.as_unix_ms().saturating_sub(incident.at.as_unix_ms())
}

/// Weight of an incident of this age, in millionths.
fn weight(age_ms: u64) -> u64 {
    let halvings = u32::try_from(age_ms / HALF_LIFE_MS).unwrap_or(u32::MAX);
    let at_first = WEIGHT_NOW.checked_shr(halvings).unwrap_or(0);
    at_first - at_first * (age_ms % HALF_LIFE_MS) / HALF_LIFE_MS / 2
}

#[cfg(test)]
mod tests;
