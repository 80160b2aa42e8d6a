"""Records what process groups are asked to do: what, in which group, with whom, how much, the how-manieth, how long.

It never raises: its first failure is told, and ends the recording of this kind.
"""

from itertools import count

import torch

from taskd import _hooks, _steps
from taskd._group_calls import NO_PEER, NO_SEQUENCE, amount, first_tensor, group_rank, returns_at_once
from taskd._group_ends import Ends
from taskd._kinds import COMMUNICATION as KIND


class Numbers:
    """What is known of a group, and the counts of its operations: they go on while nothing is recorded, so that a number
    means the same operation on all ranks.

    The collectives of a group have one count, from 0. Between two ranks each direction has its own: the n-th send to a
    peer is what that receives as its n-th from us. What is received from anybody has no number.
    """

    def __init__(self, name):
        self.name = name
        self.collectives = count()
        self.between = {}  # (operation, peer): its count
        self.global_ranks = None  # by rank of the group
        self.completes_on_host = {}  # by device, None for an operation without tensors

    def next(self, call, arguments):
        if not call.between_two:
            return next(self.collectives)
        peer = group_rank(call, arguments)
        return NO_SEQUENCE if peer is None else next(self.between.setdefault((call.op, peer), count()))


class Recorder:
    """Records for all groups of a process."""

    def __init__(self, module, native):
        self.native = native
        self.world = module._world
        self.names = {}  # by method
        self.failed = False
        self.ends = Ends(module.Work, self.end, self.fail)
        _steps.at_begin.append(self.sweep)

    def begin(self, group, name, call, args, kwargs):
        """The range of a call; 0 where it is not recorded."""
        if self.failed:
            return 0
        try:
            arguments = args + tuple(kwargs.values())
            sequence = group._numbers.next(call, arguments)
            if self.ends.open:
                self.ends.sweep()
            if not self.native.is_on(KIND):
                return 0
            data_type, elements, size = amount(call, arguments)
            return self.native.begin_communication(
                self.name_of(name),
                call.op,
                data_type,
                group._numbers.name,
                self.global_rank(group, group_rank(call, arguments)),
                elements,
                size,
                sequence,
            )
        except Exception as error:
            self.fail(error)
            return 0

    def sweep(self):
        """Ends what is over and nobody has told of yet."""
        try:
            self.ends.sweep()
        except Exception as error:
            self.fail(error)

    def end(self, range_id):
        """Of a call that is over."""
        try:
            if range_id:
                self.native.end(range_id)
        except Exception as error:
            self.fail(error)

    def end_with(self, work, range_id, group, call, args, kwargs):
        """Of a call that is over when its work completes. None is torch's answer where it has waited itself, and for a
        call that is issued together with others later."""
        try:
            if work is None:
                self.end(range_id)
            else:
                self.ends.expect(work, range_id, self.to_be_watched(group, call, args + tuple(kwargs.values())))
        except Exception as error:
            self.fail(error)

    def to_be_watched(self, group, call, arguments):
        """Whether the program may never wait itself, and waiting beside it is harmless: on the host."""
        if call.between_two or not returns_at_once(arguments):
            return False
        device = getattr(first_tensor(call, arguments), "device", None)
        known = group._numbers.completes_on_host
        if device not in known:
            backend = group._inner if device is None else group._inner._get_backend(device)
            known[device] = backend.name() == "gloo"
        return known[device]

    def name_of(self, method):
        if method not in self.names:
            self.names[method] = self.native.name(method.lstrip("_"))
        return self.names[method]

    def global_rank(self, group, rank):
        if rank is None:
            return NO_PEER
        numbers = group._numbers
        if numbers.global_ranks is None:
            members = self.world.pg_group_ranks.get(group, {})
            numbers.global_ranks = {of_group: of_world for of_world, of_group in members.items()}
        return numbers.global_ranks.get(rank, NO_PEER)

    def fail(self, error):
        self.failed = True
        _hooks.failed(self.native, KIND, error)
