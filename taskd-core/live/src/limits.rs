//! Bounds of the server, and the counters that show that they were reached.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bounds of a live report's server. What they refuse is counted in
/// [`LiveStatus::refused`](taskd_analysis::report::LiveStatus::refused).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveLimits {
    /// Maximum number of open connections. For a further one, the oldest connection without a request that has shown the
    /// token is closed; if there is none, the further one is closed. Default: 32.
    pub connections_max: usize,
    /// Maximum number of pages that receive events at one time. A further one receives status 503. Default: 8.
    pub streams_max: usize,
    /// Time within which a connection sends the head of a request; after it the connection is closed. Default: 5 s.
    pub head_within: Duration,
    /// Maximum size of the head of a request, in bytes. A longer one receives status 431. At least 8 KiB, which is the
    /// default.
    pub head_bytes_max: usize,
    /// Time for which a client may leave data unread; after it the kernel closes the connection (`TCP_USER_TIMEOUT`).
    /// Default: 60 s.
    pub unread_within: Duration,
}

impl Default for LiveLimits {
    fn default() -> LiveLimits {
        LiveLimits {
            connections_max: 32,
            streams_max: 8,
            head_within: Duration::from_secs(5),
            head_bytes_max: HEAD_BYTES_MIN,
            unread_within: Duration::from_secs(60),
        }
    }
}

/// Smallest buffer for the head of a request that hyper accepts.
pub(crate) const HEAD_BYTES_MIN: usize = 8 << 10;
/// Maximum number of headers of a request. A request with more receives status 431.
pub(crate) const HEADERS_MAX: usize = 64;

/// Why a request or a connection was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Refusal {
    Address,
    Host,
    Origin,
    Method,
    Streams,
    Connections,
    SlowHead,
    BadHead,
}

impl Refusal {
    const ALL: [(Refusal, &'static str); 8] = [
        (Refusal::Address, "unknown_addresses"),
        (Refusal::Host, "foreign_hosts"),
        (Refusal::Origin, "foreign_origins"),
        (Refusal::Method, "other_methods"),
        (Refusal::Streams, "streams_beyond_the_limit"),
        (Refusal::Connections, "connections_beyond_the_limit"),
        (Refusal::SlowHead, "slow_heads"),
        (Refusal::BadHead, "bad_heads"),
    ];
}

/// Number of refusals of each kind.
#[derive(Debug, Default)]
pub(crate) struct Counts([AtomicU64; Refusal::ALL.len()]);

impl Counts {
    pub(crate) fn add(&self, refusal: Refusal) {
        self.0[refusal as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn all(&self) -> BTreeMap<&'static str, u64> {
        Refusal::ALL.iter().map(|(refusal, name)| (*name, self.0[*refusal as usize].load(Ordering::Relaxed))).collect()
    }
}
