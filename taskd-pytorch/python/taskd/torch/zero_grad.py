"""Detection of the gradients that a step zeroes before its first backward pass, and of those into which it accumulates:
the latter are lost with a rank.
"""

from __future__ import annotations

from taskd._loop import TRAINING
from taskd.torch import state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import torch

    from taskd._loop import Loop

# All gradients are checked in the first steps, and then in one step of this period, which no program has.
LOOKS, LOOKED_AT_EVERY = 8, 61


class Zeroing:
    """The gradients that a step zeroes before its first backward pass, and those of an earlier step to which it adds.
    An optimizer is identified by its list of groups, which a wrapper shares with the wrapped one."""

    def __init__(self) -> None:
        self.zeroed, self.predicted = [], []  # groups zeroed by this step, and by the step before
        self.late = []  # groups that were zeroed after the first backward pass and before their own step
        self.begin()

    def begin(self) -> None:
        self.zeroed, self.stepped, self.held, self.has_pass = [], [], [], False

    def next_step(self) -> None:
        self.predicted = self.zeroed
        self.begin()

    def zeroes(self, groups: Any) -> None:
        if not self.has_pass:
            self.zeroed.append(groups)
        elif not has(self.stepped, groups) and not has(self.late, groups):
            self.late.append(groups)
        if self.held:
            ids = ids_of([groups])
            self.held = [one for one in self.held if id(one.parameter) not in ids]

    def begins_pass(self, loop: Loop) -> bool:
        """Called before a backward pass. Returns True if it adds to gradients of the step before, as far as this is
        known by then."""
        if self.has_pass:
            self.held = [one for one in self.held if one.parameter.grad is not None]
            return False
        self.has_pass, note = True, loop.snapshot.taken
        if note is None or loop.snapshot.step != loop.number:
            return False
        note.grads_are_wanted([one for one in self.predicted if not has(self.zeroed, one)])
        self.held = self.held_ahead(loop, note) if loop.attempt.kind is TRAINING else []
        return bool(self.held) and all(any(one.groups is groups for one in self.held) for groups, _ in note.optimizers)

    def held_ahead(self, loop: Loop, note: Any) -> Any:
        """Returns for each optimizer one gradient that is not zero before the step's first backward pass, and that this
        step has not zeroed. A check of a device's gradients makes the program wait, and a check of all takes long if
        all are zero: few steps do that. Other steps check one, which may be zero where others are not."""
        found = [(groups, one) for groups, one, noted in note.grads if noted is not None and one.grad is not None]
        if not found:
            return []
        is_due = loop.number - loop.program.first < LOOKS or loop.number % LOOKED_AT_EVERY == 0
        zeroed, looked, held = ids_of(self.zeroed), [], []
        for groups, parameter in found:
            if id(parameter) in zeroed or any(one.groups is groups for one in held):
                continue
            if not is_due and (has(looked, groups) or parameter.grad.device.type != "cpu"):
                continue
            looked.append(groups)
            if bool(state.local(parameter.grad).any()):
                held.append(Carried(groups, parameter))
        return held

    def ends_pass(self) -> bool:
        """Called after a backward pass. Returns True if it has added to gradients of the step before."""
        return any(one.is_changed() and not has(self.late, one.groups) for one in self.held)

    def steps(self, groups: Any) -> bool:
        """Called before an optimizer's step. Returns True if the step uses gradients of the step before."""
        self.stepped.append(groups)
        if not self.held:
            return False
        ids = ids_of([groups])
        return any(id(one.parameter) in ids and one.parameter.grad is not None for one in self.held)


class Carried:
    """A gradient at the start of a step."""

    def __init__(self, groups: Any, parameter: torch.Tensor) -> None:
        self.groups, self.parameter = groups, parameter
        self.grad, self.version = parameter.grad, parameter.grad._version

    def is_changed(self) -> bool:
        grad = self.parameter.grad
        return grad is not None and (grad is not self.grad or grad._version != self.version)


def has(them: Any, what: Any) -> bool:
    return any(one is what for one in them)


def ids_of(optimizers: Any) -> set[int]:
    return {id(one) for groups in optimizers for group in groups for one in group["params"]}
