"""MindSpore's marks, and those that a program makes with its functions: data loader and checkpoints are marked by MindSpore
itself, on every device. A save has two ranges since 2.10, one within the other; times are taken of what any of them covers.
"""

from taskd import _marks
from taskd._kinds import DATA_LOADER, SAVE_CHECKPOINT


def install(module, native):
    """`module` is mindspore.profiler.mstx."""
    native.hooked(DATA_LOADER)
    native.hooked(SAVE_CHECKPOINT)
    _marks.install(module.Mstx, native)
