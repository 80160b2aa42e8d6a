"""MindSpore's implementation of the interface `taskd._framework.Framework`: the hooked modules.

The forward pass has no hook: in MindSpore it is one function with the backward pass, and usually one compiled graph.
"""

from __future__ import annotations

from taskd import _kinds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

NAME = "mindspore"
HOOKS = (
    ("mindspore.profiler.mstx", "taskd.mindspore.mstx", _kinds.DATA_LOADER),
    ("mindspore.ops.operations.comm_ops", "taskd.mindspore.collectives", _kinds.COMMUNICATION),
    ("mindspore.common.tensor", "taskd.mindspore.waits", _kinds.COMMUNICATION),
)


def install(after_import: Callable[[str, Callable[[Any], object]], None], native: Any) -> None:
    """Called once, in the rank, before the hooks."""
