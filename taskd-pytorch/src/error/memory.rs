//! Exception texts that mean that memory of the host or of a device ran out.
//!
//! `python/taskd/torch/out_of_memory.py` has the same two lists, to decide if a step is retried after such an
//! exception.

/// Exception types, in any module: torch's (`torch.cuda.OutOfMemoryError` before 2.5), Python's own, and NumPy's, which
/// is shown under its own name.
pub(super) const TYPES: &[&str] = &["OutOfMemoryError", "MemoryError", "_ArrayMemoryError"];

/// Texts: a line matches if the exception contains all its strings. The comment after a line gives its origin:
/// *captured*, or the source that prints it.
pub(super) const PHRASES: &[&[&str]] = &[
    &["DefaultCPUAllocator: can't allocate memory"], // captured
    &["DefaultCPUAllocator: not enough memory"],     // c10/core/impl/alloc_cpu.cpp, where there is no posix_memalign
    &["C10 Out of Memory"],                          // libc10 of 2.15
    &["CUDA out of memory"],                         // c10/cuda/CUDACachingAllocator.cpp
    &["CUDA error: out of memory"],                  // c10/cuda/CUDAException.cpp: a call that is not the allocator's
    &["HIP out of memory"],                          // the same two, as hipify writes them
    &["HIP error: out of memory"],
    &["XPU out of memory"],                 // c10/xpu/XPUCachingAllocator.cpp
    &["MPS backend out of memory"],         // aten/src/ATen/mps/MPSAllocator.mm
    &["HPU out of memory"],                 // Intel Gaudi, as accelerate's find_executable_batch_size knows it
    &["NPU out of memory"],                 // torch_npu, NPUCachingAllocator.cpp
    &["EL0004"],                            // CANN: memory of the device could not be allocated
    &["error code is 207001"],              // CANN: ACL_ERROR_RT_MEMORY_ALLOCATION
    &["STATUS_ALLOC_FAILED"],               // cuBLAS, cuSPARSE, cuSOLVER, cuDNN 8, hipBLAS: at/cuda/Exceptions.h
    &["CUFFT_ALLOC_FAILED"],                // at/native/cuda/CuFFTUtils.h
    &["CUDNN_STATUS", "ALLOCATION_FAILED"], // cuDNN 9: ..._INTERNAL_ERROR_{HOST,DEVICE}_ALLOCATION_FAILED
    &["NCCL error", "out of memory"],       // NCCL's last error in a DistBackendError
    &["Cannot allocate memory"],            // captured: ENOMEM of mmap and fork, also in torch's own words
    &["std::bad_alloc"],                    // C++'s own, which reaches Python as a RuntimeError
];

/// Returns true if an exception, with this type name, means that memory ran out.
pub(super) fn ran_out(type_name: &str, exception: &str) -> bool {
    TYPES.contains(&type_name) || PHRASES.iter().any(|words| words.iter().all(|word| exception.contains(word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the strings of the Python tuple with this name in a source text, grouped by line.
    fn tuple<'a>(source: &'a str, name: &str) -> Vec<Vec<&'a str>> {
        let start = source.find(&format!("\n{name} = (")).expect(name);
        let lines = source[start + 1..].lines();
        let is_last = |line: &&str| line.ends_with(')') && !line.starts_with(' ');
        let end = lines.clone().position(|line| is_last(&line)).expect("it ends") + 1;
        let texts = |line: &'a str| line.split('"').skip(1).step_by(2).collect::<Vec<_>>();
        lines.take(end).map(texts).filter(|texts| !texts.is_empty()).collect()
    }

    #[test]
    fn the_rank_and_the_supervisor_have_the_same_lists() {
        let source = include_str!("../../python/taskd/torch/out_of_memory.py");
        assert_eq!(tuple(source, "TYPES"), [TYPES]);
        assert_eq!(tuple(source, "PHRASES"), PHRASES);
    }
}
