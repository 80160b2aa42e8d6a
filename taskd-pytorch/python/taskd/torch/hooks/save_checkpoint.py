"""Checkpoints: `torch.save`, and `save` and `async_save` of torch.distributed.checkpoint.

An asynchronous save has two ranges: the time that the training loop waits, and the writing, on a thread of torch.
"""

from __future__ import annotations

from taskd import _hooks
from taskd._kinds import SAVE_CHECKPOINT as KIND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def install(module: Any, native: Any) -> None:
    """Hooks `module`, torch.serialization or torch.distributed.checkpoint.state_dict_saver, from which others import
    them."""
    hook = _hooks.of(native, KIND)
    package = module.__name__.rpartition(".")[0]
    for name in ("save", "async_save", "save_state_dict"):
        function = getattr(module, name, None)
        if function is not None:
            setattr(module, name, _hooks.outermost(hook, "%s.%s" % (package, name), function))
