"""Records what process groups are asked to do: what, in which group, with whom, how much, the how-manieth, how long.

It never raises: its first failure is told, and ends the recording of this kind.

What every operation comes through is written in few functions, and reads few objects: between two operations a program does
so much else that each of them is out of the processor's caches, and takes microseconds.
"""

from itertools import count

from torch import Tensor

from taskd import _hooks, _steps
from taskd._group_calls import NO_PEER, NO_SEQUENCE, OTHER_TYPE, TYPES, amount, first_tensor, group_rank, returns_at_once
from taskd._group_ends import Ends
from taskd._kinds import COMMUNICATION as KIND
from taskd._tracing import is_tracing


OTHER = (OTHER_TYPE, 0)


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
        self.is_on_host = False  # whatever the device: see `completes_on_host`
        self.completes_on_host = {}  # by device, None for an operation without tensors

    def renew(self, name, global_ranks):
        """The group was made anew, as that of these ranks: a rank that is new counts from 0, and so do all."""
        self.name, self.collectives, self.between = name, count(), {}
        self.global_ranks = dict(enumerate(global_ranks))

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
        self.failed = False
        self.ends = Ends(module.Work, native, self.fail)
        _steps.at_begin.append(self.sweep)

    def beginner(self, name, call):
        """What begins the range of a call of that method: a function of the group and of the call's arguments, whose answer
        is 0 where nothing is recorded."""
        native, ends, op, between_two, has_peer = self.native, self.ends, call.op, call.between_two, call.whom is not None
        position, is_on, one_of, called = call.tensors, native.is_on, Tensor, None

        def begin(group, args, kwargs):
            nonlocal called
            if self.failed or is_tracing():  # what is only traced is no operation, and has no number
                return 0
            try:
                if kwargs:
                    args += tuple(kwargs.values())
                numbers = group._numbers
                sequence = numbers.next(call, args) if between_two else next(numbers.collectives)
                if ends.open:
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
                    called = native.name((call.called or name).lstrip("_"))
                return native.begin_communication(called, op, data_type, numbers.name, peer, elements, size, sequence)
            except Exception as error:
                self.fail(error)
                return 0

        return begin

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

    def ender(self, call):
        """What ends the range of a call of that method when its work completes: a function of the work, the range, the group
        and the call's arguments. No work is torch's answer where it has waited itself, and for a call that is issued
        together with others later."""
        ends, may_be_watched = self.ends, not call.between_two

        def end_with(work, range_id, group, args, kwargs):
            try:
                if work is None:
                    self.end(range_id)
                    return
                if kwargs:
                    args += tuple(kwargs.values())
                # Whether the program may never wait itself, and waiting beside it is harmless: on the host.
                watched = may_be_watched and returns_at_once(args)
                ends.expect(work, range_id, watched and (group._numbers.is_on_host or self.completes_on_host(group, call, args)))
            except Exception as error:
                self.fail(error)

        return end_with

    def completes_on_host(self, group, call, arguments):
        device = getattr(first_tensor(call, arguments), "device", None)
        known = group._numbers.completes_on_host
        if device not in known:
            backend = group._inner if device is None else group._inner._get_backend(device)
            known[device] = backend.name() == "gloo"
        return known[device]

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
