"""Makes and rebuilds process groups: the first ones, made by torch (`init_process_group`, `new_group`), so that they
can be aborted; those of a standby, which have no peers yet; and all groups of the next generation, over its store.

The main thread never waits for peers that may never join: each join runs on its own thread, which a newer abort
abandons. Abandoned groups are counted, and destroyed in parallel to the program.
"""

from __future__ import annotations

import os
import weakref

import torch
import torch.distributed as dist

from taskd import _auth, _link
from taskd._session import Cancelled, Refused
from taskd.torch import store_client
from taskd.torch.process_group import gloo, nccl, sockets
from taskd.torch.process_group.abortable import AbortableGroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Sequence

    from taskd.torch.engine import Engine

JOIN_SECONDS = 20  # time limit for all members to join
# Limit of abandoned groups, and threads that join them, that still exist; beyond it this process must restart.
ABANDONED_MAX = 64
POLL_SECONDS = 0.05
WITHOUT_HOOKS = "has a member without taskd's hooks, which is no rank of the job"


class Spec:
    """What defines a group: its constant properties, and its members in the current generation."""

    def __init__(
        self,
        name: str,
        desc: Any,
        backend: str,
        members: Sequence[int],
        rank: Any,
        timeout: Any,
        is_default: bool,
        of_job: Any = None,
        there: Any = None,
    ) -> None:
        self.name, self.desc, self.backend, self.timeout = name, desc, backend, timeout
        self.members = members  # ranks of torch's world
        self.of_job = of_job or members  # ranks of the job, in every world, including those that left and may return
        self.there = there or self.of_job  # without ranks that have left
        self.rank = rank  # rank in the group
        self.display_name = "default" if is_default else name
        # Equal for all groups of the same members.
        self.display_members = "all" if is_default else ",".join(map(str, self.of_job))
        self.is_default = is_default
        self.devices = {}  # device type: kind of backend

    def backends(self, real: Any) -> Any:
        found = []
        for device in real._device_types:
            backend = real._get_backend(device)
            if not any(backend is one for one in found):
                found.append(backend)
        return found


def kind_of(real: Any) -> Any:
    """Returns the module for this group's backend; None if the backend cannot be joined again."""
    names = {real._get_backend(device).name() for device in real._device_types}
    if names == {gloo.NAME}:
        return gloo
    return nccl if names == {nccl.NAME} and os.environ.get("TASKD_NCCL") == "1" else None


def is_new(module: Any, made: Any) -> bool:
    """Returns true if torch's function has made a group: it makes none if this process is not a member, and returns a
    group that exists already."""
    return isinstance(made, module.ProcessGroup) and not hasattr(made, "_inner")


class Groups:
    """All groups of the process."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.all = []  # weak references to the wrappers, in the order of creation
        self.left = []  # locks of abandoned groups that still exist

    # The first generation.

    def make(self, module: Any, make: Any, given: Any, meeting: Any) -> tuple[Any, Any]:
        """Returns what torch's function makes, and the abortable group around it; None if it cannot be recovered."""
        spec = self.spec_of(given)
        if self.engine.is_replacement():
            given = dict(given, group_size=1, group_rank=0, store=dist.HashStore())
            made = make(**given)
            if not is_new(module, made[0]):
                return made, None
            kind = self.known_kind_of(made[0], given["backend"])
            return made, kind and self.inside(made[0], kind, spec, made_alone=True)
        before = sockets.listening()
        made = make(**given)
        if not is_new(module, made[0]):
            return made, None
        kind = self.known_kind_of(made[0], given["backend"])
        if not kind:
            return made, None
        why, ends = self.why_not(made[0], kind, given, spec, meeting), None
        if why is None:
            try:
                ends = kind.first_ends(before, meeting.signed(self.engine), spec.rank, len(spec.members))
            except _auth.NotOurs as error:
                why = "has no ends that this process can trust (%s)" % error
        elif meeting is not None:
            meeting.publish_none(kind, self.engine)
        if ends is None:
            why = spec.display_name, why or WITHOUT_HOOKS
            self.cannot_leave("group %s %s, and cannot be given up inside of the process; restart all ranks" % why)
            return made, None
        return made, self.inside(made[0], kind, spec, ends=ends)

    def why_not(self, real: Any, kind: Any, given: Any, spec: Any, meeting: Any) -> str | None:
        """Returns why the group is not the job's, so that no supervisor could rejoin its members; None if it is."""
        size = os.environ.get("WORLD_SIZE")
        if spec.is_default and size and given["group_size"] != int(size):
            return "is of %d processes where the job has %s ranks" % (given["group_size"], size)
        if given.get("enable_reconfigure") and any(
            getattr(one, "supports_reconfigure", False) for one in spec.backends(real)
        ):
            return "is reconfigured by the program itself"
        if meeting is None or not meeting.all_have_hooks(kind.have_come()):
            return WITHOUT_HOOKS

    def known_kind_of(self, real: Any, backend: str) -> Any:
        """Returns `kind_of`. If that is None, no step can be aborted any more: a rank that waits in such a group would
        never return."""
        kind = kind_of(real)
        if kind is None:
            self.cannot_leave(
                "a group with the backend %s cannot be given up inside of the process; restart all ranks" % backend
            )
        return kind

    def cannot_leave(self, why: str) -> None:
        if why != self.engine.cannot:
            _link.say(why)
        self.engine.cannot = self.engine.cannot or why
        self.engine.session.knows_limits()

    def spec_of(self, given: Any) -> Any:
        ranks = given["global_ranks_in_group"]  # empty: all ranks
        members = list(ranks or range(given["group_size"]))
        rank = given["group_rank"]
        if ranks:
            own = dist.get_rank()
            rank = members.index(own) if own in members else None
        desc, timeout = given.get("group_desc") or "", given.get("timeout")
        return Spec(given["group_name"], desc, str(given["backend"]), members, rank, timeout, not ranks)

    def inside(self, real: Any, kind: Any, spec: Any, ends: Any = None, made_alone: bool = False) -> Any:
        if made_alone:
            ends = kind.Ends(frozenset(), self.address_of_one(real)) if kind is gloo else kind.Ends()
        for device in real._device_types:
            spec.devices[device] = kind
        return AbortableGroup(self.engine, real, kind, [ends], spec)

    def address_of_one(self, real: Any) -> Any:
        """Returns the address on which a group without peers listens, for the next group, without a name look-up."""
        hosts = {host for host, _ in sockets.listening()}
        return next(iter(hosts)) if len(hosts) == 1 else None

    def add(self, front: Any) -> None:
        self.all.append(weakref.ref(front, self.all.remove))

    def fronts(self) -> Any:
        """Returns the wrappers of groups in use. It only reads: another thread may add one meanwhile."""
        return [front for front in (one() for one in list(self.all)) if front is not None and front._inner.in_use]

    # Abort, on any thread.

    def release(self) -> int:
        """Ends every wait in all groups; returns the number of their connections."""
        return sum(front._inner.release() for front in self.fronts())

    # The next generation, on the main thread.

    def join(self, order: Any, cancelled: Callable[[], bool]) -> dict[str, int]:
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

    def next_spec(self, spec: Any, order: Any) -> Any:
        """Returns the spec of the group in the next world, with its members there. torch numbers them without gaps."""
        world = [int(one["rank"]) for one in order.get("members") or []] or list(range(int(order["size"])))
        number, own = {rank: at for at, rank in enumerate(world)}, int(order["rank"])
        there = world if spec.is_default else [rank for rank in spec.of_job if rank in number]
        if own not in there:
            raise Refused("rank %d is no member of group %s in the new world" % (own, spec.display_name))
        members, at = [number[rank] for rank in there], there.index(own)
        new = Spec(spec.name, spec.desc, spec.backend, members, at, spec.timeout, spec.is_default, spec.of_job, there)
        new.devices = spec.devices
        return new

    def swap(self, front: Any, spec: Any, real: Any, store: Any, ends: Any) -> None:
        import torch.distributed.distributed_c10d as module

        inside = front._inner
        old, old_client, inside.client = [inside.real], inside.client, self.engine.client
        inside.real, inside.spec, inside.ends, inside.has_failed = real, spec, [ends], False
        world = module._world
        world.pg_map[front] = (world.pg_map[front][0], store)
        world.pg_group_ranks[front] = {rank: at for at, rank in enumerate(spec.members)}
        if self.engine.is_replacement():  # the backends that C++ finds without Python have no peers
            front._share()
        front._count_anew("%s#%d" % (world.pg_names[front], self.engine.session.generation), spec.there)
        self.abandon(old, old_client)

    def abandon(self, holder: Any, client: Any, after: Any = None) -> None:
        """Destroys the content of the holder on a thread, once the lock `after` is released: the backend's destructor
        takes 100 ms, and longer if an operation does not end. The store's client outlives it: C++ would not keep the
        client's Python part."""
        import _thread

        done = _thread.allocate_lock()
        done.acquire()
        self.count_one(done)

        def take_down():
            import _signal  # pyright: ignore[reportMissingImports]

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

    def count_one(self, done: Any) -> None:
        """Counts an abandoned object until its lock is released."""
        self.left.append(done)

    @property
    def abandoned(self) -> Any:
        self.left = [one for one in self.left if one.locked()]
        return len(self.left)


class Joining:
    """Makes the groups of a generation on its own thread."""

    def __init__(self, groups: Any, order: Any, plans: Any) -> None:
        import _thread

        self.groups, self.order, self.plans = groups, order, plans
        self.made, self.error, self.at = [], None, "default"
        self.store = self.signed = self.client = None
        self.is_left = False  # true once no thread waits for the result
        self.done = _thread.allocate_lock()
        self.done.acquire()
        _thread.start_new_thread(self.run, ())

    def leave(self) -> None:
        """Abandons the join: no thread waits for it any more, and it does not wait for members that never join."""
        self.is_left = True
        if self.client is not None:
            self.client.close()

    def run(self) -> None:
        import _signal  # pyright: ignore[reportMissingImports]

        _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
        try:
            where = self.order["store"]
            self.client = store_client.Client(where["host"], where["port"], JOIN_SECONDS, lambda: self.is_left)
            if self.is_left:  # abandoned before there was a client for `leave` to close
                self.client.close()
                return
            self.store = dist.PrefixStore(self.order["prefix"], self.client)
            self.signed = self.groups.engine.signed(self.store, self.order["prefix"])
            self.groups.engine.meet(self.signed, self.order)
            for front, spec in self.plans:
                self.at = spec.display_name
                self.made.append(self.make(front._inner, spec))
        except Exception as error:
            self.error = "%s: %s" % (type(error).__name__, str(error).split("\n")[0][:500])
        finally:
            self.done.release()

    def make(self, inside: Any, spec: Any) -> Any:
        import torch.distributed.distributed_c10d as module

        own = dist.PrefixStore("%s/" % spec.name, self.store)  # pyright: ignore[reportArgumentType]
        real = module.ProcessGroup(own, spec.rank, len(spec.members))
        kind, types = inside.kind, module.ProcessGroup.BackendType.__members__
        type_ = types[kind.NAME.upper()]
        real._set_default_backend(type_)
        store = dist.PrefixStore("taskd/", own)
        timeout = spec.timeout or dist.constants.default_pg_timeout  # pyright: ignore[reportAttributeAccessIssue]
        signed = self.groups.engine.signed(store, "%s group %s" % (self.order["prefix"], spec.name))
        backend, ends = kind.join(store, signed, spec.rank, len(spec.members), inside.ends[0], JOIN_SECONDS, timeout)
        for device in spec.devices:
            real._register_backend(torch.device(device), type_, backend)
        real._set_group_name(spec.name)
        real._set_group_desc(spec.desc)
        return real, own, ends
