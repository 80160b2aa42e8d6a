"""Makes process groups for recovery: the first ones, which torch makes, with what it takes to leave them; a newcomer's, which
have no peers yet; and those of the next generation, all of them, over its store.

It never waits on the main thread for what may never come: whoever joins does so on a thread of its own, which a newer give-up
leaves behind. Groups that were left are counted, and taken down beside the program.
"""

import os
import weakref

import torch
import torch.distributed as dist

from taskd import _auth, _gloo, _link, _nccl, _sockets, _store
from taskd._recoverable import Recoverable
from taskd._session import Cancelled, Refused

JOIN_SECONDS = 20  # for all members to come
ABANDONED_MAX = 64  # groups, and threads that join them, that are left and not gone yet; with more this process has to restart
POLL_SECONDS = 0.05
WITHOUT_HOOKS = "has a member without taskd's hooks, which is no rank of the job"


class Spec:
    """What a group is: what stays of it from generation to generation, and who its members are in this one."""

    def __init__(self, name, desc, backend, members, rank, timeout, is_default, of_job=None, there=None):
        self.name, self.desc, self.backend, self.timeout = name, desc, backend, timeout
        self.members = members  # as torch counts them in the world
        self.of_job = of_job or members  # as the job does, in every world; with those who have left, and may come back
        self.there = there or self.of_job  # less those
        self.rank = rank  # in the group
        self.told_as = "default" if is_default else name
        self.members_told = "all" if is_default else ",".join(map(str, self.of_job))  # the same for another group of the same members
        self.is_default = is_default
        self.devices = {}  # device type: kind of backend

    def backends(self, real):
        found = []
        for device in real._device_types:
            backend = real._get_backend(device)
            if not any(backend is one for one in found):
                found.append(backend)
        return found


def kind_of(real):
    """The module that knows this group's backend; None where it has none that can be joined anew."""
    names = {real._get_backend(device).name() for device in real._device_types}
    if names == {_gloo.NAME}:
        return _gloo
    return _nccl if names == {_nccl.NAME} and os.environ.get("TASKD_NCCL") == "1" else None


def is_new(module, made):
    """Whether torch's function has made a group: of one that this process is no member of it makes nothing, and of one that there is
    already it gives that."""
    return isinstance(made, module.ProcessGroup) and not hasattr(made, "_inner")


class Groups:
    """All groups of the process."""

    def __init__(self, engine):
        self.engine = engine
        self.all = []  # weak references to the groups in front, in the order in which they were made
        self.left = []  # locks of those that were left and are not gone

    # The first generation.

    def make(self, module, make, given, meeting):
        """What torch's own function makes, and what stands for it inside of ours; None where it cannot be recovered."""
        spec = self.spec_of(given)
        if self.engine.is_newcomer():
            given = dict(given, group_size=1, group_rank=0, store=dist.HashStore())
            made = make(**given)
            if not is_new(module, made[0]):
                return made, None
            kind = self.known_kind_of(made[0], given["backend"])
            return made, kind and self.inside(made[0], kind, spec, made_alone=True)
        before = _sockets.listening()
        made = make(**given)
        if not is_new(module, made[0]):
            return made, None
        kind = self.known_kind_of(made[0], given["backend"])
        if not kind:
            return made, None
        why, ends = self.why_not(made[0], kind, given, spec, meeting), None
        if why is None:
            try:
                ends = kind.first_ends(before, meeting.own, spec.rank, len(spec.members))
            except _auth.NotOurs as error:
                why = "has no ends that this process can trust (%s)" % error
        elif meeting is not None:
            meeting.tells_none(kind)
        if ends is None:
            told = spec.told_as, why or WITHOUT_HOOKS
            self.cannot_leave("group %s %s, and cannot be given up inside of the process; restart all ranks" % told)
            return made, None
        return made, self.inside(made[0], kind, spec, ends=ends)

    def why_not(self, real, kind, given, spec, meeting):
        """Why a group is none of the job's, whose members a supervisor could bring together again."""
        size = os.environ.get("WORLD_SIZE")
        if spec.is_default and size and given["group_size"] != int(size):
            return "is of %d processes where the job has %s ranks" % (given["group_size"], size)
        if given.get("enable_reconfigure") and any(getattr(one, "supports_reconfigure", False) for one in spec.backends(real)):
            return "is reconfigured by the program itself"
        if meeting is None or not meeting.all_have_hooks(kind.have_come()):
            return WITHOUT_HOOKS

    def known_kind_of(self, real, backend):
        """As `kind_of`. Where there is none, no step can be given up any more: a rank that waits in such a group would not come out."""
        kind = kind_of(real)
        if kind is None:
            self.cannot_leave("a group with the backend %s cannot be given up inside of the process; restart all ranks" % backend)
        return kind

    def cannot_leave(self, why):
        if why != self.engine.cannot:
            _link.say(why)
        self.engine.cannot = self.engine.cannot or why
        self.engine.session.knows_limits()

    def spec_of(self, given):
        ranks = given["global_ranks_in_group"]  # none: all of them
        members = list(ranks or range(given["group_size"]))
        rank = given["group_rank"]
        if ranks:
            own = dist.get_rank()
            rank = members.index(own) if own in members else None
        desc, timeout = given.get("group_desc") or "", given.get("timeout")
        return Spec(given["group_name"], desc, str(given["backend"]), members, rank, timeout, not ranks)

    def inside(self, real, kind, spec, ends=None, made_alone=False):
        if made_alone:
            ends = kind.Ends(frozenset(), self.address_of_one(real)) if kind is _gloo else kind.Ends()
        for device in real._device_types:
            spec.devices[device] = kind
        return Recoverable(self.engine, real, kind, [ends], spec)

    def address_of_one(self, real):
        """On which address a group without peers listens: the next one can do so too, without asking a name service."""
        hosts = {host for host, _ in _sockets.listening()}
        return next(iter(hosts)) if len(hosts) == 1 else None

    def add(self, front):
        self.all.append(weakref.ref(front, self.all.remove))

    def fronts(self):
        """The groups in front that are in use. It only looks: another thread may add one meanwhile."""
        return [front for front in (one() for one in list(self.all)) if front is not None and front._inner.in_use]

    # Giving up, on any thread.

    def release(self):
        """How many connections there were."""
        return sum(front._inner.release() for front in self.fronts())

    # The next generation, on the main thread.

    def join(self, order, cancelled):
        if self.abandoned >= ABANDONED_MAX:
            raise Refused("%d groups of older generations are not gone yet; restart this process" % self.abandoned)
        fronts = self.fronts()
        plans = [(front, self.next_spec(front._inner.spec, order)) for front in fronts]
        joining = Joining(self, order, plans)
        while not joining.done.acquire(True, POLL_SECONDS):
            if cancelled():
                joining.leave()
                self.abandon(joining.made, joining.client, joining.done)
                raise Cancelled
        if joining.error is not None:
            self.abandon(joining.made, joining.client)
            if cancelled():
                raise Cancelled
            raise Refused("group %s cannot be joined: %s" % (joining.at, joining.error))
        self.engine.store, self.engine.client = joining.signed, joining.client
        for (front, spec), made in zip(plans, joining.made):
            self.swap(front, spec, *made)
        return {"abandoned": self.abandoned}

    def next_spec(self, spec, order):
        """The group in the next world: of its members those that are there. torch counts these without gaps."""
        world = [int(one["rank"]) for one in order.get("members") or []] or list(range(int(order["size"])))
        number, own = {rank: at for at, rank in enumerate(world)}, int(order["rank"])
        there = world if spec.is_default else [rank for rank in spec.of_job if rank in number]
        if own not in there:
            raise Refused("rank %d is no member of group %s in the new world" % (own, spec.told_as))
        members, at = [number[rank] for rank in there], there.index(own)
        new = Spec(spec.name, spec.desc, spec.backend, members, at, spec.timeout, spec.is_default, spec.of_job, there)
        new.devices = spec.devices
        return new

    def swap(self, front, spec, real, store, ends):
        import torch.distributed.distributed_c10d as module

        inside = front._inner
        old, old_client, inside.client = [inside.real], inside.client, self.engine.client
        inside.real, inside.spec, inside.ends, inside.has_failed = real, spec, [ends], False
        world = module._world
        world.pg_map[front] = (world.pg_map[front][0], store)
        world.pg_group_ranks[front] = {rank: at for at, rank in enumerate(spec.members)}
        if self.engine.is_newcomer():  # what C++ finds without asking Python has no peers
            front._share()
        front._count_anew("%s#%d" % (world.pg_names[front], self.engine.session.generation), spec.there)
        self.abandon(old, old_client)

    def abandon(self, holder, client, after=None):
        """Takes down what the holder holds, on a thread: the backend's destructor takes 100 ms, and longer where an operation
        does not end. The client of its store outlives it: C++ would not keep the part of it that is Python's. Begins `after` that
        lock is released."""
        import _thread

        done = _thread.allocate_lock()
        done.acquire()
        self.count_one(done)

        def take_down():
            import _signal

            _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
            try:
                if after is not None:
                    after.acquire()
                del holder[:]
            finally:
                if client is not None and client is not self.engine.client:
                    client.close()
                done.release()

        _thread.start_new_thread(take_down, ())

    def count_one(self, done):
        """Counts something that is left until its lock is released."""
        self.left.append(done)

    @property
    def abandoned(self):
        self.left = [one for one in self.left if one.locked()]
        return len(self.left)


class Joining:
    """Makes the groups of a generation on a thread of its own."""

    def __init__(self, groups, order, plans):
        import _thread

        self.groups, self.order, self.plans = groups, order, plans
        self.made, self.error, self.at = [], None, "default"
        self.store = self.signed = self.client = None
        self.is_left = False  # nobody waits for it any more
        self.done = _thread.allocate_lock()
        self.done.acquire()
        _thread.start_new_thread(self.run, ())

    def leave(self):
        """Nobody waits for it any more, and it need not wait for members that never come."""
        self.is_left = True
        if self.client is not None:
            self.client.close()

    def run(self):
        import _signal

        _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
        try:
            where = self.order["store"]
            self.client = _store.Client(where["host"], where["port"], JOIN_SECONDS, lambda: self.is_left)
            if self.is_left:  # when there was no client yet that `leave` could have closed
                self.client.close()
                return
            self.store = dist.PrefixStore(self.order["prefix"], self.client)
            self.signed = self.groups.engine.signed(self.store, self.order["prefix"])
            self.groups.engine.meet(self.signed, self.order)
            for front, spec in self.plans:
                self.at = spec.told_as
                self.made.append(self.make(front._inner, spec))
        except Exception as error:
            self.error = "%s: %s" % (type(error).__name__, str(error).split("\n")[0][:500])
        finally:
            self.done.release()

    def make(self, inside, spec):
        import torch.distributed.distributed_c10d as module

        own = dist.PrefixStore("%s/" % spec.name, self.store)
        real = module.ProcessGroup(own, spec.rank, len(spec.members))
        kind, types = inside.kind, module.ProcessGroup.BackendType.__members__
        type_ = types[kind.NAME.upper()]
        real._set_default_backend(type_)
        store = dist.PrefixStore("taskd/", own)
        timeout = spec.timeout or dist.constants.default_pg_timeout
        backend, ends = kind.join(store, spec.rank, len(spec.members), inside.ends[0], JOIN_SECONDS, timeout)
        for device in spec.devices:
            real._register_backend(torch.device(device), type_, backend)
        real._set_group_name(spec.name)
        real._set_group_desc(spec.desc)
        return real, own, ends
