"""accelerate's own counters: the position of its Accelerators among the batches of a step, and whether gradients are to
be synchronized.

A program does not register them; without this module, a repeated step or a replacement would use other values.
"""

from __future__ import annotations

import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "accelerate"
made = []  # weak references to a program's Accelerators, in the order in which they were made


def install(module: Any) -> None:
    """`module` is accelerate.accelerator."""
    init = module.Accelerator.__init__

    def noted(self, *args, **kwargs):
        init(self, *args, **kwargs)
        made.append(weakref.ref(self))

    noted.__wrapped__, noted.__doc__ = init, init.__doc__
    module.Accelerator.__init__ = noted


def state() -> Any:
    """Returns the counters that a loop keeps; None if there are no Accelerators."""
    return Counters() if any(one() is not None for one in made) else None


class Counters:
    def all(self) -> Any:
        return [one for one in (one() for one in made) if one is not None]

    def state_dict(self) -> Any:
        return {
            "steps": [one.step for one in self.all()],
            "sync_gradients": [bool(one.sync_gradients) for one in self.all()],
        }

    def load_state_dict(self, state: Any) -> None:
        for one, step, sync in zip(self.all(), state["steps"], state["sync_gradients"]):
            one.step, one.gradient_state.sync_gradients = step, sync
