"""Exceptions that a step may have once and not the next time: memory of the host or of a device ran out.

Both lists are the supervisor's as well (`src/error/memory.rs` of taskd-pytorch), which has only the texts of exceptions: a test
there compares them, and says from where each of these words comes.
"""

# Names of types.
TYPES = ("OutOfMemoryError", "MemoryError", "_ArrayMemoryError")
# Words that stand in the text, all of a line's.
SAYS = (
    ("DefaultCPUAllocator: can't allocate memory",),
    ("DefaultCPUAllocator: not enough memory",),
    ("C10 Out of Memory",),
    ("CUDA out of memory",),
    ("CUDA error: out of memory",),
    ("HIP out of memory",),
    ("HIP error: out of memory",),
    ("XPU out of memory",),
    ("MPS backend out of memory",),
    ("HPU out of memory",),
    ("NPU out of memory",),
    ("EL0004",),
    ("error code is 207001",),
    ("STATUS_ALLOC_FAILED",),
    ("CUFFT_ALLOC_FAILED",),
    ("CUDNN_STATUS", "ALLOCATION_FAILED"),
    ("NCCL error", "out of memory"),
    ("Cannot allocate memory",),
    ("std::bad_alloc",),
)


def may_pass(error):
    """Whether memory ran out, as far as the exception says so."""
    if any(cls.__name__ in TYPES for cls in type(error).__mro__):
        return True
    try:
        text = str(error)
    except Exception:  # the program's own type
        return False
    return any(all(word in text for word in words) for words in SAYS)
