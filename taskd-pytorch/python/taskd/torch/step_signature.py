"""Kind of a step: the collectives that its main thread has called, by group, number and size, and the modules of DDP
and FSDP that were to reduce their gradients in it.

Equal checksums after a step prove something about steps of its kind. A program that changes to other steps (local SGD:
`no_sync`, and an average of the parameters from time to time) makes its replicas diverge between two checksums. So each
new kind has its own checksum.

This module computes no checksum, and compares no ranks. It does not see communication outside torch's process groups.
"""

from __future__ import annotations

import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import torch

KINDS_MAX = 128  # kinds of one loop
EXACT_MAX = 8  # larger numbers of calls or elements are different from a factor of two on


class StepSignatures:
    def __init__(self) -> None:
        self.seen = set()
        self.newest = None
        self.calls = {}  # of the step under way, and after it: (times, elements) by (operation, members of the group)
        self.passes = set()  # (number of a module, whether it reduces gradients)
        # numbers, in the order of the first use, which is the same on all ranks
        self.models = weakref.WeakKeyDictionary()
        self.began = None  # the newest step that has begun here, and that is checked at its end

    def calls_for(self, operation: Any, group: Any, elements: int) -> None:
        key = operation, group
        times, sum_ = self.calls.get(key, (0, 0))
        self.calls[key] = times + 1, sum_ + elements

    def passes_through(self, model: torch.nn.Module, reduces: Any) -> None:
        self.passes.add((self.models.setdefault(model, len(self.models)), bool(reduces)))

    def forget(self) -> None:
        """Called when the step that was begun is repeated."""
        self.calls, self.passes = {}, set()

    def is_new(self, step: int) -> bool:
        """Returns True if the step before this one was the first of its kind; False if it was not done here, or was
        checked before. Large numbers differ if one is at least twice the other, so that a line search is not of a new
        kind at every step."""
        calls, passes, began = self.calls, self.passes, self.began
        self.forget()
        self.began = step
        if began != step - 1 or len(self.seen) > KINDS_MAX:
            return False
        self.newest = (
            frozenset((key, size_of(times), elements.bit_length()) for key, (times, elements) in calls.items()),
            frozenset(passes),
        )
        if self.newest in self.seen:
            return False
        self.seen.add(self.newest)
        return True

    def is_not_known(self) -> None:
        """Makes the newest kind new again: its report was not received."""
        self.seen.discard(self.newest)

    def take(self, seen: Any) -> None:
        """Takes over the kinds of the rank from which all state is copied. Calls made here up to now are no step of the
        program's."""
        self.seen, self.began = set(seen), None
        self.forget()

    def are_too_many(self) -> bool:
        """Returns True if there was a step of a kind that is no longer recorded."""
        return len(self.seen) > KINDS_MAX


def size_of(times: Any) -> Any:
    return times if times <= EXACT_MAX else EXACT_MAX + times.bit_length()
