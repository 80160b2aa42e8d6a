"""Snapshot of the objects that a program registers besides modules, optimizers and gradient scalers (a counter, an
average, a tensor, the extra state of a module), taken when a step begins and restored when it is repeated: a program
may change them anywhere in the step.

An object that is too large for a copy at every step is only checked for changes, and never restored: if it has changed,
or a change cannot be detected, the step is not repeated.
"""

from __future__ import annotations

import functools
import pickle

import torch

from taskd import _link
from taskd._session import Refused
from taskd.torch import state as _state
from taskd.torch import state_dicts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable

COPIED_BYTES_MAX = 16 << 20  # of one object at every step: some milliseconds
COMPARED_BYTES_MAX = 1 << 20  # of a tensor of an object that is not copied; a larger one is identified by its address


def is_scaler(what: Any) -> bool:
    return hasattr(what, "_per_optimizer_states") and hasattr(what, "_growth_tracker")


def changes_in_window(what: Any) -> bool:
    """Returns True for a scheduler of torch, changed only by its step, which opens the commit window
    (`abort_points`)."""
    return getattr(getattr(type(what), "step", None), "opens_window", False)


class Others:
    """All of these objects."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self.plain = {}  # id: a module without extra state; a check of all its parts takes long
        self.large = {}  # id: (an object too large to be copied, how it is checked)

    def note(self) -> Any:
        return [self.noted(name, what) for name, what in self.state.named.items() if self.is_other(what)]

    def is_other(self, what: Any) -> bool:
        if isinstance(what, torch.nn.Module):
            if self.plain.get(id(what)) is not what and not state_dicts.gives(_state.inner_of(what)):
                self.plain[id(what)] = what
            return self.plain.get(id(what)) is not what
        return not (_state.is_optimizer(_state.inner_of(what)) or is_scaler(what) or changes_in_window(what))

    def noted(self, name: str, what: Any) -> Any:
        known, kind = self.large.get(id(what), (None, None))
        if known is what:
            return kind(name, what)
        if isinstance(what, torch.Tensor) and size_of([what]) <= COPIED_BYTES_MAX:
            return Tensor(what)
        try:
            given, tensors = parts_of(what)
            if size_of(tensors.values()) <= COPIED_BYTES_MAX:
                copy = state_dicts.Copy(_state.inner_of(what), (given, tensors))
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


def parts_of(what: Any) -> Any:
    return (None, {"": what}) if isinstance(what, torch.Tensor) else state_dicts.apart(_state.inner_of(what))


def kind_of(what: Any, given: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Returns how a change is detected: `Looked` if the large tensors are the object's own, not copies made by its
    `state_dict`, and the rest is small; otherwise `Unseen`."""
    large = {place: one for place, one in tensors.items() if size_of([one]) > COMPARED_BYTES_MAX}
    again = parts_of(what)[1]  # while the first ones exist: two tensors at one address are the same
    own = {place for place, one in large.items() if place in again and one.data_ptr() == again[place].data_ptr()}
    others = size_of(one for place, one in tensors.items() if place not in own)
    return functools.partial(Looked, own=own) if others + len(pickle.dumps(given, 4)) <= COPIED_BYTES_MAX else Unseen


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def size_of(tensors: Iterable[torch.Tensor]) -> int:
    return sum(one.numel() * one.element_size() for one in tensors)


class Tensor:
    """A tensor that the program has registered itself."""

    def __init__(self, what: Any) -> None:
        self.what, self.copy = what, what.detach().clone()

    def check(self) -> None:
        pass

    def put_back(self) -> None:
        with torch.no_grad():
            self.what.copy_(self.copy)


class Looked:
    """Addresses and versions of an object's tensors, and a copy of the rest of its state. A change through `.data` is
    not detected."""

    SO = "change it after optimizer.step() only; a step that has changed it before is not done again"

    def __init__(self, name: str, what: Any, own: Any) -> None:
        self.name, self.what, self.own = name, what, own
        self.marks = self.look()

    def look(self) -> Any:
        given, tensors = parts_of(self.what)
        own = [(place, one.data_ptr(), one._version) for place, one in tensors.items() if place in self.own]
        others = [(place, bytes_of(one)) for place, one in tensors.items() if place not in self.own]
        return pickle.dumps(given, 4), own, others

    def check(self) -> None:
        if self.look() != self.marks:
            why = (
                "%s was changed ahead of optimizer.step() and is too large to be copied at every "
                "step; restart all ranks"
            )
            raise Refused(why % self.name)

    def put_back(self) -> None:
        pass


class Unseen:
    """An object whose changes cannot be detected."""

    SO = "no step is done again, unless its state_dict gives the tensors themselves, not copies of them"

    def __init__(self, name: str, what: Any) -> None:
        self.name = name

    def check(self) -> Any:
        raise Refused(
            "it cannot be determined whether the step has changed %s, which is not copied at every "
            "step; restart all ranks" % self.name
        )

    def put_back(self) -> None:
        pass
