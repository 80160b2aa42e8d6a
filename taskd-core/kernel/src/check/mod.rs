//! Node check: which hosts and links are faulty or slow, from probes of groups of hosts. Pure: it runs no probe.
//!
//! A *probe* of a group computes on each of its hosts and then exchanges data among them. It passes only if every host and
//! every link between them works, so that it cannot blame a single host. [`NodeCheck`] plans rounds of such probes, each host
//! in one group at most, until their results leave no doubt:
//!
//! ```text
//! let mut check = NodeCheck::new(hosts, settings);
//! while let Some(round) = check.next_round() {
//!     check.record(run(&round));          // one report per group
//! }
//! check.verdict()
//! ```
//!
//! # Inference
//! 1. All hosts of a group that passed are healthy, and so are the links between them.
//! 2. A host is faulty if it failed alone, or in groups with [`partners`](CheckSettings::partners) different healthy
//!    hosts, one at a time. A single such group is not enough: its link may be faulty.
//! 3. A link is faulty if its group failed although both hosts are healthy.
//! 4. Everything else is a suspect. A verdict lists suspects and never blames one.
//!
//! So a healthy host is never blamed while it has fewer than `partners` faulty links, whatever the number of faulty hosts. With
//! at least `partners` healthy hosts and no limit of rounds every faulty host is found (`tests/`: all patterns of up to
//! 10 hosts). DLRover's check has two rounds, and blames a host that was in a failing group in both.
//!
//! # Slowness
//! The same inference applies to times. The computation of a host is its own: it is slow if its shortest computation of two
//! rounds exceeds [`compute_permille`](CheckSettings::compute_permille) of the usual one. An exchange that takes longer than
//! [`exchange_permille`](CheckSettings::exchange_permille) of the usual one is a failure of rule 2 and 3, of a second kind.

mod infer;
mod links;
mod plan;
#[cfg(test)]
mod tests;
mod times;
mod verdict;

pub use links::{ALL_LINKS_MAX, LinkVerdict, partners};
pub use verdict::{Link, Suspect, Verdict};

use infer::Findings;
use std::collections::BTreeSet;
use times::Times;

/// Maximum number of hosts of a check.
pub const HOSTS_MAX: usize = 100_000;

/// When a host or link counts as faulty or slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckSettings {
    /// Maximum number of rounds, at least 1.
    pub rounds_max: u32,
    /// Healthy hosts with which a host must fail, one at a time, before it is blamed; at least 1.
    pub partners: usize,
    /// A computation of more than this share of the usual one is slow, in thousandths.
    pub compute_permille: u64,
    /// An exchange of more than this share of the usual one is slow, in thousandths.
    pub exchange_permille: u64,
}

impl Default for CheckSettings {
    /// Returns 8 rounds, 2 partners, 1.3 times for computations and 2 times for exchanges.
    fn default() -> CheckSettings {
        CheckSettings { rounds_max: 8, partners: 2, compute_permille: 1300, exchange_permille: 2000 }
    }
}

/// Result of one probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every host computed and exchanged.
    Passed {
        /// Time of each host's computation in nanoseconds, in the order of the group.
        compute_ns: Vec<u64>,
        /// Time of the exchange in nanoseconds: the longest of its hosts.
        exchange_ns: u64,
    },
    /// A process of the probe ended, or an exchange failed.
    Failed,
    /// The probe did not end in time.
    TimedOut,
}

impl Outcome {
    /// Returns true if the probe passed.
    #[must_use]
    pub const fn passed(&self) -> bool {
        matches!(self, Outcome::Passed { .. })
    }
}

/// Result of one group in a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The hosts, by their numbers.
    pub group: Vec<usize>,
    /// What happened.
    pub outcome: Outcome,
}

/// A node check: its hosts, and all results so far.
#[derive(Clone, Debug)]
pub struct NodeCheck {
    hosts: usize,
    settings: CheckSettings,
    rounds: u32,
    reports: Vec<Report>,
    /// Groups of the planned round that have no result yet.
    open: BTreeSet<Vec<usize>>,
}

impl NodeCheck {
    /// Returns a check of this many hosts, at most [`HOSTS_MAX`], which are numbered from 0.
    #[must_use]
    pub fn new(hosts: usize, settings: CheckSettings) -> NodeCheck {
        NodeCheck { hosts: hosts.min(HOSTS_MAX), settings, rounds: 0, reports: Vec::new(), open: BTreeSet::new() }
    }

    /// Returns the groups of the next round; `None` if no further probe can change the verdict, or no round is left. Groups
    /// of the round before without a result count as timed out.
    pub fn next_round(&mut self) -> Option<Vec<Vec<usize>>> {
        for group in std::mem::take(&mut self.open) {
            self.reports.push(Report { group, outcome: Outcome::TimedOut });
        }
        if self.rounds >= self.settings.rounds_max || self.hosts == 0 {
            return None;
        }
        let groups = if self.rounds == 0 { plan::neighbours(self.hosts) } else { self.plan() };
        if groups.is_empty() {
            return None;
        }
        self.rounds += 1;
        self.open = groups.iter().cloned().collect();
        Some(groups)
    }

    /// Takes results of the planned round. A result of a group that was not planned, or has one already, does not count.
    pub fn record(&mut self, reports: impl IntoIterator<Item = Report>) {
        for report in reports {
            if !self.open.remove(&report.group) {
                continue;
            }
            let is_whole = match &report.outcome {
                Outcome::Passed { compute_ns, .. } => compute_ns.len() == report.group.len(),
                Outcome::Failed | Outcome::TimedOut => true,
            };
            let outcome = if is_whole { report.outcome } else { Outcome::Failed };
            self.reports.push(Report { group: report.group, outcome });
        }
    }

    /// Returns the number of rounds that were planned.
    #[must_use]
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Returns the results so far.
    #[must_use]
    pub fn reports(&self) -> &[Report] {
        &self.reports
    }

    /// Returns what the results so far prove.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let (faulty, slow, times) = self.findings();
        verdict::of(&faulty, &slow, &times)
    }

    /// Returns the findings about faults and about slow exchanges, and the times.
    fn findings(&self) -> (Findings, Findings, Times) {
        let times = Times::of(self.hosts, &self.reports, &self.settings);
        let faulty = self.reports.iter().map(|report| (&*report.group, report.outcome.passed()));
        let faulty = Findings::of(self.hosts, self.settings.partners, faulty);
        let slow = Findings::of(self.hosts, self.settings.partners, times.exchanges(&self.reports));
        (faulty, slow, times)
    }

    fn plan(&self) -> Vec<Vec<usize>> {
        let (faulty, slow, times) = self.findings();
        // A larger group that failed has not tested its links one by one.
        let tested = self.reports.iter().filter(|report| report.group.len() == 2 || report.outcome.passed());
        let tested = tested.flat_map(|report| plan::pairs(&report.group)).collect();
        let alone = self.reports.iter().filter_map(|report| <[usize; 1]>::try_from(&*report.group).ok());
        plan::next(&plan::Known {
            hosts: self.hosts,
            findings: [&faulty, &slow],
            compute: times.unconfirmed(),
            tested,
            alone: alone.map(|[host]| host).collect(),
        })
    }
}
