"""Wrapper of process groups: every operation of every group of torch.distributed passes through it, called by Python or
by C++.

A group that torch makes (the default one, new_group, DeviceMesh, split_group) is wrapped in one of ours, which replaces
it in torch's tables: a subclass of ProcessGroup, so that DDP's reducer and the functional collectives, which call from
C++, pass through it as well. Each call reaches the inner group unchanged, and its result or exception is returned
unchanged. The inner group answers all other requests; C++ finds the same backends in both.

The wrapper never changes arguments, results or exceptions; it keeps gloo's tensors for a moment longer (`keep_alive`).
A group that cannot be wrapped stays as torch made it, and that is reported; after a failure of the wrapper itself
nothing is recorded any more, and the calls continue.

The wrapper does not see C++ calls that torch lets no Python class override. Among torch's own callers these are the
`out` variants of functional collectives, which compiled code may use.
"""

from __future__ import annotations

from operator import attrgetter

import torch.distributed as dist

from taskd import _hooks, _session
from taskd._kinds import COMMUNICATION as KIND
from taskd.torch.process_group.keep_alive import latest
from taskd.torch.process_group.names import with_members
from taskd.torch.process_group.operations import CALLS
from taskd.torch.process_group.record import Numbers, Recorder
from taskd.torch.process_group.rendezvous import Meeting
from taskd.torch.standby import init_process_group

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Sequence

    from taskd.torch.engine import Engine

# What the wrapper answers itself, besides the calls; all other requests of Python go to the inner group.
OWN = {"BackendType", "Options", "rank", "size", "boxed", "unbox", "_id", "_pybind11_conduit_v1_"}
# Arguments of the function that makes a group, in their order.
NAMES = "group_size", "group_rank", "global_ranks_in_group", "backend", "store", "group_name"
MAKERS = {"split_group", "merge_remote_group"}  # methods that return another group


def install(module: Any, native: Any) -> None:
    """Installs the wrapper in `module`, torch.distributed.distributed_c10d. Only the first call has an effect."""
    make = module._new_process_group_helper
    if hasattr(make, "_taskd"):
        return
    recorder = Recorder(module, native)
    engine = _session.current.engine if _session.current else None
    group_class = class_of(module.ProcessGroup, recorder, engine)
    record_natively(group_class, recorder)
    if hasattr(native, "then"):  # a standby, which loads its recorder when it has a rank
        native.then.append(lambda: record_natively(group_class, recorder))
    if engine is not None:
        init_process_group.install(module, engine)

    def _new_process_group_helper(*args, **kwargs):
        given = dict(zip(NAMES, args), **kwargs)
        meeting = meeting_of(given, engine)
        if meeting is not None:
            given["store"] = meeting.store
        try:
            if engine is not None and engine.is_rank_itself():
                made, inside = engine.groups.make(module, make, given, meeting)  # pyright: ignore[reportGeneralTypeIssues]
            else:
                made, inside = make(**given), None
        except BaseException:
            if meeting is not None:
                meeting.fails()
            raise
        try:
            if type(made[0]) is module.ProcessGroup:
                return (replaced(module, made[0], group_class, given["global_ranks_in_group"], inside),) + made[1:]
            if isinstance(made[0], module.ProcessGroup) and not isinstance(made[0], group_class):
                native.except_(KIND, "a process group of class %s is not recorded" % type(made[0]).__name__)
        except Exception as error:
            recorder.fail(error)
        return made

    _new_process_group_helper._taskd = True
    module._new_process_group_helper = _hooks.in_place_of(make, _new_process_group_helper)
    native.hooked(KIND)


def meeting_of(given: Any, engine: Engine | None) -> Any:
    """Returns the rendezvous of the members of a new group; None if this process is not a member, or makes the group
    alone."""
    ranks, rank = given["global_ranks_in_group"], given["group_rank"]
    is_member = rank is not None and (not ranks or dist.get_rank() in ranks)
    if not is_member or engine is not None and engine.is_replacement():
        return None
    return Meeting(given["store"], given["group_name"], rank, given["group_size"])


def replaced(module: Any, inner: Any, group_class: Any, ranks: Sequence[int], inside: Any = None) -> Any:
    """Returns a wrapper of `inner`, which it replaces in all of torch's tables. Empty `ranks` means all ranks. `inside`
    is the abortable group that stands in for `inner`, if there is one."""
    world = module._world
    name = world.pg_names[inner]
    inside = inside or inner
    group = group_class(inside, with_members(name, list(ranks or range(inside.size()))))
    if inside is not inner:
        inside.engine.groups.add(group)
    if hasattr(module, "_register_process_group"):
        module._unregister_process_group(name)
        module._register_process_group(name, group)
    for table in (world.pg_map, world.pg_names, world.pg_backend_config, world.pg_to_tag):
        if inner in table:
            table[group] = table.pop(inner)
    for groups in world.tags_to_pg.values():
        groups[:] = [group if other is inner else other for other in groups]
    return group


def class_of(torch_class: Any, recorder: Any, engine: Engine | None = None) -> Any:
    """Returns the class of the wrappers, for the ProcessGroup of the installed torch."""

    class Same(type(torch_class)):
        """torch checks `type(group) == ProcessGroup` in places. For a wrapper the result is true."""

        def __eq__(cls, other):
            return cls is other or other is torch_class

        def __hash__(cls):
            return hash(torch_class)

    class ProcessGroup(torch_class, metaclass=Same):
        def __init__(self, inner, name):
            torch_class.__init__(self, inner.rank(), inner.size())
            self._inner = inner
            self._numbers = Numbers(recorder.native.name(name))
            if hasattr(recorder.native, "then"):
                recorder.native.then.append(lambda: setattr(self._numbers, "name", recorder.native.name(name)))
            share_backends(torch_class, self, inner)

        def getBackendName(self):  # C++ reads the name through this method
            return self._inner.name()

        def _share(self):  # registers the backends of a new inner group
            share_backends(torch_class, self, self._inner, again=True)

        def _count_anew(self, name, ranks):  # the inner group was replaced by one of these ranks
            self._numbers.renew(recorder.native.name(with_members(name, ranks)), ranks)

        def __getattr__(self, name):  # missing attributes raise the usual error
            return getattr(self.__dict__["_inner"], name)

        def __reduce_ex__(self, protocol):  # a group cannot be pickled: raises the usual error
            return self._inner.__reduce_ex__(protocol)

    ProcessGroup.__module__, ProcessGroup.__qualname__ = torch_class.__module__, torch_class.__qualname__
    for name, what in vars(torch_class).items():
        if name in CALLS:
            setattr(ProcessGroup, name, recorded(name, recorder))
        elif name in MAKERS:
            setattr(ProcessGroup, name, making(name, torch_class, ProcessGroup, recorder, engine))
        elif isinstance(what, property):
            setattr(ProcessGroup, name, passed_on_property(name))
        elif not name.startswith("__") and name not in OWN and callable(what):
            setattr(ProcessGroup, name, passed_on(name))
    if engine is not None:  # this process may have another rank in a later inner group
        for name, asked_by_cpp in (("rank", "getRank"), ("size", "getSize")):
            setattr(ProcessGroup, name, passed_on(name))
            setattr(ProcessGroup, asked_by_cpp, passed_on(name))
    return ProcessGroup


def share_backends(torch_class: Any, group: Any, inner: Any, again: bool = False) -> None:
    """Registers in a wrapper what C++ looks up without Python: the parts of the inner group. A backend stays registered
    under its type for good; a later one is registered under another type."""
    if getattr(inner, "bound_device_id", None) is not None:  # before the backends, which receive it
        vars(torch_class)["bound_device_id"].__set__(group, inner.bound_device_id)
    types = torch_class.BackendType.__members__
    if again:
        types = {name: types["CUSTOM"] for name in types}
    names = set()
    for device in inner._device_types:
        backend = inner._get_backend(device)
        names.add(backend.name().upper())
        torch_class._register_backend(group, device, types.get(backend.name().upper(), types["CUSTOM"]), backend)
    group._numbers.is_on_host = names == {"GLOO"}
    default = inner.name().upper()
    if default not in types:  # an older torch, whose name lists all backends
        default = "NCCL" if "NCCL" in names else "GLOO"
    if hasattr(torch_class, "_set_default_backend"):
        torch_class._set_default_backend(group, types[default])
    if hasattr(torch_class, "_set_group_name"):
        torch_class._set_group_name(group, inner.group_name)
    if hasattr(torch_class, "_set_group_desc"):
        torch_class._set_group_desc(group, inner.group_desc)


def recorded(name: str, recorder: Any) -> Any:
    """Returns the method of this name, which records its call and passes it on."""
    call = CALLS[name]
    begin, end_with, passed_to = recorder.beginner(name, call), recorder.ender(call), attrgetter(name)
    keep = latest.append

    def method(self, *args, **kwargs):
        range_id = begin(self, args, kwargs)
        try:
            work = passed_to(self._inner)(*args, **kwargs)
        except BaseException:
            recorder.end(range_id)
            raise
        if self._numbers.is_on_host:
            keep((args, kwargs))
        if range_id:
            end_with(work, range_id, self, args, kwargs)
        return work

    method.__name__ = name
    return method


def record_natively(group_class: Any, recorder: Any) -> None:
    """Has native code record the operations of a class of groups, if there is native code. Sends and receives, which
    have counters of their own, are left to Python."""
    try:
        if recorder.prepare_native():
            for name, call in CALLS.items():
                if name in vars(group_class) and not call.between_two:
                    setattr(group_class, name, recorder.native_operation(name, call, vars(group_class)[name]))
    except Exception as error:
        recorder.fail(error)


def making(name: str, torch_class: Any, group_class: Any, recorder: Any, engine: Engine | None) -> Any:
    """Returns the method of this name, whose result is another group: the wrapper wraps that as well. How such a group
    could be rebuilt is unknown."""

    def method(self, *args, **kwargs):
        made = getattr(self._inner, name)(*args, **kwargs)
        try:
            if type(made) is torch_class and engine is not None and engine.is_rank_itself():
                why = (
                    "group %s was made from another one by %s, and cannot be given up inside of "
                    "the process; restart all ranks"
                )
                engine.groups.cannot_leave(why % (made.group_name, name))
            if type(made) is torch_class:
                return group_class(made, made.group_name)
        except Exception as error:
            recorder.fail(error)
        return made

    method.__name__ = name
    return method


def passed_on(name: str) -> Any:
    def method(self, *args, **kwargs):
        return getattr(self._inner, name)(*args, **kwargs)

    method.__name__ = name
    return method


def passed_on_property(name: str) -> Any:
    return property(
        lambda self: getattr(self._inner, name),
        lambda self, value: setattr(self._inner, name, value),
    )
