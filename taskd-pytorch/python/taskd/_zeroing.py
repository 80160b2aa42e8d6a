"""Which gradients a step zeroes ahead of its first backward pass, and which it goes on with: those a rank that is lost takes with it."""

from taskd import _state
from taskd._loop import TRAIN

LOOKS, LOOKED_AT_EVERY = 8, 61  # steps, the first and of the later ones, in which all gradients are looked at; no program has this period


class Zeroing:
    """Which gradients a step zeroes ahead of its first backward pass, and which of a step before it goes on with. Optimizers are known
    here by their lists of groups, which a wrapper has in common with what is in it."""

    def __init__(self):
        self.zeroed, self.predicted = [], []  # by this step, and by the step before
        self.late = []  # those that were seen to zero theirs behind the first backward pass and ahead of their own step
        self.begin()

    def begin(self):
        self.zeroed, self.stepped, self.held, self.has_pass = [], [], [], False

    def next_step(self):
        self.predicted = self.zeroed
        self.begin()

    def zeroes(self, groups):
        if not self.has_pass:
            self.zeroed.append(groups)
        elif not has(self.stepped, groups) and not has(self.late, groups):
            self.late.append(groups)
        if self.held:
            ids = ids_of([groups])
            self.held = [one for one in self.held if id(one.parameter) not in ids]

    def begins_pass(self, loop):
        """A backward pass begins; whether it goes on with gradients of the step before, as far as that is known ahead of it."""
        if self.has_pass:
            self.held = [one for one in self.held if one.parameter.grad is not None]
            return False
        self.has_pass, note = True, loop.note
        if note is None or loop.noted != loop.number:
            return False
        note.grads_are_wanted([one for one in self.predicted if not has(self.zeroed, one)])
        self.held = self.held_ahead(loop, note) if loop.kind == TRAIN else []
        return bool(self.held) and all(any(one.groups is groups for one in self.held) for groups, _ in note.optimizers)

    def held_ahead(self, loop, note):
        """For each optimizer one of its gradients that is not zero as the step's first backward pass begins, and is not zeroed in this
        step so far. To look at those of a device makes the program wait for it, and to look at all takes long where all are zero: that is
        done in few steps. One of them may be zero where others are not."""
        found = [(groups, one) for groups, one, noted in note.grads if noted is not None and one.grad is not None]
        if not found:
            return []
        is_due = loop.number - loop.first < LOOKS or loop.number % LOOKED_AT_EVERY == 0
        zeroed, looked, held = ids_of(self.zeroed), [], []
        for groups, parameter in found:
            if id(parameter) in zeroed or any(one.groups is groups for one in held):
                continue
            if not is_due and (has(looked, groups) or parameter.grad.device.type != "cpu"):
                continue
            looked.append(groups)
            if bool(_state.local(parameter.grad).any()):
                held.append(Carried(groups, parameter))
        return held

    def ends_pass(self):
        """A backward pass is over; whether it has gone on with gradients of the step before."""
        return any(one.is_changed() and not has(self.late, one.groups) for one in self.held)

    def steps(self, groups):
        """An optimizer's step begins; whether it takes gradients of the step before."""
        self.stepped.append(groups)
        if not self.held:
            return False
        ids = ids_of([groups])
        return any(id(one.parameter) in ids and one.parameter.grad is not None for one in self.held)


class Carried:
    """A gradient that a step begins with."""

    def __init__(self, groups, parameter):
        self.groups, self.parameter = groups, parameter
        self.grad, self.version = parameter.grad, parameter.grad._version

    def is_changed(self):
        grad = self.parameter.grad
        return grad is not None and (grad is not self.grad or grad._version != self.version)


def has(them, what):
    return any(one is what for one in them)


def ids_of(optimizers):
    return {id(one) for groups in optimizers for group in groups for one in group["params"]}
