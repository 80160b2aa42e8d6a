"""The operations of a process group: for each method, its operation, and how its arguments are read.

The module only reads: the shape and type of tensors, never their values.
"""

from __future__ import annotations

import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# As in taskd.h.
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE, GATHER, SCATTER, ALL_TO_ALL, BARRIER, SEND, RECV = range(
    1, 12
)
NO_PEER, NO_SEQUENCE = 2**32 - 1, 2**64 - 1
OTHER_TYPE = 0
TYPE_NAMES = "float32 float16 bfloat16 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool".split()
WIDTHS = (4, 2, 2, 8, 1, 2, 4, 8, 1, 2, 4, 8, 1)
# torch type: (number, bytes per element).
TYPES = {
    getattr(torch, name): (code, width)
    for code, (name, width) in enumerate(zip(TYPE_NAMES, WIDTHS), 1)
    if hasattr(torch, name)
}


class Call:
    """How to read the arguments of one method.

    `tensors` is the position of the tensors that this rank sends; None if there are none. For a receive, and for a
    scatter, in which only the root sends, it is the position of the tensors that this rank receives. `peer` is the
    position of the root or peer: a rank of the group, or options that hold it. `called` is the name of another method
    that is the same operation: ranks may use either.
    """

    def __init__(self, op: int, tensors: int | None = None, peer: Any = None, called: str | None = None) -> None:
        self.op = op
        self.called = called
        self.tensors = tensors
        self.peer = peer
        self.between_two = op in (SEND, RECV)


CALLS = {
    "allreduce": Call(ALL_REDUCE, tensors=0),
    "allreduce_coalesced": Call(ALL_REDUCE, tensors=0),
    "allgather": Call(ALL_GATHER, tensors=1),
    "_allgather_base": Call(ALL_GATHER, tensors=1),
    "allgather_coalesced": Call(ALL_GATHER, tensors=1),
    "allgather_into_tensor_coalesced": Call(ALL_GATHER, tensors=1),
    "all_gather_single": Call(ALL_GATHER, tensors=1, called="_allgather_base"),
    "all_gather_single_coalesced": Call(ALL_GATHER, tensors=1, called="allgather_into_tensor_coalesced"),
    "reduce_scatter": Call(REDUCE_SCATTER, tensors=1),
    "_reduce_scatter_base": Call(REDUCE_SCATTER, tensors=1),
    "reduce_scatter_tensor_coalesced": Call(REDUCE_SCATTER, tensors=1),
    "reduce_scatter_single": Call(REDUCE_SCATTER, tensors=1, called="_reduce_scatter_base"),
    "reduce_scatter_single_coalesced": Call(REDUCE_SCATTER, tensors=1, called="reduce_scatter_tensor_coalesced"),
    "broadcast": Call(BROADCAST, tensors=0, peer=1),
    "reduce": Call(REDUCE, tensors=0, peer=1),
    "gather": Call(GATHER, tensors=1, peer=2),
    "gather_into_tensor": Call(GATHER, tensors=1, peer=2),
    "gather_single": Call(GATHER, tensors=1, peer=2, called="gather_into_tensor"),
    "scatter": Call(SCATTER, tensors=0, peer=2),
    "alltoall": Call(ALL_TO_ALL, tensors=1),
    "alltoall_base": Call(ALL_TO_ALL, tensors=1),
    "all_to_all_single": Call(ALL_TO_ALL, tensors=1, called="alltoall_base"),
    "barrier": Call(BARRIER),
    "monitored_barrier": Call(BARRIER),
    "send": Call(SEND, tensors=0, peer=1),
    "recv": Call(RECV, tensors=0, peer=1),
    "recv_anysource": Call(RECV, tensors=0),
}


def amount(call: Any, arguments: Any) -> Any:
    """Returns `(type, elements, bytes)` of the call's tensors. The type is that of the first."""
    first = first_tensor(call, arguments)
    if first is None:
        return OTHER_TYPE, 0, 0
    try:
        return (TYPES.get(first.dtype, (OTHER_TYPE, 0))[0], *total(arguments[call.tensors]))
    except AttributeError:  # not tensors: torch will refuse them, or they are elsewhere in named arguments
        return OTHER_TYPE, 0, 0


def total(what: Any) -> Any:
    """Returns `(elements, bytes)` of a tensor, or of all tensors in nested lists."""
    if not isinstance(what, (list, tuple)):
        elements = what.numel()
        return elements, elements * what.element_size()
    elements = size = 0
    for part in what:
        more_elements, more_size = total(part)
        elements += more_elements
        size += more_size
    return elements, size


def first_tensor(call: Any, arguments: Any) -> Any:
    """Returns the first of the call's tensors, or the object in its place; None if there is none."""
    what = None if call.tensors is None or len(arguments) <= call.tensors else arguments[call.tensors]
    while isinstance(what, (list, tuple)):
        what = what[0] if what else None
    return what


def group_rank(call: Any, arguments: Any) -> int | None:
    """Returns the root or peer of a call as a rank of its group; None if it has none or uses a default."""
    if call.peer is None or len(arguments) <= call.peer:
        return None
    peer = arguments[call.peer]
    return peer if isinstance(peer, int) else getattr(peer, "rootRank", None)


def returns_at_once(arguments: Any) -> bool:
    """Returns true if the call returns before the operation completes, or if an older torch does not report this."""
    return getattr(arguments[-1], "asyncOp", True) if arguments else True
