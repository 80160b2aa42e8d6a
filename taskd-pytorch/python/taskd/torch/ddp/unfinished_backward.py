"""Backward passes of DDP that never ran, or ended in the middle, because the step was aborted: finished before the step
is retried.

Between a forward pass and its backward pass DDP's reducer listens to gradients. A following forward pass resets it, but
one inside of `no_sync` does not: then the first backward pass of the retried step would reduce gradients that its peers
keep to themselves. So programs that were seen to use `no_sync` get the missing pass.

When the program's own exception ends a backward pass in its middle, for example for lack of memory, the reducer waits
for the rest, and refuses the next forward pass. It then gets all gradients.

The gradients of these passes are zero, and their operations are answered locally.

Other programs are not touched. The snapshot of the step, not this module, restores what the pass changes.
"""

from __future__ import annotations

import torch

from taskd._session import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, Sequence


class UnfinishedBackward:
    def __init__(self) -> None:
        self.accumulates = False  # true once the program was seen to leave gradients unreduced
        self.outputs = {}  # DDP module: outputs of its forward pass, until gradients arrive
        self.finishing = False

    def begins(self, model: Any, tensors: Sequence[torch.Tensor]) -> None:
        """Registers the end of a forward pass that may have a backward pass, with these tensors in its output."""
        if not model.require_backward_grad_sync:
            self.accumulates = True
        elif self.accumulates:
            self.outputs[model] = held = [one for one in tensors if one.requires_grad]

            def come(_):
                self.outputs.pop(model, None)

            for one in held:
                one.register_hook(come)

    def forget(self) -> None:
        self.outputs.clear()

    def finish(self, models: Iterable[torch.nn.Module]) -> None:
        """Runs the missing passes of these modules."""
        outputs = [one for held in self.outputs.values() for one in held]
        self.finishing = True
        try:
            for model in models:
                if not is_final(model.reducer):
                    # the reducer reads from which operations these are
                    used = [one.view_as(one) for one in model.parameters() if one.requires_grad]
                    model.reducer.prepare_for_backward(used)  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
                    pass_zeros(used)
            if outputs:
                pass_zeros(outputs)
        except Exception as error:
            raise Refused("a backward pass that was given up cannot be finished (%s); restart this rank" % error)
        finally:
            self.finishing = False
            self.forget()


def is_final(reducer: Any) -> bool:
    """Returns true if the reducer waits for no gradients of a pass that has begun."""
    try:
        reducer._check_reducer_finalized()
    except RuntimeError:
        return False
    return True


def pass_zeros(tensors: Sequence[torch.Tensor]) -> None:
    torch.autograd.backward(tensors, [torch.zeros_like(one) for one in tensors])
