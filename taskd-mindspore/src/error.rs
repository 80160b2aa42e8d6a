//! Interprets a MindSpore process's failure and its cause.
//!
//! This module knows texts only: it makes no recovery decision and looks at no process.

use taskd_core::job::{ErrorReport, Name};
use taskd_core::launch::python::{Failure, report_of};

/// Family of the error reports that [`report`] builds from MindSpore's log messages, when the output of a process
/// contains no exception.
pub const FAMILY: Name = Name::new("mindspore");

/// Error code of a worker that ends itself because it has lost the scheduler or peers.
const PEERS_LOST: Name = Name::new("PeersLost");

/// The cause of a MindSpore process's failure, as the process's messages indicate it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The training program itself caused the failure. This is also the kind of every exception that [`classify`] does
    /// not know.
    Program,
    /// A peer or the scheduler is lost: another process failed first.
    PeerLost,
    /// Another process took the scheduler's port: a race that is not the program's fault.
    PortInUse,
    /// The program was interrupted by SIGINT (`KeyboardInterrupt`).
    Interrupted,
    /// Memory of the host or of a device ran out.
    OutOfMemory,
}

use ErrorKind::{Interrupted, OutOfMemory, PeerLost, PortInUse, Program};

/// The rules: the first one whose strings are all in the text decides. The texts were captured from MindSpore 2.7.1 and
/// 2.10.0 on the CPU (the samples are in the tests), or taken from the libraries of 2.10.0.
const RULES: &[(ErrorKind, &[&str])] = &[
    (Interrupted, &["KeyboardInterrupt"]),
    // Before the rules for its consequences, such as a collective that cannot allocate memory.
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
    // Scheduler or worker, if the other processes have not arrived within MS_TOPO_TIMEOUT.
    (PeerLost, &["Failed to initialize distributed job cluster"]),
    // The scheduler has not received a heartbeat from a worker for MS_NODE_TIMEOUT.
    (PeerLost, &["The total number of timed out node is"]),
];

/// Text before the name of a failed kernel.
const KERNEL_FAILED: &str = "Launch kernel failed, name:";
/// Kernels that need other ranks: if one of them fails, a peer or a connection failed first. The list contains those
/// that `taskd.mindspore.collectives` records (a test compares them), and the others of
/// `mindspore.ops.operations.comm_ops`. Other kernels with similar names only compute.
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
/// Name prefixes of all kernels that `mindspore.mint.distributed` and the functions of `ops.communication` call.
const OF_DISTRIBUTED: [&str; 2] = ["DistComm", "InnerComm"];

/// Log messages of a worker that has lost its scheduler, or was informed by it of a lost peer, before it ends itself
/// with SIGTERM. Captured.
const ENDS_ITSELF: [&str; 2] =
    ["Kill this process with SIGTERM", "Failed to send heartbeat message to meta server node"];
/// Log messages of a scheduler that cannot listen. Captured; the exception that follows is the same for every cause.
const CANNOT_LISTEN: [&str; 2] = ["Failed to call bind", "Address already in use"];

/// Returns the cause of failure that an exception indicates. `exception` is the exception's type, a colon and its text.
#[must_use]
pub fn classify(exception: &str) -> ErrorKind {
    let fits = |(_, parts): &&(ErrorKind, &[&str])| parts.iter().all(|part| exception.contains(part));
    let known = RULES.iter().find(fits).map(|(kind, _)| *kind);
    known.unwrap_or(if is_collective(exception) { PeerLost } else { Program })
}

/// Returns true if the kernel of a collective operation has failed: its name is the last part of
/// `Default/network/AllReduce-op12`.
fn is_collective(exception: &str) -> bool {
    let Some((_, rest)) = exception.split_once(KERNEL_FAILED) else { return false };
    let path = rest.split(|c: char| c.is_whitespace() || c == ',').find(|word| !word.is_empty()).unwrap_or_default();
    let name = path.rsplit('/').next().unwrap_or_default();
    let name = name.rsplit_once("-op").map_or(name, |(name, _)| name);
    COLLECTIVES.contains(&name) || OF_DISTRIBUTED.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns the error report of a process's failure. It describes the exception that the process recorded or wrote to
/// stderr; without an exception, MindSpore's log message that the process ends because it has lost its scheduler or its
/// peers. Returns `None` if there is neither.
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
    let contains = |text: &&str| failure.stderr_tail.contains(*text);
    let Some(exception) = failure.exception() else {
        let line = failure.stderr_tail.lines().rfind(|line| ENDS_ITSELF.iter().any(|text| line.contains(text)))?;
        let reported = report_of(line);
        return Some(ErrorReport::new(FAMILY, PEERS_LOST, reported.text).with_follow_up(true).with_step(reported.step));
    };
    let kind = if CANNOT_LISTEN.iter().all(contains) { PortInUse } else { classify(&exception) };
    Some(report_of(&exception).with_follow_up(kind == PeerLost).with_retry_free(kind == PortInUse))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_collectives_are_peer_loss_and_compute_kernels_are_not() {
        let program = "from taskd.mindspore.collectives import OPERATIONS\nprint(json.dumps(list(OPERATIONS)))";
        let recorded = taskd_core::testing::python::evaluated(crate::PYTHON_FILES, program);
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
