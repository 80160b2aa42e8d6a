"""Values of a device that are read without a wait for it: each is copied to host memory where the program has computed
it, and read at a later step, once the device has done the copy.

Values in host memory are read at once. Not tested on an accelerator.
"""

from __future__ import annotations

from collections import deque

import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Sequence

STEPS_MAX = 8  # whose values are not read yet; the oldest is dropped and counted


class LateReads:
    """`then(step, name, numbers)` is called with the numbers of each figure, in the order of the steps."""

    def __init__(self, then: Callable[[int, str, list[Any]], object]) -> None:
        self.then = then
        self.waiting: deque[tuple[list[Any], int, str, list[Any]]] = deque()
        self.dropped = 0

    def add(self, step: int, name: str, values: Sequence[torch.Tensor | float]) -> None:
        """Adds a figure: tensors with one element each, or numbers."""
        events, numbers = [], []
        for value in values:
            if not isinstance(value, torch.Tensor):
                numbers.append(value)
            elif value.device.type == "cpu":
                numbers.append(value.item())
            else:
                host = torch.empty((), dtype=value.dtype, pin_memory=True)
                host.copy_(value.detach().reshape(()), non_blocking=True)
                event = getattr(torch, value.device.type).Event()
                event.record()
                events.append(event)
                numbers.append(host)
        if not events and not self.waiting:
            self.then(step, name, numbers)
            return
        self.waiting.append((events, step, name, numbers))
        while self.waiting[-1][1] - self.waiting[0][1] >= STEPS_MAX:
            self.waiting.popleft()
            self.dropped += 1

    def look(self) -> None:
        """Passes on what the device has copied by now."""
        while self.waiting and all(event.query() for event in self.waiting[0][0]):
            _, step, name, numbers = self.waiting.popleft()
            self.then(step, name, [one.item() if isinstance(one, torch.Tensor) else one for one in numbers])
