"""Puts the hooks in place, each when the program has imported what it hooks. Nothing is imported that the program does not."""

import os
from importlib import import_module

from taskd import _hooks, _kinds, _native, _steps

HOOKS = (
    ("torch.nn.modules.module", "_forward", _kinds.FORWARD),
    ("torch.optim.optimizer", "_steps", _kinds.STEP),
    ("torch.utils.data.dataloader", "_loader", _kinds.DATA_LOADER),
    ("torch.serialization", "_save", _kinds.SAVE_CHECKPOINT),
    ("torch.distributed.checkpoint.state_dict_saver", "_save", _kinds.SAVE_CHECKPOINT),
    ("torch.distributed.distributed_c10d", "_groups", _kinds.COMMUNICATION),
)
# Where torch.compile is told whose functions it should not look into, but go on with what they call: before and since 2.2.
COMPILERS = ("torch._dynamo.skipfiles", "torch._dynamo.trace_rules")
MSTX = ("torch_npu.npu.mstx", "torch_npu", "torch.npu")  # any of which may be what brings torch.npu.mstx


def install(after_import, completed):
    """Called once, in the rank.

    `after_import(name, then)` calls `then(module)` when the program has imported it; what is appended to `completed` is
    called with the number of every training step that an optimizer has completed.
    """
    native = _native.native
    if isinstance(native, _native.Nothing):
        if native.reason:
            raise RuntimeError(native.reason)
        return
    _hooks.at_first.append(look_for_mstx)
    completed.append(_steps.Steps(native).completed)
    for name, hook, kind in HOOKS:
        if os.path.exists(os.path.join(os.path.dirname(__file__), hook + ".py")):
            after_import(name, installer(hook, kind, native))
    for name in COMPILERS:
        after_import(name, hide_from_compiler)
    for name in MSTX:
        after_import(name, lambda module: look_for_mstx())


def installer(hook, kind, native):
    def install(module):
        try:
            import_module("taskd." + hook).install(module, native)
        except Exception as error:
            _hooks.failed(native, kind, error)

    return install


def hide_from_compiler(rules):
    for name in ("taskd", "_taskd_rank"):  # what sitecustomize.py is called after the program's start
        rules.add(name)


def look_for_mstx():
    from taskd import _mstx

    try:
        _mstx.look()
    except Exception as error:
        _hooks.failed(_native.native, _kinds.STEP, error)
