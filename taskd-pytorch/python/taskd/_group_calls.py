"""What a process group is asked to do: for each of its methods the operation, and what to read from the arguments.

It only reads: tensors are asked for their shape and type, never for their values.
"""

import torch

# As in taskd.h.
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE, GATHER, SCATTER, ALL_TO_ALL, BARRIER, SEND, RECV = range(1, 12)
NO_PEER, NO_SEQUENCE = 2**32 - 1, 2**64 - 1
OTHER_TYPE = 0
TYPE_NAMES = "float32 float16 bfloat16 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool".split()
WIDTHS = (4, 2, 2, 8, 1, 2, 4, 8, 1, 2, 4, 8, 1)
# By torch's type: its number, and the bytes of an element.
TYPES = {
    getattr(torch, name): (code, width) for code, (name, width) in enumerate(zip(TYPE_NAMES, WIDTHS), 1) if hasattr(torch, name)
}


class Call:
    """How to read the arguments of one method.

    `tensors` is the position of what this rank gives, None if there is nothing. Of a receive it is that of what it gets,
    and so it is of a scatter, where only the root gives something. `whom` is the position of the root or peer: a rank of
    the group, or options that hold it. `called` is the name of another method that is the same operation: ranks may use either.
    """

    def __init__(self, op, tensors=None, whom=None, called=None):
        self.op = op
        self.called = called
        self.tensors = tensors
        self.whom = whom
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
    "broadcast": Call(BROADCAST, tensors=0, whom=1),
    "reduce": Call(REDUCE, tensors=0, whom=1),
    "gather": Call(GATHER, tensors=1, whom=2),
    "gather_into_tensor": Call(GATHER, tensors=1, whom=2),
    "gather_single": Call(GATHER, tensors=1, whom=2, called="gather_into_tensor"),
    "scatter": Call(SCATTER, tensors=0, whom=2),
    "alltoall": Call(ALL_TO_ALL, tensors=1),
    "alltoall_base": Call(ALL_TO_ALL, tensors=1),
    "all_to_all_single": Call(ALL_TO_ALL, tensors=1, called="alltoall_base"),
    "barrier": Call(BARRIER),
    "monitored_barrier": Call(BARRIER),
    "send": Call(SEND, tensors=0, whom=1),
    "recv": Call(RECV, tensors=0, whom=1),
    "recv_anysource": Call(RECV, tensors=0),
}


def amount(call, arguments):
    """`(type, elements, bytes)` of the call's tensors. The type is that of the first."""
    first = first_tensor(call, arguments)
    if first is None:
        return OTHER_TYPE, 0, 0
    try:
        return (TYPES.get(first.dtype, (OTHER_TYPE, 0))[0], *total(arguments[call.tensors]))
    except AttributeError:  # no tensors: torch is going to refuse them, or they are elsewhere among named arguments
        return OTHER_TYPE, 0, 0


def total(what):
    """`(elements, bytes)` of a tensor, or of all in lists of lists."""
    if not isinstance(what, (list, tuple)):
        elements = what.numel()
        return elements, elements * what.element_size()
    elements = size = 0
    for part in what:
        more_elements, more_size = total(part)
        elements += more_elements
        size += more_size
    return elements, size


def first_tensor(call, arguments):
    """The first of the call's tensors, None if it has none; or whatever stands in its place."""
    what = None if call.tensors is None or len(arguments) <= call.tensors else arguments[call.tensors]
    while isinstance(what, (list, tuple)):
        what = what[0] if what else None
    return what


def group_rank(call, arguments):
    """The root or peer of a call as a rank of its group; None where it has none or leaves it to a default."""
    if call.whom is None or len(arguments) <= call.whom:
        return None
    whom = arguments[call.whom]
    return whom if isinstance(whom, int) else getattr(whom, "rootRank", None)


def returns_at_once(arguments):
    """Whether the caller goes on before the operation is over. An older torch does not say."""
    return getattr(arguments[-1], "asyncOp", True) if arguments else True
