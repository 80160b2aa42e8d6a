"""Optimizers: when an optimizer's step begins, backward is over, and some records end."""

from __future__ import annotations

from taskd import _step_recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def install(module: Any, native: Any) -> None:
    """Hooks `module`, torch.optim.optimizer."""

    def before_step(*_):
        for then in _step_recorder.at_begin:
            then()

    before_step._torchdynamo_disable = True  # torch.compile leaves it out of its graphs without a warning
    module.register_optimizer_step_pre_hook(before_step)
