//! What a server has done and what it holds: counts for people, and for tests that something was counted.

use super::limits::Bound;
use super::wire::{Query, Violation};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use taskd_core::job::Generation;

/// What a server has done since it began, and what it holds now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Stats {
    /// What is served now.
    pub generations: Vec<GenerationStats>,
    /// Generations that were retired.
    pub retired: u64,
    /// Clients that are connected, over all generations.
    pub clients: u64,
    /// Connections that were taken.
    pub accepted: u64,
    /// Clients that closed their connection.
    pub left: u64,
    /// Clients whose connection broke: a process that was killed with answers unread, a host that is gone.
    pub lost: u64,
    /// Clients that were closed because their generation was retired.
    pub retired_clients: u64,
    /// Connections whose first bytes were not those of a client; they were closed.
    pub not_validated: u64,
    /// Connections of other users' processes of this host, or of processes that ended before their user was known; they were closed.
    pub foreign: u64,
    /// Clients that sent a query that there is not; they were closed.
    pub unknown_queries: u64,
    /// Clients that added to what is no number; they were closed.
    pub not_numbers: u64,
    /// Processes of other users that wanted to control the store; they were refused.
    pub strangers: u64,
    /// How often each bound was reached; [`Bound::action`] says what happened then.
    pub at_bound: BTreeMap<Bound, u64>,
    /// Requests that were carried out. Each pair of a `multi_set` is one.
    pub requests: BTreeMap<Query, u64>,
    /// Waits that were not over at once, and were over later.
    pub woken: u64,
    /// Bytes that were received.
    pub bytes_in: u64,
    /// Bytes that were sent.
    pub bytes_out: u64,
    /// Bytes of keys, values, and what finds them.
    pub store_bytes: u64,
    /// Bytes of unfinished requests and of answers that were not read yet.
    pub buffer_bytes: u64,
}

/// What is held of one generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GenerationStats {
    /// Which.
    pub generation: Generation,
    /// The address that its listener is bound to.
    pub address: String,
    /// Clients that are connected.
    pub clients: u64,
    /// Keys that have a value.
    pub keys: u64,
    /// Clients that wait for a key.
    pub waits: u64,
}

impl Stats {
    /// How often this bound was reached.
    #[must_use]
    pub fn reached(&self, bound: Bound) -> u64 {
        self.at_bound.get(&bound).copied().unwrap_or(0)
    }

    /// How many requests of this kind were carried out.
    #[must_use]
    pub fn requested(&self, query: Query) -> u64 {
        self.requests.get(&query).copied().unwrap_or(0)
    }
}

/// What a server counts as it goes.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Without what is held now.
    pub(super) sums: Stats,
    /// By the number of the query: one of these is counted for every request.
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
