"""The first steps of a standby, until it is parked: it runs the program's own steps with local answers, until DDP has
its final buckets and optimizers have their state. Then all state is restored.

Without it the first step would have other buckets than the peers', and be slow: torch imports half of itself then.
"""

from __future__ import annotations

import torch

from taskd.torch import rng, state_dicts
from taskd.torch import state as _state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from taskd._loop import Loop
    from taskd.torch.engine import Engine

WARM_MIN, WARM_MAX = 2, 8  # steps: DDP has its buckets from the second on, for a static graph from the third


class WarmUp:
    def __init__(self, engine: Engine, loop: Loop) -> None:
        self.engine, self.loop = engine, loop
        self.steps = 0
        self.buckets = None
        self.is_settled = False
        self.random = rng.state()
        self.notes = []  # (object, its state before)
        for what in engine.state_.named.values():
            self.note(what)

    def note(self, what: Any) -> None:
        """Keeps the state of an object before it is used."""
        leaves, inner = {}, _state.inner_of(what)
        _state.leaves_of("", what, leaves)
        rest = _state.rest_of(what) if _state.is_optimizer(inner) else state_dicts.Copy(inner)
        self.notes.append((what, {path: leaf.clone() for path, leaf in leaves.items()}, rest))

    def goes_on(self) -> bool:
        return not self.is_settled and self.steps < WARM_MAX

    def ended(self) -> None:
        """Counts a completed step."""
        self.steps += 1
        buckets, self.buckets = self.buckets, list(self.engine.buckets)
        self.is_settled = self.steps >= WARM_MIN and buckets == self.buckets and self.engine.reducers.are_made()

    def end(self) -> None:
        """Restores all state, except for what exists only after a step."""
        engine = self.engine
        engine.digest(self.loop)  # a process's first checksum takes 10 ms, for which the other ranks would wait
        engine.warm = None
        engine.buckets_before, engine.buckets = self.buckets or [], []
        engine.spare = {}
        with torch.no_grad():
            for what, before, rest in self.notes:
                self.restore(what, before, rest)
        engine.noter.copies.clear()
        self.loop.streams.rewind()
        rng.restore(self.random)

    def restore(self, what: Any, before: Any, rest: Any) -> None:
        inner = _state.inner_of(what)
        if isinstance(inner, torch.optim.Optimizer):  # its tensors are kept: state is copied into them later
            self.engine.spare.update((parameter, dict(state)) for parameter, state in inner.state.items())
            for parameter in [one for group in inner.param_groups for one in group["params"]]:
                parameter.grad = None
        leaves = {}
        _state.leaves_of("", what, leaves)
        for path, leaf in leaves.items():
            if path in before:
                leaf.copy_(before[path])
        if isinstance(rest, state_dicts.Copy):
            rest.put_back()
        else:
            _state.take_rest_of(what, rest, {})
