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
    /// Memory of the host or of a device ran out.
    OutOfMemory,
}

use ErrorKind::{Interrupted, OutOfMemory, PeerLost, PortInUse, Program};

/// A text of which all parts are there decides; the first that fits. Captured from MindSpore 2.7.1 and 2.10.0 on the CPU, the samples
/// are among the tests; or as the libraries of 2.10.0 have it.
const RULES: &[(ErrorKind, &[&str])] = &[
    (Interrupted, &["KeyboardInterrupt"]),
    // Ahead of what follows from it: a collective that finds no memory.
    (OutOfMemory, &["MemoryError"]),
    (OutOfMemory, &["Memory not enough"]),
    (OutOfMemory, &["memory isn't enough"]),
    (OutOfMemory, &["Allocate memory failed"]),
    (OutOfMemory, &["alloc memory failed"]),
    (OutOfMemory, &["EL0004"]), // CANN: memory of the device could not be allocated
    (OutOfMemory, &["error code is 207001"]), // CANN: ACL_ERROR_RT_MEMORY_ALLOCATION
    (OutOfMemory, &["Cannot allocate memory"]), // ENOMEM of mmap and fork
    (OutOfMemory, &["std::bad_alloc"]),
    // HCCL's own codes, as under torch_npu.
    (Program, &["EI0003"]),  // bad argument of a collective
    (Program, &["EI0005"]),  // arguments differ between ranks
    (PeerLost, &["EI0002"]), // a peer never arrived
    (PeerLost, &["EI0006"]), // a link could not be set up in time
    // Scheduler or worker, where the others have not come within MS_TOPO_TIMEOUT.
    (PeerLost, &["Failed to initialize distributed job cluster"]),
    // The scheduler has not heard of a worker for MS_NODE_TIMEOUT.
    (PeerLost, &["The total number of timed out node is"]),
];

/// What stands before the name of a kernel that has failed.
const KERNEL_FAILED: &str = "Launch kernel failed, name:";
/// Kernels that need other ranks: where one fails, a peer or a connection was first. Those that `taskd._collectives` records (a test
/// compares them), and the others of `mindspore.ops.operations.comm_ops`. Others of almost the same names compute.
const COLLECTIVES: [&str; 21] = [
    "AllReduce",
    "AllGather",
    "AllGatherV",
    "ReduceScatter",
    "ReduceScatterV",
    "Broadcast",
    "Reduce",
    "CollectiveGather",
    "CollectiveScatter",
    "AlltoAll",
    "AlltoAllV",
    "AlltoAllVC",
    "Barrier",
    "Send",
    "Receive",
    "NeighborExchange",
    "NeighborExchangeV2",
    "BatchISendIRecv",
    "_AllSwap",
    "_MiniStepAllGather",
    "_MicroStepAllGather",
];
/// What the names of all kernels begin with that `mindspore.mint.distributed` and the functions of `ops.communication` call.
const OF_DISTRIBUTED: [&str; 2] = ["DistComm", "InnerComm"];

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
    let known = RULES.iter().find(fits).map(|(kind, _)| *kind);
    known.unwrap_or(if is_collective(exception) { PeerLost } else { Program })
}

/// Whether a collective's kernel has failed: its name is the last part of `Default/network/AllReduce-op12`.
fn is_collective(exception: &str) -> bool {
    let Some((_, rest)) = exception.split_once(KERNEL_FAILED) else { return false };
    let path = rest.split(|c: char| c.is_whitespace() || c == ',').find(|word| !word.is_empty()).unwrap_or_default();
    let name = path.rsplit('/').next().unwrap_or_default();
    let name = name.rsplit_once("-op").map_or(name, |(name, _)| name);
    COLLECTIVES.contains(&name) || OF_DISTRIBUTED.iter().any(|prefix| name.starts_with(prefix))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collective_that_is_recorded_is_known_when_it_fails_and_what_computes_is_not() {
        let program = "from taskd._collectives import OPERATIONS\nprint(json.dumps(list(OPERATIONS)))";
        let recorded = taskd_core::testing::python::evaluated(&crate::PYTHON_FILES, program);
        let recorded: Vec<String> = serde_json::from_value(recorded).unwrap();
        assert!(recorded.len() > 10);
        let failed =
            |name: &str| classify(&format!("RuntimeError: {KERNEL_FAILED}Default/network-Net/{name}-op12\n\n---"));
        for name in
            recorded.iter().map(String::as_str).chain(COLLECTIVES).chain(["DistCommIsend", "InnerCommAllReduce"])
        {
            assert_eq!(failed(name), PeerLost, "{name}");
        }
        for name in ["ReduceSum", "ReduceMean", "BroadcastTo", "Gather", "MatMul", "AllReduceFusionTest"] {
            assert_eq!(failed(name), Program, "{name}");
        }
        assert_eq!(classify(KERNEL_FAILED), Program);
    }
}
