"""Exceptions after which a repeated step may succeed: memory of the host or of a device was exhausted.

The supervisor has the same two lists (`src/error/memory.rs` of taskd-pytorch), because it has only the texts of
exceptions. A test there compares the lists, and states the source of each of these words.
"""

from __future__ import annotations

# Names of types.
TYPES = ("OutOfMemoryError", "MemoryError", "_ArrayMemoryError")
# Words that the text contains: all words of one line.
PHRASES = (
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


def ran_out_of_memory(error: BaseException) -> bool:
    """Returns True if the exception states that memory was exhausted."""
    if any(cls.__name__ in TYPES for cls in type(error).__mro__):
        return True
    try:
        text = str(error)
    except Exception:  # raised by a type of the program's
        return False
    return any(all(word in text for word in words) for words in PHRASES)
