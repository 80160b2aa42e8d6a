"""Records the operations of process groups: operation, group, peer, bytes, sequence number, duration.

The recorder never raises: its first failure is reported, and ends the recording of this kind.

The code that every operation runs is in few functions, and reads few objects: between two operations a program does so
much else that each object is out of the processor's caches, and takes microseconds. So native code of libtaskd records
collectives where it can (`prepare_native`), and this module the rest: sends, receives, named arguments, and everything
with a recorder that is called through ctypes.
"""

from __future__ import annotations

import sys
from itertools import count

from torch import Tensor
from torch.distributed import distributed_c10d

from taskd import _hooks, _step_recorder
from taskd._kinds import COMMUNICATION as KIND
from taskd.torch.process_group.operations import (
    NO_PEER,
    NO_SEQUENCE,
    OTHER_TYPE,
    TYPES,
    amount,
    first_tensor,
    group_rank,
    returns_at_once,
)
from taskd.torch.process_group.options import async_flags
from taskd.torch.process_group.record_end import Ends
from taskd.torch.tracing import gates, is_tracing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Sequence


OTHER = (OTHER_TYPE, 0)
# Functions of torch that send or receive.
WAIT, RETURN_AT_ONCE = ("send", "recv"), ("isend", "irecv")
DISTRIBUTED = distributed_c10d.__file__


class Numbers:
    """Properties of a group, and the counters of its operations: they advance while nothing is recorded, so that a
    number means the same operation on all ranks.

    The collectives of a group have one counter, from 0. Between two ranks each direction has its own: the n-th send to
    a peer is the peer's n-th receive from this rank. A receive from any source has no number.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.collectives = count()
        self.between = {}  # (operation, peer): its counter
        self.global_ranks = None  # indexed by rank of the group
        self.is_on_host = False  # true if operations complete on the host for every device
        self.completes_on_host = {}  # by device, None for an operation without tensors

    def renew(self, name: str, global_ranks: Sequence[int]) -> None:
        """Resets the counters after the group was rebuilt with these ranks: a new rank counts from 0, and so do all."""
        self.name, self.collectives, self.between = name, count(), {}
        self.global_ranks = dict(enumerate(global_ranks))

    def next(self, call: Any, arguments: Any) -> Any:
        if not call.between_two:
            return next(self.collectives)
        peer = group_rank(call, arguments)
        return NO_SEQUENCE if peer is None else next(self.between.setdefault((call.op, peer), count()))


def called_name(name: str, call: Any) -> str:
    """Returns the name of the operation that a method is."""
    return (call.called or name).lstrip("_")


def is_waited_for() -> bool:
    """Returns true if the operation that begins is that of torch's `send` or `recv`, which wait for it. Those that
    `isend`, `irecv` and others begin have other names: their ranges may end long after the data was transferred."""
    frame = sys._getframe(3)  # this function, `begin`, the method of the group
    code = frame.f_code
    if code.co_name in RETURN_AT_ONCE and frame.f_back is not None:
        code = frame.f_back.f_code
    return code.co_name in WAIT and code.co_filename == DISTRIBUTED


class Recorder:
    """Records the operations of all groups of a process."""

    def __init__(self, module: Any, native: Any) -> None:
        self.native = native
        self.world = module._world
        self.failed = False
        self.functions = None  # native code that records the operations
        self.ends = Ends(module.Work, native, self.fail)
        _step_recorder.at_begin.append(self.sweep)

    def prepare_native(self) -> bool:
        """Returns true if native code can record operations: the library's Python module records, and its Python lacks
        no function."""
        functions = getattr(self.native, "real", self.native)
        if not hasattr(functions, "prepare_operations"):
            return False
        ends, types = self.ends, tuple((kind, code, width) for kind, (code, width) in TYPES.items())
        shared = gates(), self.fail, ends.wait, ends.watch, Tensor, Tensor.numel, types, async_flags()
        if not functions.prepare_operations(*shared):
            return False
        self.functions = functions
        ends.go_native(functions)
        return True

    def native_operation(self, name: str, call: Any, slow: Any) -> Any:
        """Returns the native method of this name. It leaves what is rare to `slow`, the method in Python."""
        peer = None if call.peer is None else lambda group, args: self.global_rank(group, group_rank(call, args))
        return self.functions.operation(
            slow,
            name,
            called_name(name, call),
            call.op,
            call.tensors,
            lambda args: amount(call, args),
            peer,
            lambda group, args: self.completes_on_host(group, call, args),
        )

    def beginner(self, name: str, call: Any) -> Any:
        """Returns the function that begins the range of a call of this method. It takes the group and the call's
        arguments, and returns 0 if nothing is recorded."""
        native, ends, op, between_two, has_peer = (
            self.native,
            self.ends,
            call.op,
            call.between_two,
            call.peer is not None,
        )
        position, is_on, one_of, called, at_once = call.tensors, native.is_on, Tensor, None, None

        def begin(group, args, kwargs):
            nonlocal called, at_once
            if self.failed or is_tracing():  # a traced call is not an operation, and has no number
                return 0
            try:
                if kwargs:
                    args += tuple(kwargs.values())
                numbers = group._numbers
                sequence = numbers.next(call, args) if between_two else next(numbers.collectives)
                if ends.open or ends.functions is not None:  # native code knows whether a range is open
                    ends.sweep()
                if not is_on(KIND):
                    return 0
                what = args[position] if position is not None and len(args) > position else None
                if type(what) is list and len(what) == 1:
                    what = what[0]
                if type(what) is one_of:
                    data_type, width = TYPES.get(what.dtype, OTHER)
                    elements = what.numel()
                    size = elements * (width or what.element_size())
                else:
                    data_type, elements, size = amount(call, args)
                peer = self.global_rank(group, group_rank(call, args)) if has_peer else NO_PEER
                if called is None:
                    called = native.name(called_name(name, call))
                    at_once = native.name("i" + called_name(name, call)) if between_two else called
                waits = not between_two or is_waited_for() and self.completes_on_host(group, call, args)
                kind = called if waits else at_once
                return native.begin_communication(kind, op, data_type, numbers.name, peer, elements, size, sequence)
            except Exception as error:
                self.fail(error)
                return 0

        return begin

    def sweep(self) -> None:
        """Ends the ranges of completed operations whose completion was not reported yet."""
        try:
            self.ends.sweep()
        except Exception as error:
            self.fail(error)

    def end(self, range_id: int) -> None:
        """Ends the range of a completed call."""
        try:
            if range_id:
                self.native.end(range_id)
        except Exception as error:
            self.fail(error)

    def ender(self, call: Any) -> Any:
        """Returns the function that ends the range of a call of this method when its work completes. It takes the work,
        the range, the group and the call's arguments. torch returns no work if it has waited itself, and for a call
        that is issued together with others later."""
        ends, may_be_watched = self.ends, not call.between_two

        def end_with(work, range_id, group, args, kwargs):
            try:
                if work is None:
                    self.end(range_id)
                    return
                if kwargs:
                    args += tuple(kwargs.values())
                # True if the program may never wait itself, and a wait on another thread is harmless: on the host.
                watched = may_be_watched and returns_at_once(args)
                ends.expect(
                    work, range_id, watched and (group._numbers.is_on_host or self.completes_on_host(group, call, args))
                )
            except Exception as error:
                self.fail(error)

        return end_with

    def completes_on_host(self, group: Any, call: Any, arguments: Any) -> Any:
        device = getattr(first_tensor(call, arguments), "device", None)
        known = group._numbers.completes_on_host
        if device not in known:
            backend = group._inner if device is None else group._inner._get_backend(device)
            known[device] = backend.name() == "gloo"
        return known[device]

    def global_rank(self, group: Any, rank: int | None) -> Any:
        if rank is None:
            return NO_PEER
        numbers = group._numbers
        if numbers.global_ranks is None:
            members = self.world.pg_group_ranks.get(group, {})
            numbers.global_ranks = {of_group: of_world for of_world, of_group in members.items()}
        return numbers.global_ranks.get(rank, NO_PEER)

    def fail(self, error: BaseException) -> None:
        self.failed = True
        if self.functions is not None:
            self.functions.stop_operations()
        _hooks.failed(self.native, KIND, error)
