"""Of what kind a step was: which collectives of which groups its main thread has called for, how often and with how much, and which
modules of DDP and FSDP were to reduce their gradients in it.

Equal checksums behind a step prove something of steps of its kind. A program that goes over to others (local SGD: `no_sync`, and
an average of the parameters now and then) parts its replicas there, between two checksums: so each new kind gets one of its own.

It computes no checksum, and compares no ranks. It does not see what is not asked of a group of torch's.
"""

import weakref

KINDS_MAX = 128  # of one loop
EXACT_MAX = 8  # of more calls or elements, only whether there are twice as many


class StepKinds:
    def __init__(self):
        self.seen = set()
        self.newest = None
        self.calls = {}  # of the step under way, and behind it: (times, elements) by (operation, members of the group)
        self.passes = set()  # (number of a module, whether it reduces gradients)
        self.models = weakref.WeakKeyDictionary()  # numbers, in the order of the first use, which is the same on all ranks
        self.began = None  # the newest step that has begun here, and that is looked at where it ends

    def calls_for(self, operation, group, elements):
        key = operation, group
        times, sum_ = self.calls.get(key, (0, 0))
        self.calls[key] = times + 1, sum_ + elements

    def passes_through(self, model, reduces):
        self.passes.add((self.models.setdefault(model, len(self.models)), bool(reduces)))

    def forget(self):
        """What was begun is done again."""
        self.calls, self.passes = {}, set()

    def is_new(self, step):
        """Whether the step ahead of this one was the first of its kind; False where it was not done here, or was looked at before. Numbers
        that are large differ where one is at least twice the other, so that a search along a line is not of a new kind at every step."""
        calls, passes, began = self.calls, self.passes, self.began
        self.forget()
        self.began = step
        if began != step - 1 or len(self.seen) > KINDS_MAX:
            return False
        self.newest = frozenset((key, size_of(times), elements.bit_length()) for key, (times, elements) in calls.items()), frozenset(passes)
        if self.newest in self.seen:
            return False
        self.seen.add(self.newest)
        return True

    def is_not_known(self):
        """That the newest kind was seen has reached nobody: it will be new once more."""
        self.seen.discard(self.newest)

    def take(self, seen):
        """Those that a rank has seen from which all is taken. What was done here to come there is no step of the program's."""
        self.seen, self.began = set(seen), None
        self.forget()

    def are_too_many(self):
        """Whether there was a step of a kind that is not known any more."""
        return len(self.seen) > KINDS_MAX


def size_of(times):
    return times if times <= EXACT_MAX else EXACT_MAX + times.bit_length()
