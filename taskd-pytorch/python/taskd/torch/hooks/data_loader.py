"""DataLoader: time that the training loop waits for its next batch."""

from __future__ import annotations

from taskd import _hooks
from taskd._kinds import DATA_LOADER as KIND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def install(module: Any, native: Any) -> None:
    """Hooks `module`, torch.utils.data.dataloader. All its iterators inherit `__next__` from one class."""
    iterator = module._BaseDataLoaderIter
    iterator.__next__ = _hooks.outermost(_hooks.of(native, KIND), "dataloader", iterator.__next__)
