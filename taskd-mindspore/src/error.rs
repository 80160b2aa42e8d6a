//! What a MindSpore process says about its failure, and whose fault that is.
//!
//! It knows texts only, decides nothing, and looks at no process.

use taskd_core::job::{ErrorReport, Name};
use taskd_core::launch::python::{Failure, report_of};

/// The family of reports about MindSpore's own messages, where there is no exception.
pub const FAMILY: Name = Name::new("mindspore");

/// The code of a worker that ends itself because it has lost scheduler or peers.
const PEERS_LOST: Name = Name::new("PeersLost");

/// What a failure is a sign of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The program failed by itself. Everything that no rule knows.
    Program,
    /// A peer, or the scheduler, is lost: somebody else was first.
    PeerLost,
    /// The scheduler's port was taken by another process: a race, nobody's fault.
    PortInUse,
    /// Somebody asked the program to stop.
    Interrupted,
}

use ErrorKind::{Interrupted, PeerLost, PortInUse};

/// A text of which all parts are there decides. Captured from MindSpore 2.7.1 on the CPU; the samples are among the tests.
const RULES: &[(ErrorKind, &[&str])] = &[
    (Interrupted, &["KeyboardInterrupt"]),
    // Scheduler or worker, where the others have not come within MS_TOPO_TIMEOUT.
    (PeerLost, &["Failed to initialize distributed job cluster"]),
    // The scheduler has not heard of a worker for MS_NODE_TIMEOUT.
    (PeerLost, &["The total number of timed out node is"]),
    // A worker whose collective fails. The operation's name is a kernel's.
    (PeerLost, &["Launch kernel failed, name:", "AllReduce"]),
    (PeerLost, &["Launch kernel failed, name:", "AllGather"]),
    (PeerLost, &["Launch kernel failed, name:", "ReduceScatter"]),
    (PeerLost, &["Launch kernel failed, name:", "Broadcast"]),
    (PeerLost, &["Launch kernel failed, name:", "Collective"]),
    (PeerLost, &["Launch kernel failed, name:", "Barrier"]),
    (PeerLost, &["Launch kernel failed, name:", "Send"]),
    (PeerLost, &["Launch kernel failed, name:", "Receive"]),
];

/// What MindSpore logs before a worker that has lost its scheduler, or hears from it that a peer is lost, ends itself by
/// SIGTERM. Captured.
const ENDS_ITSELF: [&str; 2] =
    ["Kill this process with SIGTERM", "Failed to send heartbeat message to meta server node"];
/// What the scheduler logs when it cannot listen. Captured; the exception that follows is the same whatever was missing.
const CANNOT_LISTEN: [&str; 2] = ["Failed to call bind", "Address already in use"];

/// What an exception, given as its type, a colon and its text, is a sign of.
#[must_use]
pub fn classify(exception: &str) -> ErrorKind {
    let fits = |(_, parts): &&(ErrorKind, &[&str])| parts.iter().all(|part| exception.contains(part));
    RULES.iter().find(fits).map_or(ErrorKind::Program, |(kind, _)| *kind)
}

/// The report of a failure; `None` where what was left tells nothing.
///
/// ```
/// use taskd_core::job::ProcId;
/// use taskd_core::launch::python::Failure;
/// use taskd_mindspore::error::report;
///
/// let tail = "Traceback (most recent call last):\nRuntimeError: Launch kernel failed, name:Default/AllReduce-op0\n";
/// let report = report(&Failure::new(&ProcId::rank(1, 1), None, tail)).unwrap();
/// assert!(report.follow_up, "a peer was first");
/// ```
#[must_use]
pub fn report(failure: &Failure<'_>) -> Option<ErrorReport> {
    let says = |text: &&str| failure.stderr_tail.contains(*text);
    let Some(exception) = failure.exception() else {
        let line = failure.stderr_tail.lines().rfind(|line| ENDS_ITSELF.iter().any(|text| line.contains(text)))?;
        return Some(ErrorReport { family: FAMILY, code: PEERS_LOST, follow_up: true, ..report_of(line) });
    };
    let kind = if CANNOT_LISTEN.iter().all(says) { PortInUse } else { classify(&exception) };
    Some(ErrorReport { follow_up: kind == PeerLost, retry_free: kind == PortInUse, ..report_of(&exception) })
}
