"""PyTorch's implementation of `taskd._framework.Framework`: the modules that are hooked, the code that the compiler
skips, and the modules whose marks count as the program's.
"""

from __future__ import annotations

import sys

from taskd import _hooks, _kinds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from taskd._session import Session

NAME = "pytorch"
HOOKS = (
    ("torch.nn.modules.module", "taskd.torch.hooks.forward", _kinds.FORWARD),
    ("torch.optim.optimizer", "taskd.torch.hooks.optimizer", _kinds.STEP),
    ("torch.utils.data.dataloader", "taskd.torch.hooks.data_loader", _kinds.DATA_LOADER),
    ("torch.serialization", "taskd.torch.hooks.save_checkpoint", _kinds.SAVE_CHECKPOINT),
    ("torch.distributed.checkpoint.state_dict_saver", "taskd.torch.hooks.save_checkpoint", _kinds.SAVE_CHECKPOINT),
    ("torch.distributed.distributed_c10d", "taskd.torch.process_group.wrapper", _kinds.COMMUNICATION),
)
# Modules with torch.compile's list of code that it skips, though not what that code calls: before and since 2.2.
COMPILERS = ("torch._dynamo.skipfiles", "torch._dynamo.trace_rules")
# the last is the name of sitecustomize.py after the program's start
OURS = ("taskd", "_taskd_framework", "_taskd_rank")
MSTX = ("torch_npu.npu.mstx", "torch_npu", "torch.npu")  # any of them may provide torch.npu.mstx


def inline(function: Callable[..., Any], replacement: Any) -> None:
    """Hides a hook's wrapper of a program's function from torch.compile, which compiles the same code as without it."""
    replacement._torchdynamo_inline = function  # for a call inside compiled code


_hooks.on_replaced.append(inline)
# modules of the compiler to which OURS was added: each addition makes it compile its patterns again, 4 ms of a start
hidden = set()


def install(after_import: Callable[[str, Callable[[Any], object]], None], native: Any) -> None:
    """Called once, in the rank, before the hooks."""
    from taskd.torch import numerical

    numerical.install(after_import, native)
    _hooks.at_first.append(lambda: look_for_mstx(native))
    for name in COMPILERS:
        after_import(name, hide_from_compiler)
    after_import("torch.distributed.rendezvous", dial_in_time)
    for name in MSTX:
        after_import(name, lambda module: look_for_mstx(native))


def dial_in_time(rendezvous: Any) -> None:
    from taskd.torch import store_connect

    store_connect.install(rendezvous)


def recover(after_import: Callable[[str, Callable[[Any], object]], None], session: Session) -> None:
    """Called once, in the rank, before the hooks, if there is a supervisor."""
    from taskd.torch import abort_points, accelerate, registry, unsupported

    registry.install(after_import)
    after_import("accelerate.accelerator", accelerate.install)
    for name in COMPILERS:
        after_import(name, hide_from_compiler)
    abort_points.install(after_import, session)
    unsupported.install(after_import, session)
    after_import("torch.distributed.distributed_c10d", lambda module: stand_around_groups(module, session))


def stand_around_groups(module: Any, session: Session) -> None:
    from taskd._native import native
    from taskd.torch.process_group import wrapper

    session.engine = engine(session)
    wrapper.install(module, native)


def engine(session: Session) -> Any:
    """Returns the engine of `taskd._session`."""
    from taskd.torch import engine as _engine

    return session.engine or _engine.Engine(session)


def load_checkpoint(state: Any, directory: str, newer_than: int | None) -> Any:
    """See `taskd.load_checkpoint`."""
    from taskd.torch import load_checkpoint as _load_checkpoint

    return _load_checkpoint.load(state, directory, newer_than)


def add_codec_types() -> None:
    """Registers torch's types with `taskd._codec`."""
    from taskd.torch import codec_types  # noqa: F401  (the import registers them)


def hide_from_compiler(rules: Any) -> None:
    if rules.__name__ in hidden:
        return
    hidden.add(rules.__name__)
    try:
        for name in OURS:
            rules.add(name)
    except Exception as error:  # compiled code is slower then, but correct
        from taskd import _link

        _link.say("torch.compile looks into taskd's functions: %s: %s" % (type(error).__name__, error))


def look_for_mstx(native: Any) -> None:
    """Wraps the functions of torch.npu.mstx if it has been imported."""
    npu = getattr(sys.modules.get("torch"), "__dict__", {}).get("npu")
    mstx = getattr(npu, "mstx", None)
    if mstx is not None:
        from taskd import _vendor_marks

        _vendor_marks.install(mstx, native)
