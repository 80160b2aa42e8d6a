"""What is NCCL's: to leave a group, and to make the next one. The same functions for gloo are in `_gloo`.

Not run yet: it is written after torch's own code, for a time when a machine with GPUs is there. Until then a job with this
backend is not recovered inside of its processes, unless TASKD_NCCL=1 says that somebody wants to try.
"""

from datetime import timedelta

from torch._C import _distributed_c10d as c10d

NAME = "nccl"
WAITS_IN_SLICES = False  # a wait only orders streams, and returns at once


class Ends:
    """Nothing has to be known of a communicator but itself."""

    address = None


def have_come():
    """torch makes a group without a word to the other members."""
    return False


def first_ends(before, store, rank, size):
    return Ends()


def tells_none(store, rank):
    """Nobody waits for what a member tells."""


def join(store, rank, size, before, join_seconds, timeout):
    """A backend over a new store; NCCL connects at the first operation."""
    options = c10d.ProcessGroupNCCL.Options()
    options.is_high_priority_stream = False
    options._timeout = timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
    backend = c10d.ProcessGroupNCCL(store, rank, size, options)
    backend._set_sequence_number_for_group()
    return backend, Ends()


def release(backend, ends):
    """ncclCommAbort on all communicators: kernels that wait for a peer return."""
    backend.abort()
    return 1
