//! What a job requires of its hosts.

use super::words::count;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use taskd_runtime::job::seconds::Seconds;

/// Default of [`Policy::waiting_timeout`]: torchrun's join timeout.
pub const WAITING_TIMEOUT: Duration = Duration::from_secs(600);

/// Default of [`Policy::last_call`]: torchrun's last-call timeout.
pub const LAST_CALL: Duration = Duration::from_secs(30);

/// What a job requires of its hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Policy {
    /// Smallest number of hosts of a world, at least 1. It is rounded up to a multiple of `node_unit`.
    pub min_hosts: u32,
    /// Largest number of hosts of a world. It is rounded down to a multiple of `node_unit`.
    pub max_hosts: u32,
    /// The number of hosts of a world is a multiple of this number, for example the number of hosts of one model
    /// replica. Default 1.
    #[serde(default = "one")]
    pub node_unit: u32,
    /// Longest time below `min_hosts`. Default 600 s.
    #[serde(default = "waiting_timeout", with = "Seconds")]
    pub waiting_timeout: Duration,
    /// Time in which more hosts can join a world that could begin or grow. Default 30 s.
    #[serde(default = "last_call", with = "Seconds")]
    pub last_call: Duration,
    /// Time for which a world that has lost hosts waits for a replacement before it shrinks. Its other ranks do not train
    /// meanwhile. Default 0.
    #[serde(default, with = "Seconds")]
    pub shrink_after: Duration,
    /// Number of hosts that stay outside of the world to replace lost ones. A world of `min_hosts` comes first. Default
    /// 0.
    #[serde(default)]
    pub spares: u32,
    /// True if all hosts of a world must have the same number of slots. Default true.
    #[serde(default = "yes")]
    pub equal_slots: bool,
    /// True if a world that shrinks keeps all node ranks and leaves gaps, as worlds of ranks do. False if node ranks
    /// are always 0, 1, 2 without gaps (compact), as torchrun's are: then the hosts with the highest node ranks move
    /// into the gaps. Default true.
    #[serde(default = "yes")]
    pub keep_node_rank: bool,
}

const fn one() -> u32 {
    1
}

const fn yes() -> bool {
    true
}

const fn waiting_timeout() -> Duration {
    WAITING_TIMEOUT
}

const fn last_call() -> Duration {
    LAST_CALL
}

impl Policy {
    /// Creates a policy for `min_hosts` to `max_hosts` hosts, with the defaults of all other fields.
    #[must_use]
    pub const fn new(min_hosts: u32, max_hosts: u32) -> Policy {
        Policy {
            min_hosts,
            max_hosts,
            node_unit: 1,
            waiting_timeout: WAITING_TIMEOUT,
            last_call: LAST_CALL,
            shrink_after: Duration::ZERO,
            spares: 0,
            equal_slots: true,
            keep_node_rank: true,
        }
    }

    /// Sets the unit of the number of hosts.
    #[must_use]
    pub const fn with_node_unit(self, node_unit: u32) -> Policy {
        Policy { node_unit, ..self }
    }

    /// Sets the longest time below `min_hosts`.
    #[must_use]
    pub const fn with_waiting_timeout(self, waiting_timeout: Duration) -> Policy {
        Policy { waiting_timeout, ..self }
    }

    /// Sets the time in which more hosts can join.
    #[must_use]
    pub const fn with_last_call(self, last_call: Duration) -> Policy {
        Policy { last_call, ..self }
    }

    /// Sets the time for which a world that has lost hosts waits for a replacement.
    #[must_use]
    pub const fn with_shrink_after(self, shrink_after: Duration) -> Policy {
        Policy { shrink_after, ..self }
    }

    /// Sets the number of hosts that stay outside of the world.
    #[must_use]
    pub const fn with_spares(self, spares: u32) -> Policy {
        Policy { spares, ..self }
    }

    /// Sets if hosts must have the same number of slots.
    #[must_use]
    pub const fn with_equal_slots(self, equal_slots: bool) -> Policy {
        Policy { equal_slots, ..self }
    }

    /// Sets if a world that shrinks keeps all node ranks.
    #[must_use]
    pub const fn with_keep_node_rank(self, keep_node_rank: bool) -> Policy {
        Policy { keep_node_rank, ..self }
    }

    /// Returns what is wrong with the policy, and what to change; `None` if it can be used.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let Policy { min_hosts: min, max_hosts: max, node_unit: unit, .. } = *self;
        let problem = match () {
            () if min == 0 => "min_hosts is 0: set it to at least 1".to_owned(),
            () if unit == 0 => "node_unit is 0: set it to at least 1".to_owned(),
            () if min > max => format!("min_hosts is {min} and max_hosts is {max}: set max_hosts to at least {min}"),
            () if self.sizes().min > self.sizes().max => format!(
                "no multiple of node_unit, {unit}, is between min_hosts, {min}, and max_hosts, {max}: set max_hosts \
                 to {}",
                self.sizes().min
            ),
            () => return None,
        };
        Some(problem)
    }

    /// Returns the numbers of hosts that a world can have.
    pub(super) fn sizes(&self) -> Sizes {
        let of = |hosts: u32| usize::try_from(hosts).unwrap_or(usize::MAX);
        let unit = of(self.node_unit.max(1));
        let min = of(self.min_hosts.max(1)).div_ceil(unit).saturating_mul(unit);
        Sizes { unit, min, max: of(self.max_hosts) / unit * unit, spares: of(self.spares) }
    }
}

/// The numbers of hosts that a world can have, as multiples of the unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) unit: usize,
    pub(super) min: usize,
    pub(super) max: usize,
    pub(super) spares: usize,
}

impl Sizes {
    /// Returns the size of the largest world of `hosts` hosts; 0 if they are too few.
    pub(super) fn largest(&self, hosts: usize) -> usize {
        let size = hosts.min(self.max) / self.unit * self.unit;
        if size < self.min { 0 } else { size }
    }

    /// Returns the size of the world that `hosts` hosts form if spares are left out; 0 if they are too few.
    pub(super) fn with_spares(&self, hosts: usize) -> usize {
        if hosts < self.min { 0 } else { self.largest(hosts.saturating_sub(self.spares).max(self.min)) }
    }

    /// Returns the number of hosts from which on [`with_spares`](Sizes::with_spares) returns at least `size`, a
    /// multiple of the unit up to the maximum.
    pub(super) fn hosts_for(&self, size: usize) -> usize {
        if size <= self.min { self.min } else { size.saturating_add(self.spares) }
    }

    /// Returns the next larger size after `size`.
    pub(super) fn above(&self, size: usize) -> usize {
        (size / self.unit).saturating_add(1).saturating_mul(self.unit).max(self.min)
    }

    /// Returns the allowed numbers for a message.
    pub(super) fn words(&self) -> String {
        let unit = if self.unit == 1 { String::new() } else { format!(", in units of {}", self.unit) };
        format!("the job needs at least {}{unit}", count(self.min, "host"))
    }
}
