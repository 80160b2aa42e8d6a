"""Backward passes of DDP that never came, or ended in their middle, since the step was given up: finished before it is done again.

Between a forward pass and its backward pass DDP's reducer listens to gradients. A forward pass that follows would make it begin
anew, but one inside of `no_sync` does not: then the first backward pass of the step that is done again would reduce gradients that
its peers keep to themselves. So programs that were seen to use `no_sync` get the pass that is missing.

When the program's own exception ends a backward pass in its middle, for want of memory for instance, the reducer waits for the rest,
and refuses the next forward pass. It gets all of it then.

The gradients of these passes are zero, and their operations are answered here.

It touches no other program, and puts back nothing that the pass changes: that does the note of the step.
"""

import torch

from taskd._session import Refused


class Unfinished:
    def __init__(self):
        self.accumulates = False  # the program has been seen to leave gradients unreduced
        self.outputs = {}  # of each DDP module: what its forward pass gave, until gradients come to it
        self.finishing = False

    def begins(self, model, tensors):
        """A forward pass has ended that may have a backward pass, with these tensors in what it gave."""
        if not model.require_backward_grad_sync:
            self.accumulates = True
        elif self.accumulates:
            self.outputs[model] = held = [one for one in tensors if one.requires_grad]

            def come(_):
                self.outputs.pop(model, None)

            for one in held:
                one.register_hook(come)

    def forget(self):
        self.outputs.clear()

    def finish(self, models):
        """Does the passes that are missing of these modules."""
        outputs = [one for held in self.outputs.values() for one in held]
        self.finishing = True
        try:
            for model in models:
                if not is_final(model.reducer):
                    used = [one.view_as(one) for one in model.parameters() if one.requires_grad]  # the reducer asks where these are from
                    model.reducer.prepare_for_backward(used)
                    pass_zeros(used)
            if outputs:
                pass_zeros(outputs)
        except Exception as error:
            raise Refused("a backward pass that was given up cannot be finished (%s); restart this rank" % error)
        finally:
            self.finishing = False
            self.forget()


def is_final(reducer):
    """Whether it waits for no gradients of a pass that has begun."""
    try:
        reducer._check_reducer_finalized()
    except RuntimeError:
        return False
    return True


def pass_zeros(tensors):
    torch.autograd.backward(tensors, [torch.zeros_like(one) for one in tensors])
