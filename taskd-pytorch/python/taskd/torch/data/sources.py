"""The parts of a source of batches: its loaders, samplers and data sets, and which state of them changes.

A source may be a DataLoader, a loader of a framework around one, or an object of the program that iterates over one.
Its parts are found in its attributes, a few levels down. The module only reads, and sets only the values that
`Parts.set_plain` gets.
"""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PARTS_MAX, MEMBERS_MAX = 64, 16  # parts of one source; items of one list in it
PLAIN = (int, float, bool)


class Parts:
    """The current parts of one source."""

    def __init__(self, source: Any) -> None:
        self.all, self.generators = [], []
        self.look(source)
        self.loaders = [one for one in self.all if issubclass(type(one), DataLoader)]
        self.own = [one for one in self.all if is_programs(one) or counts_epochs(one)]

    def look(self, source: Any) -> None:
        waiting = [source]
        while waiting and len(self.all) < PARTS_MAX:
            part = waiting.pop(0)
            if isinstance(part, torch.Generator):
                if not any(part is known for known in self.generators):
                    self.generators.append(part)
            elif not any(part is known for known in self.all):
                self.all.append(part)
                waiting += [one for value in values_of(part) for one in members(value) if is_part(one)]

    def plain(self) -> Any:
        """Returns the numbers in attributes of objects of the program or a framework; the epoch of a torch sampler."""
        return [numbers_of(part) for part in self.own]

    def changed(self, first: Any) -> Any:
        """Returns the numbers that differ from the first ones, by part and name; None if there are none."""
        found = {}
        for at, (now, then) in enumerate(zip(self.plain(), first)):
            others = {name: value for name, value in now.items() if name not in then or then[name] != value}
            if others:
                found[at] = others
        return found or None

    def set_plain(self, values: Any) -> None:
        for at, others in (values or {}).items():
            here = vars(self.own[at]) if at < len(self.own) else {}
            here.update((name, value) for name, value in others.items() if type(here.get(name)) in PLAIN)


def values_of(part: Any) -> list[Any]:
    """Returns the values of the attributes of a part, including those that a loader takes from another object."""
    found = list(getattr(part, "__dict__", {}).values())
    for name in ("sampler", "batch_sampler", "dataset", "generator"):
        try:
            found.append(getattr(part, name, None))
        except Exception:
            pass  # a property of the program may raise
    return found


def members(value: Any) -> Any:
    return value[:MEMBERS_MAX] if type(value) in (list, tuple) else (value,)


def is_part(value: Any) -> bool:
    if isinstance(value, (torch.Generator, DataLoader, Sampler, Dataset)):
        return True
    if isinstance(value, (torch.Tensor, torch.nn.Module, type)):
        return False
    return hasattr(type(value), "__iter__") and hasattr(value, "__dict__")


def numbers_of(part: Any) -> Any:
    if not is_programs(part):
        return {"epoch": part.epoch}
    return {name: value for name, value in vars(part).items() if type(value) in PLAIN}


def counts_epochs(part: Any) -> bool:
    """Returns true if the program, or `_batches`, sets the epoch of the part, and the part keeps that as a number."""
    has_set_epoch = hasattr(type(part), "set_epoch") and not isinstance(part, Dataset)
    return has_set_epoch and type(getattr(part, "__dict__", {}).get("epoch")) is int


def is_programs(part: Any) -> bool:
    """Returns true if the part is of no class of torch, whose numbers are set by calls, and is not a data set."""
    return (
        not type(part).__module__.startswith("torch.") and not isinstance(part, Dataset) and hasattr(part, "__dict__")
    )
