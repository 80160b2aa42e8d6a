//! Kinds of events by the names and categories that PyTorch, NCCL and gloo give them.

use taskd_core::analysis::model::Kind;

/// An activity of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Device {
    /// A kernel.
    Kernel,
    /// A copy or a fill of memory.
    Memory,
}

/// Returns the activity of the device that events of this category are; `None` for the host. Traces of PyTorch before
/// 1.13 have the categories in capitals.
#[inline]
pub(super) fn device(category: &[u8]) -> Option<Device> {
    match category {
        b"kernel" | b"Kernel" => Some(Device::Kernel),
        b"gpu_memcpy" | b"gpu_memset" | b"Memcpy" | b"Memset" => Some(Device::Memory),
        _ => None,
    }
}

/// Returns true for calls of a device's runtime or driver on the host: `cuda_runtime`, `cuda_driver`, `xpu_runtime`,
/// `privateuse1_runtime`, and `Runtime` of PyTorch before 1.13.
#[inline]
pub(super) fn is_runtime(category: &[u8]) -> bool {
    category.ends_with(b"_runtime") || category.ends_with(b"_driver") || category == b"Runtime"
}

/// Returns true for kernels of NCCL and of the libraries that follow its names (RCCL, `MSCCL++`).
#[inline]
pub(super) fn is_communication_kernel(name: &[u8]) -> bool {
    [b"ncclKernel".as_slice(), b"ncclDev", b"nccl:", b"msccl"].iter().any(|prefix| name.starts_with(prefix))
}

/// Returns the kind and the operation of a communication, from the name of a kernel (`ncclDevKernel_AllReduce_Sum_f32`),
/// of an annotation (`gloo:all_reduce`), or from the argument `Collective name` (`allreduce`). The operation is in
/// lower case with underscores.
pub(super) fn communication(name: &str) -> (Kind, String) {
    let bare = name.rsplit(':').next().unwrap_or(name);
    let bare = ["ncclDevKernel_", "ncclKernel_"].iter().find_map(|prefix| bare.strip_prefix(prefix)).unwrap_or(bare);
    let letters: String = bare
        .chars()
        .filter(|letter| letter.is_ascii_alphanumeric())
        .map(|letter| letter.to_ascii_lowercase())
        .collect();
    // The first match counts: longer names come before the names that they begin with.
    const OPERATIONS: [(&str, &str, Kind); 17] = [
        ("allreduce", "all_reduce", Kind::Collective),
        ("allgather", "all_gather", Kind::Collective),
        ("reducescatter", "reduce_scatter", Kind::Collective),
        ("alltoall", "all_to_all", Kind::Collective),
        ("broadcast", "broadcast", Kind::Collective),
        ("barrier", "barrier", Kind::Collective),
        ("gather", "gather", Kind::Collective),
        ("scatter", "scatter", Kind::Collective),
        ("reduce", "reduce", Kind::Collective),
        ("sendrecv", "send_recv", Kind::Collective),
        ("batchisendirecv", "send_recv", Kind::Collective),
        ("coalesced", "coalesced", Kind::Collective),
        ("send", "send", Kind::Send),
        ("recv", "receive", Kind::Receive),
        ("receive", "receive", Kind::Receive),
        ("isend", "send", Kind::Send),
        ("irecv", "receive", Kind::Receive),
    ];
    match OPERATIONS.iter().find(|(prefix, _, _)| letters.starts_with(prefix)) {
        Some((_, operation, kind)) => (*kind, (*operation).into()),
        None => (Kind::Collective, if letters.is_empty() { "unknown".into() } else { letters }),
    }
}

/// Returns the kind of an activity of the host, from its category and name. `has_device` is false for the trace of a rank
/// that computes on the CPU: its operators are then the computation.
pub(super) fn host(category: &[u8], name: &str, has_device: bool) -> Kind {
    match category {
        b"user_annotation" => annotation(name, has_device),
        b"cpu_op" if name.starts_with("autograd::engine::evaluate_function") => Kind::Backward,
        // Other operators contain the wait for a collective: only those of ATen compute.
        b"cpu_op" if !has_device && name.starts_with("aten::") => Kind::Compute,
        _ => Kind::Host,
    }
}

/// Returns the kind of an annotation: those that PyTorch itself writes, and names that the documentation of
/// `record_function` uses.
fn annotation(name: &str, has_device: bool) -> Kind {
    if name.starts_with("enumerate(DataLoader)") {
        Kind::DataLoader
    } else if name.starts_with("Optimizer.step#") {
        Kind::Optimizer
    } else if name.ends_with(".forward") || name == "forward" {
        Kind::Forward
    } else if name == "backward" {
        Kind::Backward
    } else if name.starts_with("gloo:") && !has_device {
        communication(name).0
    } else {
        Kind::Host
    }
}

/// Returns the bytes of one element of a type, as PyTorch names types; 0 if the name is unknown.
pub(super) fn element_bytes(name: &str) -> u64 {
    match name {
        "Byte" | "Char" | "Bool" | "unsigned char" | "signed char" | "bool" | "Float8_e4m3fn" | "Float8_e5m2" => 1,
        "Half" | "BFloat16" | "Short" | "c10::Half" | "c10::BFloat16" | "short int" | "short" => 2,
        "Float" | "Int" | "float" | "int" => 4,
        "Double" | "Long" | "ComplexFloat" | "double" | "long int" | "long" => 8,
        "ComplexDouble" => 16,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn communications_are_named_after_their_operation() {
        let cases = [
            (
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                Kind::Collective,
                "all_reduce",
            ),
            ("ncclKernel_ReduceScatter_RING_LL_Sum_half(ncclWorkElem)", Kind::Collective, "reduce_scatter"),
            ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", Kind::Collective, "send_recv"),
            ("gloo:all_reduce", Kind::Collective, "all_reduce"),
            ("gloo:send", Kind::Send, "send"),
            ("gloo:recvAnySource", Kind::Receive, "receive"),
            ("_allgather_base", Kind::Collective, "all_gather"),
            ("nccl:_reduce_scatter_base", Kind::Collective, "reduce_scatter"),
            ("nccl:all_to_all", Kind::Collective, "all_to_all"),
            ("", Kind::Collective, "unknown"),
        ];
        for (name, kind, operation) in cases {
            assert_eq!(communication(name), (kind, operation.to_owned()), "{name}");
        }
    }
}
