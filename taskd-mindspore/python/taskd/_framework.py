"""What the package has to know of MindSpore: which modules are hooked.

The forward pass is not: in MindSpore it is one function with the backward pass, and mostly one compiled graph.
"""

from taskd import _kinds

HOOKS = (
    ("mindspore.profiler.mstx", "_mstx", _kinds.DATA_LOADER),
    ("mindspore.ops.operations.comm_ops", "_collectives", _kinds.COMMUNICATION),
    ("mindspore.common.tensor", "_waits", _kinds.COMMUNICATION),
)


def install(after_import, native):
    """Called once, in the rank, before the hooks."""
