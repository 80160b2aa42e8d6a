"""Forward passes of DDP whose backward pass never came, since the step was given up in between: finished before it is done again.

DDP's reducer listens to gradients from such a forward pass on until the backward pass has ended. A forward pass that follows
would make it begin anew, but one inside of `no_sync` does not: then the first backward pass of the step that is done again
would reduce gradients that its peers keep to themselves. So programs that were seen to use `no_sync` get the pass that is
missing, of gradients that are zero and with operations that are answered here.

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
        """A forward pass has ended, with these tensors in what it gave."""
        if not torch.is_grad_enabled():
            return
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

    def finish(self):
        """Does the passes that are missing."""
        outputs = [one for held in self.outputs.values() for one in held]
        if not outputs:
            return
        self.finishing = True
        try:
            torch.autograd.backward(outputs, [torch.zeros_like(one) for one in outputs])
        except Exception as error:
            raise Refused("a backward pass that was given up cannot be finished (%s); restart this rank" % error)
        finally:
            self.finishing = False
            self.forget()
