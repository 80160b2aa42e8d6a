"""Abort and rebuild of an NCCL group: leaves a group, and makes the next one. `gloo` has the same functions for gloo.

This code has not run yet: it follows torch's own, and awaits a machine with GPUs. Until then a job with this backend is
not recovered inside of its processes, unless TASKD_NCCL=1 is set.
"""

from __future__ import annotations

from datetime import timedelta

from torch._C import _distributed_c10d as c10d

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "nccl"
WAITS_IN_SLICES = False  # a wait only orders streams, and returns at once


class Ends:
    """Holds nothing: an abort needs only the communicator itself."""

    address = None


def have_come() -> bool:
    """Returns false: torch makes a group without contact to the other members."""
    return False


def first_ends(before: Any, signed: Any, rank: int, size: int) -> Any:
    return Ends()


def publish_none(signed: Any, rank: int) -> None:
    """Does nothing: no member waits for ends."""


def join(store: Any, signed: Any, rank: int, size: int, before: Any, join_seconds: float, timeout: Any) -> Any:
    """Returns a backend over a new store, and its ends; NCCL connects at the first operation."""
    options = c10d.ProcessGroupNCCL.Options()
    options.is_high_priority_stream = False
    options._timeout = timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
    backend = c10d.ProcessGroupNCCL(store, rank, size, options)
    backend._set_sequence_number_for_group()
    return backend, Ends()


def release(backend: Any, ends: Any) -> int:
    """Calls ncclCommAbort on all communicators: kernels that wait for a peer return."""
    backend.abort()
    return 1
