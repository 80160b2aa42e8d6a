"""What a source of batches is made of: the loaders, samplers and data sets inside of it, and what of them changes.

A source may be a DataLoader, a loader of a framework's around one, or an object of the program's own that goes through one. What is
inside of it is found in its attributes, a few levels down. It only looks, and sets nothing but what `Parts.set_plain` is given.
"""

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

PARTS_MAX, MEMBERS_MAX = 64, 16  # of one source; of one list in it
PLAIN = (int, float, bool)


class Parts:
    """Of one source, as they are now."""

    def __init__(self, source):
        self.all, self.generators = [], []
        self.look(source)
        self.loaders = [one for one in self.all if issubclass(type(one), DataLoader)]
        self.own = [one for one in self.all if is_programs(one) or counts_epochs(one)]

    def look(self, source):
        waiting = [source]
        while waiting and len(self.all) < PARTS_MAX:
            part = waiting.pop(0)
            if isinstance(part, torch.Generator):
                if not any(part is known for known in self.generators):
                    self.generators.append(part)
            elif not any(part is known for known in self.all):
                self.all.append(part)
                waiting += [one for value in values_of(part) for one in members(value) if is_part(one)]

    def plain(self):
        """The numbers among the attributes of what is the program's own or a framework's; of a sampler of torch's which epoch it is."""
        return [numbers_of(part) for part in self.own]

    def changed(self, first):
        """Those that are others than they were at first, by part and name; None where there are none."""
        found = {}
        for at, (now, then) in enumerate(zip(self.plain(), first)):
            others = {name: value for name, value in now.items() if name not in then or then[name] != value}
            if others:
                found[at] = others
        return found or None

    def set_plain(self, values):
        for at, others in (values or {}).items():
            here = vars(self.own[at]) if at < len(self.own) else {}
            here.update((name, value) for name, value in others.items() if type(here.get(name)) in PLAIN)


def values_of(part):
    """What it has; and what a loader has by a name that it takes from elsewhere."""
    found = list(getattr(part, "__dict__", {}).values())
    for name in ("sampler", "batch_sampler", "dataset", "generator"):
        try:
            found.append(getattr(part, name, None))
        except Exception:
            pass  # a property of the program's own
    return found


def members(value):
    return value[:MEMBERS_MAX] if type(value) in (list, tuple) else (value,)


def is_part(value):
    if isinstance(value, (torch.Generator, DataLoader, Sampler, Dataset)):
        return True
    if isinstance(value, (torch.Tensor, torch.nn.Module, type)):
        return False
    return hasattr(type(value), "__iter__") and hasattr(value, "__dict__")


def numbers_of(part):
    if not is_programs(part):
        return {"epoch": part.epoch}
    return {name: value for name, value in vars(part).items() if type(value) in PLAIN}


def counts_epochs(part):
    """Whether it is told of its epoch, by the program or by `_batches`, and keeps that in a number."""
    is_told = hasattr(type(part), "set_epoch") and not isinstance(part, Dataset)
    return is_told and type(getattr(part, "__dict__", {}).get("epoch")) is int


def is_programs(part):
    """Whether it is no class of torch's, whose numbers are set by what is called, and no data set."""
    return not type(part).__module__.startswith("torch.") and not isinstance(part, Dataset) and hasattr(part, "__dict__")
