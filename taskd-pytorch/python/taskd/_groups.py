"""Process groups: every operation of every group of torch.distributed, whoever calls for it, Python or C++.

A group that torch makes (the default one, new_group, DeviceMesh, split_group) is put inside of one of ours, which takes
its place in torch's tables: a subclass of ProcessGroup, so that DDP's reducer and the functional collectives, which call
from C++, come through it as well. Each call goes on to the inner group as it came, and what that returns or raises goes
back as it is. Whatever else is asked of the group the inner one answers; C++ finds the same backends in both.

It never changes arguments, results or exceptions; what gloo works at it keeps for a moment longer (`_latest`). A group
that it cannot stand around stays as torch made it, and that is reported; after a failure of its own nothing is recorded
any more, and the calls go on.

What it does not see is what C++ calls for in ways that torch lets no Python class override. Of torch's own callers that
are the `out` variants of functional collectives, which compiled code may use.
"""

from operator import attrgetter

import torch.distributed as dist

from taskd import _begin_alone, _hooks, _session
from taskd._group_calls import CALLS
from taskd._group_names import with_members
from taskd._group_recorder import Numbers, Recorder
from taskd._kinds import COMMUNICATION as KIND
from taskd._latest import latest
from taskd._meeting import Meeting

# What the group in front answers itself, beside the calls; all else that Python asks of it goes to the one inside.
OWN = {"BackendType", "Options", "rank", "size", "boxed", "unbox", "_id", "_pybind11_conduit_v1_"}
NAMES = "group_size", "group_rank", "global_ranks_in_group", "backend", "store", "group_name"  # of what makes one, in their order
MAKERS = {"split_group", "merge_remote_group"}  # methods that return another group


def install(module, native):
    """`module` is torch.distributed.distributed_c10d. Only the first time."""
    make = module._new_process_group_helper
    if hasattr(make, "_taskd"):
        return
    recorder = Recorder(module, native)
    engine = _session.current.engine if _session.current else None
    group_class = class_of(module.ProcessGroup, recorder, engine)
    if engine is not None:
        _begin_alone.install(module, engine)

    def _new_process_group_helper(*args, **kwargs):
        given = dict(zip(NAMES, args), **kwargs)
        meeting = meeting_of(given, engine)
        if meeting is not None:
            given["store"] = meeting.store
        try:
            if engine is not None and engine.is_rank_itself():
                made, inside = engine.groups.make(module, make, given, meeting)
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


def meeting_of(given, engine):
    """Where the members of a group that is to be made meet; None for one that this process is no member of, or makes alone."""
    ranks, rank = given["global_ranks_in_group"], given["group_rank"]
    is_member = rank is not None and (not ranks or dist.get_rank() in ranks)
    if not is_member or engine is not None and engine.is_newcomer():
        return None
    return Meeting(given["store"], given["group_name"], rank, given["group_size"])


def replaced(module, inner, group_class, ranks, inside=None):
    """A group of ours around `inner`, which it replaces in all of torch's tables. No ranks are all of them. What stands for
    the inner one where it can be given up is `inside`."""
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


def class_of(torch_class, recorder, engine=None):
    """The class of our groups, for the ProcessGroup of the torch that is there."""

    class Same(type(torch_class)):
        """torch asks in places whether `type(group) == ProcessGroup`. Of a group of ours it is told so."""

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

        def getBackendName(self):  # C++ asks for the name in this way
            return self._inner.name()

        def _share(self):  # the backends of another inner group
            share_backends(torch_class, self, self._inner, again=True)

        def _count_anew(self, name, ranks):  # the inner group is another one, of these ranks
            self._numbers.renew(recorder.native.name(with_members(name, ranks)), ranks)

        def __getattr__(self, name):  # of what there is not, which is told as ever
            return getattr(self.__dict__["_inner"], name)

        def __reduce_ex__(self, protocol):  # a group cannot be pickled, which is told as ever
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
    if engine is not None:  # a group inside that is another one later may have another place in it
        for name, asked_by_cpp in (("rank", "getRank"), ("size", "getSize")):
            setattr(ProcessGroup, name, passed_on(name))
            setattr(ProcessGroup, asked_by_cpp, passed_on(name))
    return ProcessGroup


def share_backends(torch_class, group, inner, again=False):
    """Gives a group what C++ looks for in it: what of the inner one it does not ask Python for. What is registered under a type
    stays there for good; what comes later is registered under another."""
    if getattr(inner, "bound_device_id", None) is not None:  # ahead of the backends, which are told
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
    if default not in types:  # an older torch, which names them all
        default = "NCCL" if "NCCL" in names else "GLOO"
    if hasattr(torch_class, "_set_default_backend"):
        torch_class._set_default_backend(group, types[default])
    if hasattr(torch_class, "_set_group_name"):
        torch_class._set_group_name(group, inner.group_name)
    if hasattr(torch_class, "_set_group_desc"):
        torch_class._set_group_desc(group, inner.group_desc)


def recorded(name, recorder):
    """The method of that name, which records its call and passes it on."""
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


def making(name, torch_class, group_class, recorder, engine):
    """The method of that name, whose result is another group: that gets one of ours around it as well. How such a group could be
    made anew is not known here."""

    def method(self, *args, **kwargs):
        made = getattr(self._inner, name)(*args, **kwargs)
        try:
            if type(made) is torch_class and engine is not None and engine.is_rank_itself():
                why = "group %s was made from another one by %s, and cannot be given up inside of the process; restart all ranks"
                engine.groups.cannot_leave(why % (made.group_name, name))
            if type(made) is torch_class:
                return group_class(made, made.group_name)
        except Exception as error:
            recorder.fail(error)
        return made

    method.__name__ = name
    return method


def passed_on(name):
    def method(self, *args, **kwargs):
        return getattr(self._inner, name)(*args, **kwargs)

    method.__name__ = name
    return method


def passed_on_property(name):
    return property(
        lambda self: getattr(self._inner, name),
        lambda self, value: setattr(self._inner, name, value),
    )
