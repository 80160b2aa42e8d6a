"""Of what kind a step was: which collectives of which groups it has called for, about how often, and which DDP modules have reduced
their gradients in it.

Equal checksums behind a step prove something of steps of its kind. A program that goes over to others (local SGD: `no_sync`, and
an average of the parameters now and then) parts its replicas there, between two checksums: so each new kind gets one of its own.

It computes no checksum, and compares no ranks. It does not see what is not asked of a group of torch's.
"""

KINDS_MAX = 64  # of one loop


class StepKinds:
    def __init__(self):
        self.seen = set()
        self.calls = {}  # of the step under way, and behind it: times by (operation, group)
        self.passes = set()  # of DDP modules: (module, whether it reduces gradients)

    def calls_for(self, operation, group):
        key = operation, group
        self.calls[key] = self.calls.get(key, 0) + 1

    def passes_through(self, model):
        self.passes.add((id(model), model.require_backward_grad_sync))

    def forget(self):
        """What was begun is done again."""
        self.calls, self.passes = {}, set()

    def is_new(self):
        """Whether the step that has ended is the first of its kind. Numbers of calls differ where one is at least twice the other, so
        that a search along a line is not of a new kind at every step."""
        kind = frozenset((key, times.bit_length()) for key, times in self.calls.items()), frozenset(self.passes)
        self.forget()
        if kind in self.seen or len(self.seen) > KINDS_MAX:
            return False
        self.seen.add(kind)
        return True

    def are_too_many(self):
        """Whether there was a step of a kind that is not known any more."""
        return len(self.seen) > KINDS_MAX
