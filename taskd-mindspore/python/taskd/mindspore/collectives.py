"""Records collectives and point-to-point operations that Python calls: name, group, peer, size and sequence number.

MindSpore executes asynchronously: a recorded operation begins when the program calls it. It ends when the program next
waits for a result (`waits`), since all earlier operations have finished by then, or after two steps without a wait.
Python does not call the operations inside a compiled graph: if a graph trains and no operation is called, the kind is
reported as not recorded.

The recording never raises: its first failure is logged, and ends the recording of this kind.
"""

from __future__ import annotations

import sys
from itertools import count

from taskd import _hooks, _step_recorder
from taskd._kinds import COMMUNICATION as KIND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE, GATHER, SCATTER, ALL_TO_ALL, BARRIER, SEND, RECV = range(
    1, 12
)
NO_PEER, NO_SEQUENCE, OTHER_TYPE = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF, 0
# The operation of each class, and its attribute with the peer or the root.
OPERATIONS = {
    "AllReduce": (ALL_REDUCE, None),
    "AllGather": (ALL_GATHER, None),
    "AllGatherV": (ALL_GATHER, None),
    "ReduceScatter": (REDUCE_SCATTER, None),
    "ReduceScatterV": (REDUCE_SCATTER, None),
    "Broadcast": (BROADCAST, "root_rank"),
    "Reduce": (REDUCE, "dest_rank"),
    "CollectiveGather": (GATHER, "dest_rank"),
    "CollectiveScatter": (SCATTER, "root_rank"),
    "AlltoAll": (ALL_TO_ALL, None),
    "AlltoAllV": (ALL_TO_ALL, None),
    "AlltoAllVC": (ALL_TO_ALL, None),
    "Barrier": (BARRIER, None),
    "Send": (SEND, "dest_rank"),
    "Receive": (RECV, "src_rank"),
}
TYPES = {
    "Float32": 1, "Float16": 2, "BFloat16": 3, "Float64": 4, "Int8": 5, "Int16": 6, "Int32": 7, "Int64": 8,
    "UInt8": 9, "UInt16": 10, "UInt32": 11, "UInt64": 12, "Bool": 13,
}  # fmt: skip
OPEN_MAX = 1024  # open operations that are kept; beyond that, all of them are ended
STEPS_WITHOUT = 3
IN_A_GRAPH = "the collectives are inside of a compiled graph"

open_ranges = []  # ranges of operations that may not have finished
_native = None
_ends = []  # number of ranges that were open at the end of the last step
_failed = False


def install(module: Any, native: Any) -> None:
    """Wraps the operations. `module` is mindspore.ops.operations.comm_ops."""
    global _native
    _native = native
    native.hooked(KIND)
    watch = Watch(native)
    for name, (op, peer_attribute) in OPERATIONS.items():
        cls = getattr(module, name, None)
        if cls is not None:
            cls.__call__ = recorded(cls.__call__, name, op, peer_attribute, watch)
    _step_recorder.at_end.append(watch.step)


def recorded(call: Any, name: str, op: str, peer_attribute: Any, watch: Any) -> Any:
    between_two = op in (SEND, RECV)
    numbers = {}  # by group, or by group and peer

    def called(self, *args):
        if not _failed:
            try:
                watch.called = True
                peer = getattr(self, peer_attribute, None) if peer_attribute else None
                group = self.group if hasattr(self, "group") else ""
                key = (op, group, peer) if between_two else group
                sequence = next((numbers if between_two else collectives).setdefault(key, count()))
                if _native.is_on(KIND):
                    begin(name, op, group, peer, args, sequence)
            except Exception as error:
                fail(error)
        return call(self, *args)

    return _hooks.in_place_of(call, called)


collectives = {}  # the sequence numbers of each group's collectives, which also count unrecorded ones


def begin(name: str, op: str, group: Any, peer: Any, args: tuple[Any, ...], sequence: int) -> None:
    _hooks.first()
    data_type, elements, size = amount(args[0]) if args else (OTHER_TYPE, 0, 0)
    range_ = _native.begin_communication(
        _native.name(name), op, data_type, _native.name(group), world_rank(group, peer), elements, size, sequence
    )
    if range_:
        if len(open_ranges) >= OPEN_MAX:
            end_open()
        open_ranges.append(range_)


def amount(what: Any) -> Any:
    """Returns type, number and bytes of the elements of a tensor, or of several."""
    if isinstance(what, (tuple, list)):
        parts = [amount(part) for part in what]
        return (parts[0][0] if parts else OTHER_TYPE), sum(part[1] for part in parts), sum(part[2] for part in parts)
    data_type = TYPES.get(str(getattr(what, "dtype", "")), OTHER_TYPE)
    return data_type, getattr(what, "size", 0), getattr(what, "nbytes", 0)


def world_rank(group: Any, rank: int) -> int:
    """Returns the world rank of a rank of a group."""
    if rank is None:
        return NO_PEER
    if not group.endswith("_world_group"):
        management = sys.modules.get("mindspore.communication.management")
        return management.get_world_rank_from_group_rank(group, rank)
    return rank


def end_open() -> None:
    """Ends the ranges of all operations called so far."""
    try:
        ranges = open_ranges[:]
        del open_ranges[:], _ends[:]
        for range_ in ranges:
            _native.end(range_)
    except Exception as error:
        fail(error)


def fail(error: BaseException) -> None:
    global _failed
    _failed = True
    _hooks.failed(_native, KIND, error)


class Watch:
    """Acts at each step's end: ends operations without a wait, and reports if a program's operations are not called."""

    def __init__(self, native: Any) -> None:
        self.native = native
        self.called = False
        self.steps_without = 0
        self.is_reported = False

    def step(self) -> None:
        old = _ends.pop() if _ends else 0
        for range_ in open_ranges[:old]:
            self.native.end(range_)
        del open_ranges[:old]
        _ends.append(len(open_ranges))
        self.steps_without = 0 if self.called else self.steps_without + 1
        self.called = False
        in_a_graph = self.steps_without >= STEPS_WITHOUT and trains_in_a_graph()
        if in_a_graph != self.is_reported:
            self.is_reported = in_a_graph
            self.native.except_(KIND, IN_A_GRAPH if in_a_graph else "")


def trains_in_a_graph() -> bool:
    context = sys.modules.get("mindspore.context")
    return context is not None and context.get_context("mode") == context.GRAPH_MODE
