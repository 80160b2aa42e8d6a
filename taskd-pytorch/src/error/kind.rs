//! Classifies an exception by its text with a table of rules, of which the first match decides.
//!
//! This module knows texts only. The hardware crates interpret vendors' error codes of a device.

use super::memory;
use taskd_core::launch::python::type_name;

/// The cause of a rank's failure, as the rank's exception indicates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The training program itself caused the failure. This is also the kind of every exception that [`classify`] does
    /// not know.
    Program,
    /// A connection or a collective failed because another process failed first.
    PeerLost,
    /// Another process took the port of the rendezvous store: a race that is not the program's fault.
    PortInUse,
    /// Memory of the host or of a device ran out.
    OutOfMemory,
    /// The program was interrupted: it received SIGINT (`KeyboardInterrupt`), or a signal that torchelastic turned into
    /// a `SignalException`.
    Interrupted,
}

/// Condition of a rule.
enum If {
    /// The exception has this type, whatever its module is.
    Type(&'static str),
    /// The text of the exception contains all of these strings.
    Contains(&'static [&'static str]),
    /// The exception means that memory ran out.
    ShortOfMemory,
}

use ErrorKind::{Interrupted, OutOfMemory, PeerLost, PortInUse, Program};
use If::{Contains, ShortOfMemory, Type};

/// The rules, in order. The comment after a text gives its origin: *captured* from torch 2.9.1 and 2.15.0 (the samples
/// are in the tests), or the source that prints it.
const RULES: &[(ErrorKind, If)] = &[
    // The store of rank 0 cannot listen. Captured; torch 2.1 words it "failed to bind to ... (errno: 98 - Address
    // ...)".
    (PortInUse, Contains(&["The server socket has failed to", "ddress already in use"])),
    (OutOfMemory, ShortOfMemory),
    // A stop was requested.
    (Interrupted, Type("KeyboardInterrupt")),
    (Interrupted, Type("SignalException")), // torch/distributed/elastic/multiprocessing/api.py
    // A collective with wrong arguments is the program's own fault, whichever rank reports it.
    (Program, Contains(&["ncclInvalidUsage"])), // torch/csrc/distributed/c10d/NCCLUtils.cpp
    (Program, Contains(&["ncclInvalidArgument"])), // the same
    (Program, Contains(&["EI0003"])),           // CANN: bad argument of a collective
    (Program, Contains(&["EI0005"])),           // CANN: arguments differ between ranks
    // torch's own types for connection, store and collective errors (2.1 and later). Captured: those of network and
    // store.
    (PeerLost, Type("DistError")),
    (PeerLost, Type("DistNetworkError")),
    (PeerLost, Type("DistStoreError")),
    (PeerLost, Type("DistBackendError")),
    (PeerLost, Type("StepAborted")), // ours: an aborted step whose exception the program did not catch
    // Python's own types for connections.
    (PeerLost, Type("ConnectionResetError")),
    (PeerLost, Type("ConnectionRefusedError")),
    (PeerLost, Type("ConnectionAbortedError")),
    (PeerLost, Type("BrokenPipeError")),
    // gloo: a RuntimeError with the place in its sources.
    (PeerLost, Contains(&["Connection closed by peer"])), // captured: peer exits between collectives
    (PeerLost, Contains(&["Connection reset by peer"])),  // captured: peer killed within one
    (PeerLost, Contains(&["gloo", "Timed out waiting"])), // captured: peer does not take part
    (PeerLost, Contains(&["Gloo connectFullMesh failed"])), // captured: peer gone before it was connected
    (PeerLost, Contains(&["failed to pass monitoredBarrier"])), // captured
    (PeerLost, Contains(&["gloo", "Broken pipe"])),       // gloo/transport/tcp/pair.cc, a write
    (PeerLost, Contains(&["gloo", "Application timeout caused pair closure"])), // the same, an earlier time-out
    // TCPStore of torch before 2.1, without a type of its own.
    (PeerLost, Contains(&["RuntimeError: Socket Timeout"])),
    (PeerLost, Contains(&["RuntimeError: Broken pipe"])),
    // NCCL before torch 2.1 (a RuntimeError), and its watchdog, which ends the process from another thread.
    (PeerLost, Contains(&["Watchdog caught collective operation timeout"])), // torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp
    (PeerLost, Contains(&["NCCL communicator was aborted"])),                // the same
    (PeerLost, Contains(&["ncclRemoteError"])),                              // NCCLUtils.cpp
    (PeerLost, Contains(&["ncclSystemError"])),                              // NCCLUtils.cpp
    // HCCL under torch_npu: vllm-project/vllm-ascend#486, hiyouga/LlamaFactory#3839, Ascend/pytorch#54.
    (PeerLost, Contains(&["EI0002"])), // CANN: a peer never arrived
    (PeerLost, Contains(&["EI0006"])), // CANN: a link could not be set up in time
    (PeerLost, Contains(&["hccl api failed"])),
    (PeerLost, Contains(&["hccl fftsplus task timeout"])),
];

/// Returns the cause of failure that an exception indicates. `exception` is the exception's type, a colon and its text.
///
/// ```
/// use taskd_pytorch::error::{ErrorKind, classify};
///
/// let gloo = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer";
/// assert_eq!(classify(gloo), ErrorKind::PeerLost);
/// assert_eq!(classify("ValueError: boom"), ErrorKind::Program);
/// ```
#[must_use]
pub fn classify(exception: &str) -> ErrorKind {
    let name = type_name(exception);
    let fits = |rule: &If| match rule {
        Type(wanted) => name == *wanted,
        Contains(words) => words.iter().all(|word| exception.contains(word)),
        ShortOfMemory => memory::ran_out(name, exception),
    };
    RULES.iter().find(|(_, rule)| fits(rule)).map_or(Program, |(kind, _)| *kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks texts that could not be reproduced here, as the sources of the libraries print them.
    #[test]
    fn texts_from_sources() {
        let texts = [
            (
                PortInUse,
                "RuntimeError: The server socket has failed to listen on any local network address. The server \
                         socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
            ),
            (OutOfMemory, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
            (OutOfMemory, "MemoryError"),
            (OutOfMemory, "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 PiB for an array"),
            (OutOfMemory, "OSError: [Errno 12] Cannot allocate memory"),
            (OutOfMemory, "RuntimeError: std::bad_alloc"),
            (OutOfMemory, "torch.AcceleratorError: CUDA error: out of memory"),
            (OutOfMemory, "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
            (OutOfMemory, "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
            (
                OutOfMemory,
                "DistBackendError: NCCL error in: NCCLUtils.cpp:94, unhandled cuda error, NCCL version 2.27.5\n\
                          Last error:\nFailed to CUDA calloc async 16 bytes: Cuda failure 2 'out of memory'",
            ),
            (
                Program,
                "DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1, invalid usage, NCCL version 2.27.5\n\
                       ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n\
                       Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
            ),
            (
                PeerLost,
                "DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1, remote process exited or there was a \
                        network error, NCCL version 2.27.5\nncclRemoteError: A call failed possibly due to a network error",
            ),
            (
                PeerLost,
                "DistBackendError: [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, \
                        OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600032 milliseconds",
            ),
            (
                PeerLost,
                "RuntimeError: InnerRunOpApi:torch_npu/csrc/framework/OpParamMaker.cpp:281 OPS function error: \
                        HcclAllreduce, error code is 6\nEI0006: Getting socket times out.",
            ),
            (PeerLost, "taskd._aborted.StepAborted: a collective operation of step 7 was given up"),
            (Interrupted, "KeyboardInterrupt"),
            (Interrupted, "torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15"),
            (Program, "OSError: [Errno 98] Address already in use"), // not the store's
            (Program, "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"),
            (Program, "SomeOutOfMemoryErrorLike: x"),
            (Program, ""),
        ];
        for (kind, text) in texts {
            assert_eq!(classify(text), kind, "{text}");
        }
    }
}
