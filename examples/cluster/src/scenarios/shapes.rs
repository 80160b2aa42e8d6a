//! The hosts of the scenarios' jobs.

use super::PACE_MS;
use crate::training::Plan;
use std::path::PathBuf;
use std::time::Duration;

/// The hosts of a scenario's job, and how its ranks begin on them.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Hosts of the job.
    pub hosts: usize,
    /// Its ranks.
    pub ranks: u32,
    /// Fewest ranks with which it trains.
    pub min_ranks: u32,
    /// Ranks that each host can hold, from `h1` on; the last number counts for all further hosts.
    pub slots: &'static [u32],
    /// Hosts that vote, of which the first is the first manager; none: `h1` is the only manager.
    pub voters: &'static [&'static str],
    /// Hosts under a second switch. If there are any, a policy of membership decides which hosts train, and the others are
    /// spares.
    pub leaf: &'static [&'static str],
    /// Further hosts, which are not part of the job.
    pub more_hosts: usize,
}

/// Four ranks on two hosts, and a spare host; one manager.
pub const THREE: Shape = Shape { hosts: 3, ranks: 4, min_ranks: 4, slots: &[2], voters: &[], leaf: &[], more_hosts: 0 };

/// Five ranks on five hosts, and a spare host. Three hosts vote. `h1` has rank 0, the store and the manager.
pub const SIX: Shape =
    Shape { hosts: 6, ranks: 5, min_ranks: 5, slots: &[1], voters: &["h1", "h2", "h3"], leaf: &[], more_hosts: 0 };

/// Six ranks on six hosts, none of which is spare: the job can shrink.
pub const FULL: Shape =
    Shape { hosts: 6, ranks: 6, min_ranks: 3, slots: &[1], voters: &["h1", "h2", "h3"], leaf: &[], more_hosts: 0 };

/// Four ranks on four hosts; the manager and a second candidate are on hosts without ranks.
pub const APART: Shape = Shape {
    hosts: 6,
    ranks: 4,
    min_ranks: 4,
    slots: &[1, 1, 1, 1, 0, 0],
    voters: &["h5", "h6", "h4"],
    leaf: &[],
    more_hosts: 0,
};

/// Four ranks on two hosts, and five voters: three of them on hosts without ranks. The sixth host is spare.
pub const FIVE_VOTERS: Shape = Shape {
    hosts: 6,
    ranks: 4,
    min_ranks: 4,
    slots: &[2, 2, 0, 0, 0, 2],
    voters: &["h1", "h2", "h3", "h4", "h5"],
    leaf: &[],
    more_hosts: 0,
};

/// Two hosts with ranks, each of which can train alone, and a third voter without ranks.
pub const TWO_AND_VOTER: Shape = Shape {
    hosts: 3,
    ranks: 4,
    min_ranks: 2,
    slots: &[2, 2, 0],
    voters: &["h1", "h2", "h3"],
    leaf: &[],
    more_hosts: 0,
};

/// Two hosts, each of which can train alone; one manager.
pub const TWO: Shape = Shape { hosts: 2, ranks: 4, min_ranks: 2, slots: &[2], voters: &[], leaf: &[], more_hosts: 0 };

/// Three ranks on three hosts, two of which are under a second switch, and two spare hosts under the first.
pub const SWITCH: Shape =
    Shape { hosts: 5, ranks: 3, min_ranks: 3, slots: &[1], voters: &[], leaf: &["h2", "h3"], more_hosts: 0 };

impl Shape {
    /// Returns the plan of a training on these hosts.
    #[must_use]
    pub fn plan(&self, python: PathBuf, lease: Duration) -> Plan {
        Plan {
            python,
            ranks: self.ranks,
            min_ranks: self.min_ranks,
            slots: self.slots.to_vec(),
            hosts: self.hosts,
            voters: self.voters.iter().map(|host| (*host).to_owned()).collect(),
            leaf: self.leaf.iter().map(|host| (*host).to_owned()).collect(),
            lease,
            pace_ms: PACE_MS,
        }
    }
}
