"""What a program registers besides modules, optimizers and gradient scalers (a counter, an average, a tensor, the extra state of a
module), copied when a step begins and put back when it is done again: a program may change it anywhere in the step.

What has too much for a copy at every step is only looked at. It never puts back what it has no copy of: if that has changed, or
nobody can tell, the step is not done again.
"""

import functools
import pickle

import torch

from taskd import _link, _state, _values
from taskd._session import Refused

COPIED_BYTES_MAX = 16 << 20  # of one object at every step: some milliseconds
COMPARED_BYTES_MAX = 1 << 20  # of a tensor of an object that is not copied; a larger one is known by its address


def is_scaler(what):
    return hasattr(what, "_per_optimizer_states") and hasattr(what, "_growth_tracker")


def changes_in_window(what):
    """Whether it is a scheduler of torch's, whose step opens the commit window (`_guards`), and nothing else changes it."""
    return getattr(getattr(type(what), "step", None), "opens_window", False)


class Others:
    """All of them."""

    def __init__(self, state):
        self.state = state
        self.plain = {}  # id: a module without extra state; to look through all its parts takes long
        self.large = {}  # id: (what has too much to be copied, how it is looked at)

    def note(self):
        return [self.noted(name, what) for name, what in self.state.named.items() if self.is_other(what)]

    def is_other(self, what):
        if isinstance(what, torch.nn.Module):
            if self.plain.get(id(what)) is not what and not _values.gives(_state.inner_of(what)):
                self.plain[id(what)] = what
            return self.plain.get(id(what)) is not what
        return not (_state.is_optimizer(_state.inner_of(what)) or is_scaler(what) or changes_in_window(what))

    def noted(self, name, what):
        known, kind = self.large.get(id(what), (None, None))
        if known is what:
            return kind(name, what)
        if isinstance(what, torch.Tensor) and size_of([what]) <= COPIED_BYTES_MAX:
            return Tensor(what)
        try:
            given, tensors = parts_of(what)
            if size_of(tensors.values()) <= COPIED_BYTES_MAX:
                copy = _values.Copy(_state.inner_of(what), (given, tensors))
                if len(copy.given) <= COPIED_BYTES_MAX:
                    return copy
            kind = kind_of(what, given, tensors)
            why = "it has more than %d MiB" % (COPIED_BYTES_MAX >> 20)
        except Exception as error:
            kind, why = Unseen, "%s: %s" % (type(error).__name__, error)
        so = Unseen.SO if kind is Unseen else Looked.SO
        _link.say("%s is not copied when a step begins (%s): %s" % (name, why, so))
        self.large[id(what)] = what, kind
        return kind(name, what)


def parts_of(what):
    return (None, {"": what}) if isinstance(what, torch.Tensor) else _values.apart(_state.inner_of(what))


def kind_of(what, given, tensors):
    """How a change can be seen: the large tensors must be the object's own, not copies of them that it gives, and all else little."""
    large = {place: one for place, one in tensors.items() if size_of([one]) > COMPARED_BYTES_MAX}
    again = parts_of(what)[1]  # while the first are there: two of one address are one
    own = {place for place, one in large.items() if place in again and one.data_ptr() == again[place].data_ptr()}
    others = size_of(one for place, one in tensors.items() if place not in own)
    return functools.partial(Looked, own=own) if others + len(pickle.dumps(given, 4)) <= COPIED_BYTES_MAX else Unseen


def bytes_of(tensor):
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def size_of(tensors):
    return sum(one.numel() * one.element_size() for one in tensors)


class Tensor:
    """One that the program has registered itself."""

    def __init__(self, what):
        self.what, self.copy = what, what.detach().clone()

    def check(self):
        pass

    def put_back(self):
        with torch.no_grad():
            self.what.copy_(self.copy)


class Looked:
    """Where an object's tensors are and how often they were changed, and all else that it gives. A change through `.data` is not seen."""

    SO = "change it after optimizer.step() only; a step that has changed it before is not done again"

    def __init__(self, name, what, own):
        self.name, self.what, self.own = name, what, own
        self.marks = self.look()

    def look(self):
        given, tensors = parts_of(self.what)
        own = [(place, one.data_ptr(), one._version) for place, one in tensors.items() if place in self.own]
        others = [(place, bytes_of(one)) for place, one in tensors.items() if place not in self.own]
        return pickle.dumps(given, 4), own, others

    def check(self):
        if self.look() != self.marks:
            why = "%s was changed ahead of optimizer.step() and is too large to be copied at every step; restart all ranks"
            raise Refused(why % self.name)

    def put_back(self):
        pass


class Unseen:
    """Nobody can tell whether an object has changed."""

    SO = "no step is done again, unless its state_dict gives the tensors themselves, not copies of them"

    def __init__(self, name, what):
        self.name = name

    def check(self):
        raise Refused("nobody can tell whether the step has changed %s, which is not copied at every step; restart all ranks" % self.name)

    def put_back(self):
        pass
