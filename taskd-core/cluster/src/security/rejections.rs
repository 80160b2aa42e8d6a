//! Counters of rejected peers.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

/// One line is logged for each reason in this time; the next one contains the number of those in between.
pub const REJECTION_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Reason for which a server rejected a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum RejectReason {
    /// The peer presented no certificate.
    NoCertificate,
    /// The peer's certificate is not of the job's CA.
    UnknownAuthority,
    /// The peer's certificate has expired or is not yet valid, by this host's clock.
    Expired,
    /// The peer's certificate is unusable for another reason.
    BadCertificate,
    /// The peer does not speak TLS.
    NotTls,
    /// The peer speaks TLS, and this server does not.
    Tls,
    /// The peer refused this server's certificate, or ended the handshake with an alert.
    RefusedByPeer,
    /// The peer closed the connection in the handshake.
    Disconnected,
    /// The peer did not complete the handshake in time.
    TimedOut,
    /// The peer broke the TLS protocol, or speaks another version than 1.3.
    Protocol,
    /// A request presented no token.
    MissingToken,
    /// A request presented the token of another job.
    WrongToken,
}

impl fmt::Display for RejectReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::NoCertificate => "no certificate",
            Self::UnknownAuthority => "certificate of another CA",
            Self::Expired => "certificate expired or not yet valid",
            Self::BadCertificate => "unusable certificate",
            Self::NotTls => "plaintext on a TLS port",
            Self::Tls => "TLS on a plaintext port",
            Self::RefusedByPeer => "refused by the peer",
            Self::Disconnected => "disconnected in the handshake",
            Self::TimedOut => "handshake timed out",
            Self::Protocol => "not TLS 1.3",
            Self::MissingToken => "no token",
            Self::WrongToken => "wrong token",
        })
    }
}

/// Rejected peers of one reason.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Rejected {
    /// Number of rejections.
    pub count: u64,
    /// Address of the latest rejected peer, if known.
    pub address: Option<SocketAddr>,
    /// Explanation of the latest rejection.
    pub message: String,
}

/// Counters of the peers that the servers of a process have rejected, by reason.
#[derive(Debug, Default)]
pub struct Rejections {
    entries: Mutex<BTreeMap<RejectReason, Entry>>,
}

#[derive(Debug)]
struct Entry {
    rejected: Rejected,
    /// Time of the latest line in the log, and the count at that time.
    logged: Option<(Instant, u64)>,
}

impl Rejections {
    /// Returns the number of peers that were rejected for a reason.
    #[must_use]
    pub fn count(&self, reason: RejectReason) -> u64 {
        self.with(|entries| entries.get(&reason).map_or(0, |entry| entry.rejected.count))
    }

    /// Returns the number of all rejected peers.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.with(|entries| entries.values().map(|entry| entry.rejected.count).sum())
    }

    /// Returns all reasons that have occurred, each with its count and its latest peer.
    #[must_use]
    pub fn by_reason(&self) -> BTreeMap<RejectReason, Rejected> {
        self.with(|entries| entries.iter().map(|(reason, entry)| (*reason, entry.rejected.clone())).collect())
    }

    /// Counts a rejection, and logs it unless the reason was logged a short time ago.
    pub(super) fn record(&self, reason: RejectReason, address: Option<SocketAddr>, message: &str) {
        let now = Instant::now();
        let unlogged = self.with(|entries| {
            let entry = entries.entry(reason).or_insert_with(|| Entry {
                rejected: Rejected { count: 0, address: None, message: String::new() },
                logged: None,
            });
            entry.rejected.count += 1;
            entry.rejected.address = address;
            message.clone_into(&mut entry.rejected.message);
            let (last, before) = entry.logged.map_or((None, 0), |(last, before)| (Some(last), before));
            if last.is_some_and(|last| now.duration_since(last) < REJECTION_LOG_INTERVAL) {
                return None;
            }
            let count = entry.rejected.count;
            entry.logged = Some((now, count));
            Some(count - before - 1)
        });
        if let Some(unlogged) = unlogged {
            let peer = address.map_or_else(|| "of unknown address".to_owned(), |address| address.to_string());
            if reason == RejectReason::Disconnected {
                // As a manager does to learn if the port can be reached, and a health check of a network.
                return tracing::debug!(%peer, unlogged, "peer {peer} has disconnected: {message}");
            }
            tracing::warn!(%peer, %reason, unlogged, "peer {peer} rejected ({reason}): {message}");
        }
    }

    fn with<T>(&self, use_entries: impl FnOnce(&mut BTreeMap<RejectReason, Entry>) -> T) -> T {
        // No code panics under this lock, and counters are usable after one that did.
        use_entries(&mut self.entries.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::{RejectReason, Rejections};

    #[tokio::test(start_paused = true)]
    async fn rejections_of_two_reasons_are_counted_apart() {
        let rejections = Rejections::default();
        let address = "10.0.0.7:5000".parse().ok();
        for _ in 0..3 {
            rejections.record(RejectReason::NotTls, address, "first byte 0x50");
        }
        rejections.record(RejectReason::TimedOut, None, "5 s");
        assert_eq!((rejections.count(RejectReason::NotTls), rejections.count(RejectReason::Tls)), (3, 0));
        assert_eq!(rejections.total(), 4);
        assert_eq!(rejections.by_reason()[&RejectReason::NotTls].address, address);
    }
}
