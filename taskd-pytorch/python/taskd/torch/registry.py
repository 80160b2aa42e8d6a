"""Registry of the optimizers, schedulers, gradient scalers and DDP modules that a program has made, in order of
creation, which is the same on all ranks up to the step loop. By this order, an object that one rank finds late, at its
first use, is also known to a rank that has not used its own yet.

The registry only counts objects, and keeps none of them alive.
"""

from __future__ import annotations

import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

made = []  # weak references, in the order in which they were made
types = []  # the name of the type of each
by_id = {}  # id: index in `made`
before_loop = 0  # number of objects that existed when the loop began


def install(after_import: Callable[[str, Callable[[Any], object]], None]) -> None:
    after_import("torch.optim.optimizer", lambda module: note(module.Optimizer))
    after_import("torch.optim.lr_scheduler", note_schedulers)
    after_import("torch.amp.grad_scaler", lambda module: note(module.GradScaler))
    after_import("torch.nn.parallel.distributed", lambda module: note(module.DistributedDataParallel))


def note_schedulers(module: Any) -> None:
    for one in list(vars(module).values()):
        if isinstance(one, type) and "step" in vars(one) and hasattr(one, "state_dict"):
            note(one)


def note(kind: Any) -> None:
    """Records an object in `__new__`: a wrapper of `__init__`, which warns about its caller and looks for it, would be
    taken for the caller."""
    if kind.__new__ is not object.__new__:
        return  # a base class records it, or its own `__new__` is unknown

    def noted(cls, *args, **kwargs):
        make = super(kind, cls).__new__  # `__new__` of a further base class of the program's, if it has one
        what = make(cls) if make is object.__new__ else make(cls, *args, **kwargs)
        if isinstance(what, kind):
            add(what)
        return what

    kind.__new__ = noted


def add(what: Any) -> None:
    try:
        reference = weakref.ref(what)
        by_id[id(what)] = len(made)
        made.append(reference)
        types.append("%s.%s" % (type(what).__module__, type(what).__qualname__))
    except Exception:
        pass  # it stays unknown, like an object that was made before


def loop_begins() -> None:
    global before_loop
    before_loop = len(made)


def place_of(what: Any) -> Any:
    """Returns the index of an object among all made before the loop; None if it was made later, or is unknown."""
    at = by_id.get(id(what))
    return at if at is not None and made[at]() is what and at < before_loop else None


def at(place: Any, others: Any) -> Any:
    """Returns the object at an index, if all made before the loop have the types `others` of another rank, else
    None."""
    return made[place]() if types[:before_loop] == others and place < before_loop else None


def all_types() -> Any:
    return types[:before_loop]
