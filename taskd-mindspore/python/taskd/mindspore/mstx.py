"""Records MindSpore's own marks, and those that a program makes with its functions. MindSpore marks data loader and
checkpoints itself, on every device. Since 2.10 a save has two nested ranges; its time is what either of them covers.
"""

from __future__ import annotations

from taskd import _vendor_marks
from taskd._kinds import DATA_LOADER, SAVE_CHECKPOINT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def install(module: Any, native: Any) -> None:
    """Wraps the functions. `module` is mindspore.profiler.mstx."""
    native.hooked(DATA_LOADER)
    native.hooked(SAVE_CHECKPOINT)
    _vendor_marks.install(module.Mstx, native)
