"""A process that is to take another's place, until it is parked: it does steps of the program's own with answers of its own,
until DDP has the buckets that it will keep and optimizers have their state. Then all is as it was before.

Without this its first step would be of other buckets than the peers', and slow: torch imports half of itself then.
"""

import torch

from taskd import _random, _state, _values

WARM_MIN, WARM_MAX = 2, 8  # steps: DDP has its buckets from the second on, of a static graph from the third


class Warm:
    def __init__(self, engine, loop):
        self.engine, self.loop = engine, loop
        self.steps = 0
        self.buckets = None
        self.is_settled = False
        self.random = _random.state()
        self.notes = []  # (what, its state before)
        for what in engine.state_.named.values():
            self.note(what)

    def note(self, what):
        """Keeps what something was before it is used."""
        leaves, inner = {}, _state.inner_of(what)
        _state.leaves_of("", what, leaves)
        rest = _state.rest_of(what) if _state.is_optimizer(inner) else _values.Copy(inner)
        self.notes.append((what, {path: leaf.clone() for path, leaf in leaves.items()}, rest))

    def goes_on(self):
        return not self.is_settled and self.steps < WARM_MAX

    def ended(self):
        """A step was done."""
        self.steps += 1
        buckets, self.buckets = self.buckets, list(self.engine.buckets)
        self.is_settled = self.steps >= WARM_MIN and buckets == self.buckets and self.engine.reducers.are_made()

    def end(self):
        """All is as it was before, but for what is only there once a step was done."""
        engine = self.engine
        engine.digest(self.loop)  # a process's first checksum takes 10 ms, which the others would wait for
        engine.warm = None
        engine.buckets_before, engine.buckets = self.buckets or [], []
        engine.spare = {}
        with torch.no_grad():
            for what, before, rest in self.notes:
                self.restore(what, before, rest)
        engine.noter.copies.clear()
        self.loop.streams.rewind()
        _random.restore(self.random)

    def restore(self, what, before, rest):
        inner = _state.inner_of(what)
        if isinstance(inner, torch.optim.Optimizer):  # its tensors are kept for the state that is copied into them
            self.engine.spare.update((parameter, dict(state)) for parameter, state in inner.state.items())
            for parameter in [one for group in inner.param_groups for one in group["params"]]:
                parameter.grad = None
        leaves = {}
        _state.leaves_of("", what, leaves)
        for path, leaf in leaves.items():
            if path in before:
                leaf.copy_(before[path])
        if isinstance(rest, _values.Copy):
            rest.put_back()
        else:
            _state.take_rest_of(what, rest, {})
