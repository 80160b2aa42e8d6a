//! Statistics of a server, for people to read and for tests to check.

use super::limits::Bound;
use super::wire::{Query, Violation};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use taskd_core::job::Generation;

/// Statistics of a store server: counters since its start, and its present generations, clients and memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Stats {
    /// The generations of ranks that the server serves now.
    pub generations: Vec<GenerationStats>,
    /// Number of generations that the server has stopped serving because they were retired.
    pub retired: u64,
    /// Number of clients that are connected now, to all generations together.
    pub clients: u64,
    /// Number of connections that the server has accepted, including those that it closed at once.
    pub accepted: u64,
    /// Number of clients that closed their connection.
    pub left: u64,
    /// Number of clients whose connection broke, for example because their process was killed before it read its
    /// answers, or because their host is gone.
    pub lost: u64,
    /// Number of clients that were closed because their generation was retired.
    pub retired_clients: u64,
    /// Number of connections that the server closed because their first request was not [`Query::Validate`].
    pub not_validated: u64,
    /// Number of connections that the server closed because they came from a process of another user on the server's
    /// host, or from a process on that host whose user could not be determined. Root is not another user.
    pub foreign: u64,
    /// Number of clients that the server closed because they sent a request of an unknown type.
    pub unknown_queries: u64,
    /// Number of clients that the server closed because they sent `add` for a key whose value is not a number.
    pub not_numbers: u64,
    /// Number of connections to the control socket that were refused because they came from another user's process.
    pub strangers: u64,
    /// Number of times that each bound was reached; [`Bound::action`] returns what the server does then.
    pub at_bound: BTreeMap<Bound, u64>,
    /// Number of requests that were carried out, by type. Each pair of a `multi_set` counts as one request.
    pub requests: BTreeMap<Query, u64>,
    /// Number of `wait` requests that the server answered later, once their keys were present; without those whose keys
    /// were present at once.
    pub woken: u64,
    /// Number of bytes received from clients.
    pub bytes_in: u64,
    /// Number of bytes sent to clients.
    pub bytes_out: u64,
    /// Memory that keys, values, their index and the waits for keys use now, in bytes.
    pub store_bytes: u64,
    /// Memory that received requests that are not carried out yet, and answers that clients have not read yet, use now,
    /// in bytes.
    pub buffer_bytes: u64,
}

/// The state of one generation of ranks in a store server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GenerationStats {
    /// Number of the generation.
    pub generation: Generation,
    /// The address that the generation's listener is bound to.
    pub address: String,
    /// Number of clients that are connected now to this generation.
    pub clients: u64,
    /// Number of keys of this generation that have a value.
    pub keys: u64,
    /// Number of clients of this generation that wait for keys now.
    pub waits: u64,
}

impl Stats {
    /// Returns the number of times that this bound was reached.
    #[must_use]
    pub fn reached(&self, bound: Bound) -> u64 {
        self.at_bound.get(&bound).copied().unwrap_or(0)
    }

    /// Returns the number of requests of this type that were carried out.
    #[must_use]
    pub fn requested(&self, query: Query) -> u64 {
        self.requests.get(&query).copied().unwrap_or(0)
    }
}

/// The counters of a running server.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// The sums, without the figures of the current state.
    pub(super) sums: Stats,
    /// By query number: one counter is incremented for every request.
    pub(super) requests: [u64; Query::ALL.len()],
}

impl Counts {
    pub(super) fn reached(&mut self, bound: Bound) {
        *self.sums.at_bound.entry(bound).or_default() += 1;
    }

    pub(super) fn violated(&mut self, violation: Violation) {
        match violation {
            Violation::NotValidated => self.sums.not_validated += 1,
            Violation::UnknownQuery(_) => self.sums.unknown_queries += 1,
            Violation::NotANumber => self.sums.not_numbers += 1,
            Violation::Bound(bound) => self.reached(bound),
        }
    }

    pub(super) fn stats(&self) -> Stats {
        let counted = Query::ALL.into_iter().zip(self.requests).filter(|(_, count)| *count > 0);
        Stats { requests: counted.collect(), ..self.sums.clone() }
    }
}
