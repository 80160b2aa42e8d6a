"""What the package has to know of PyTorch: which modules are hooked, whom the compiler is to leave alone, and whose marks are
taken for the program's.
"""

import sys

from taskd import _hooks, _kinds

NAME = "pytorch"
HOOKS = (
    ("torch.nn.modules.module", "_forward", _kinds.FORWARD),
    ("torch.optim.optimizer", "_optimizers", _kinds.STEP),
    ("torch.utils.data.dataloader", "_loader", _kinds.DATA_LOADER),
    ("torch.serialization", "_save", _kinds.SAVE_CHECKPOINT),
    ("torch.distributed.checkpoint.state_dict_saver", "_save", _kinds.SAVE_CHECKPOINT),
    ("torch.distributed.distributed_c10d", "_groups", _kinds.COMMUNICATION),
)
# Where torch.compile is told whose functions it should not look into, but go on with what they call: before and since 2.2.
COMPILERS = ("torch._dynamo.skipfiles", "torch._dynamo.trace_rules")
OURS = ("taskd", "_taskd_framework", "_taskd_rank")  # the last is what sitecustomize.py is called after the program's start
MSTX = ("torch_npu.npu.mstx", "torch_npu", "torch.npu")  # any of which may be what brings torch.npu.mstx


def inline(function, replacement):
    """torch.compile does not see the functions that hooks put around the program's: it compiles as without."""
    replacement._torchdynamo_inline = function  # where it is called inside of what is compiled


_hooks.on_replaced.append(inline)
hidden = set()  # the compiler's rules that know us: each addition has it compile its patterns anew, 4 ms of a newcomer's time


def install(after_import, native):
    """Called once, in the rank, before the hooks."""
    _hooks.at_first.append(lambda: look_for_mstx(native))
    for name in COMPILERS:
        after_import(name, hide_from_compiler)
    after_import("torch.distributed.rendezvous", dial_in_time)
    for name in MSTX:
        after_import(name, lambda module: look_for_mstx(native))


def dial_in_time(rendezvous):
    from taskd import _dial

    _dial.install(rendezvous)


def recover(after_import, session):
    """Called once, in the rank, where there is a supervisor: before the hooks."""
    from taskd import _accelerate, _guards, _made, _unsupported

    _made.install(after_import)
    after_import("accelerate.accelerator", _accelerate.install)
    for name in COMPILERS:
        after_import(name, hide_from_compiler)
    _guards.install(after_import, session)
    _unsupported.install(after_import, session)
    after_import("torch.distributed.distributed_c10d", lambda module: stand_around_groups(module, session))


def stand_around_groups(module, session):
    from taskd import _groups
    from taskd._native import native

    session.engine = engine(session)
    _groups.install(module, native)


def engine(session):
    """What `taskd._session` calls an engine."""
    from taskd import _engine

    return session.engine or _engine.Engine(session)


def load_dump(state, directory, newer_than):
    """See `taskd.load_dump`."""
    from taskd import _load_dump

    return _load_dump.load(state, directory, newer_than)


def hide_from_compiler(rules):
    if rules.__name__ in hidden:
        return
    hidden.add(rules.__name__)
    try:
        for name in OURS:
            rules.add(name)
    except Exception as error:  # compiled code is slower then, and right
        from taskd import _link

        _link.say("torch.compile looks into taskd's functions: %s: %s" % (type(error).__name__, error))


def look_for_mstx(native):
    """Stands around torch.npu.mstx if there is one by now."""
    npu = getattr(sys.modules.get("torch"), "__dict__", {}).get("npu")
    mstx = getattr(npu, "mstx", None)
    if mstx is not None:
        from taskd import _marks

        _marks.install(mstx, native)
