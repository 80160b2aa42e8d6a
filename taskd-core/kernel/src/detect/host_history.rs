//! Incidents of each host over weeks, beyond the life of one job: a score, a text for people, and an order of hosts.
//!
//! Time is an argument, in seconds since 1970. The owner stores the history between jobs; this module reads no file.

mod evidence;

pub use evidence::HostEvidence;

use super::{Evidence, FaultDetector};
use crate::job::{Name, NodeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Maximum number of hosts of a history. One more replaces the host with the oldest last incident, which is
/// counted.
pub const HOSTS_MAX: usize = 4096;

/// Maximum number of incidents of a host. One more replaces the oldest, which is counted.
pub const INCIDENTS_MAX: usize = 64;

/// Name of the evidence about the history of a host.
pub const HOST_INCIDENTS: Name = Name::new("host_incidents");

const SECONDS_PER_DAY: u64 = 24 * 3600;

/// Half-life of an incident's weight: after this time it counts half.
const HALF_LIFE: Duration = Duration::from_secs(14 * SECONDS_PER_DAY);

/// Period that the text about a host covers.
const PERIOD: Duration = Duration::from_secs(14 * SECONDS_PER_DAY);

/// An incident of which a host was the place or the cause.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HostIncident {
    /// Time of the incident in seconds since 1970.
    pub unix_seconds: u64,
    /// Class of the fault, such as `device`.
    pub class: Name,
    /// Name of the job.
    pub job: Name,
}

/// Incidents by host, bounded, with a weight that decays.
///
/// ```
/// # extern crate taskd_kernel as taskd_core;
/// use taskd_core::detect::host_history::{HostHistory, HostIncident};
/// use taskd_core::job::{Name, NodeId};
///
/// let day = 24 * 3600;
/// let mut history = HostHistory::new();
/// let incident = |day_of: u64| HostIncident {
///     unix_seconds: day_of * day,
///     class: Name::new("device"),
///     job: Name::new("llm"),
/// };
/// let (bad, good) = (NodeId(Name::new("node-7")), NodeId(Name::new("node-8")));
/// history.record(&bad, incident(100));
/// history.record(&bad, incident(107));
/// history.record(&good, incident(20));
/// let now = 108 * day;
/// assert_eq!(history.preferred([&bad, &good], now), [&good, &bad]);
/// assert_eq!(
///     history.evidence(&bad, now).unwrap().text,
///     "node node-7 had 2 of the last 2 incidents of all hosts in 14 days (device 2)"
/// );
/// let stored = serde_json::to_string(&history)?;
/// assert_eq!(serde_json::from_str::<HostHistory>(&stored)?, history);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored")]
pub struct HostHistory {
    /// Incidents by host, oldest first.
    hosts: BTreeMap<NodeId, Vec<HostIncident>>,
    /// Number of incidents that were dropped at a limit.
    dropped: u64,
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
        let mut history = HostHistory { hosts: BTreeMap::new(), dropped: stored.dropped };
        for (host, incidents) in stored.hosts {
            incidents.into_iter().for_each(|incident| history.record(&host, incident));
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

    /// Adds an incident of a host. Incidents may come in any order.
    pub fn record(&mut self, host: &NodeId, incident: HostIncident) {
        if !self.hosts.contains_key(host) && self.hosts.len() >= HOSTS_MAX {
            let last = |incidents: &Vec<HostIncident>| incidents.last().map(|last| last.unix_seconds);
            let oldest = self.hosts.iter().min_by_key(|(_, incidents)| last(incidents)).map(|(host, _)| host.clone());
            let gone = oldest.and_then(|oldest| self.hosts.remove(&oldest)).map_or(0, |incidents| incidents.len());
            self.dropped = self.dropped.saturating_add(gone as u64);
        }
        let incidents = self.hosts.entry(host.clone()).or_default();
        let at = incidents.partition_point(|known| known.unix_seconds <= incident.unix_seconds);
        incidents.insert(at, incident);
        if incidents.len() > INCIDENTS_MAX {
            incidents.remove(0);
            self.dropped = self.dropped.saturating_add(1);
        }
    }

    /// Returns the score of a host at a time, in seconds since 1970: the sum of the weights of its incidents. The
    /// weight is 1 for an incident now and halves every 14 days. Incidents after that time count as now. 0 for an
    /// unknown host.
    #[must_use]
    pub fn score(&self, host: &NodeId, now_unix_seconds: u64) -> f64 {
        let half_life = HALF_LIFE.as_secs_f64();
        let weight = |incident: &HostIncident| {
            let age = Duration::from_secs(now_unix_seconds.saturating_sub(incident.unix_seconds));
            (-age.as_secs_f64() / half_life).exp2()
        };
        self.hosts.get(host).into_iter().flatten().map(weight).sum()
    }

    /// Returns the hosts with the `k` highest scores, the highest first, with their scores. Equal scores are ordered by
    /// the host's name.
    #[must_use]
    pub fn top(&self, k: usize, now_unix_seconds: u64) -> Vec<(&NodeId, f64)> {
        let mut scores: Vec<(&NodeId, f64)> =
            self.hosts.keys().map(|host| (host, self.score(host, now_unix_seconds))).collect();
        scores.sort_by(|one, other| other.1.total_cmp(&one.1).then_with(|| one.0.cmp(other.0)));
        scores.truncate(k);
        scores
    }

    /// Orders hosts for the placement of a job: the lowest score first. Hosts of equal scores keep their order.
    pub fn preferred<'a>(&self, hosts: impl IntoIterator<Item = &'a NodeId>, now_unix_seconds: u64) -> Vec<&'a NodeId> {
        let mut scored: Vec<(f64, &NodeId)> =
            hosts.into_iter().map(|host| (self.score(host, now_unix_seconds), host)).collect();
        scored.sort_by(|one, other| one.0.total_cmp(&other.0));
        scored.into_iter().map(|(_, host)| host).collect()
    }

    /// Returns evidence about a host: how many of all hosts' incidents of the last 14 days it had, and of which
    /// classes. `None` if it had none.
    #[must_use]
    pub fn evidence(&self, host: &NodeId, now_unix_seconds: u64) -> Option<Evidence> {
        let since = now_unix_seconds.saturating_sub(PERIOD.as_secs());
        let is_recent = |incident: &&HostIncident| (since..=now_unix_seconds).contains(&incident.unix_seconds);
        let recent: Vec<&HostIncident> = self.hosts.get(host)?.iter().filter(is_recent).collect();
        let all: usize = self.hosts.values().map(|incidents| incidents.iter().filter(is_recent).count()).sum();
        if recent.is_empty() {
            return None;
        }
        let mut classes: BTreeMap<&Name, usize> = BTreeMap::new();
        recent.iter().for_each(|incident| *classes.entry(&incident.class).or_default() += 1);
        let classes: Vec<String> = classes.into_iter().map(|(class, count)| format!("{class} {count}")).collect();
        let (count, days) = (recent.len(), PERIOD.as_secs() / SECONDS_PER_DAY);
        let text = format!(
            "{host} had {count} of the last {all} incidents of all hosts in {days} days ({})",
            classes.join(", ")
        );
        #[allow(clippy::cast_precision_loss, reason = "a small number of incidents")]
        let evidence = Evidence::figure(HOST_INCIDENTS, count as f64, None, text);
        Some(evidence)
    }

    /// Wraps a detector: its faults that lie on a host with incidents get the evidence about that host.
    /// `start_unix_seconds` is the calendar time of the job's start. The history is that of the start, so the findings
    /// remain a function of the job's log; the history's checksum is part of the wrapped detector's configuration.
    pub fn with_evidence<D: FaultDetector>(self, detector: D, start_unix_seconds: u64) -> HostEvidence<D> {
        HostEvidence::new(detector, self, start_unix_seconds)
    }

    /// Returns the number of incidents that were dropped at a limit.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns a checksum of all incidents (FNV-1a, 64 bits).
    fn checksum(&self) -> u64 {
        let text = format!("{:?}", self.hosts);
        text.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }
}

#[cfg(test)]
mod tests;
