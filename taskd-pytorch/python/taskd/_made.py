"""Which optimizers, schedulers, gradient scalers and DDP modules a program has made, in which order: the same on all ranks up to the step
loop. So one that is found late, at its first use, is known to a rank that has not used its own yet.

It only counts, and keeps none of them alive.
"""

import weakref

made = []  # weak references, in the order in which they were made
types = []  # beside each, its type's name
by_id = {}  # id: where it stands
before_loop = 0  # how many of them a loop has found there when it began


def install(after_import):
    after_import("torch.optim.optimizer", lambda module: note(module.Optimizer))
    after_import("torch.optim.lr_scheduler", note_schedulers)
    after_import("torch.amp.grad_scaler", lambda module: note(module.GradScaler))
    after_import("torch.nn.parallel.distributed", lambda module: note(module.DistributedDataParallel))


def note_schedulers(module):
    for one in list(vars(module).values()):
        if isinstance(one, type) and "step" in vars(one) and hasattr(one, "state_dict"):
            note(one)


def note(kind):
    """Where an object is made, and not where it is set up: that warns of what its caller does, and looks for its caller."""
    if kind.__new__ is not object.__new__:
        return  # it is derived from one that is noted, or nobody knows

    def noted(cls, *args, **kwargs):
        make = super(kind, cls).__new__  # of a class that the program has beside torch's, where that has one
        what = make(cls) if make is object.__new__ else make(cls, *args, **kwargs)
        if isinstance(what, kind):
            add(what)
        return what

    kind.__new__ = noted


def add(what):
    try:
        reference = weakref.ref(what)
        by_id[id(what)] = len(made)
        made.append(reference)
        types.append("%s.%s" % (type(what).__module__, type(what).__qualname__))
    except Exception:
        pass  # it is not known then, as one that was made before


def loop_begins():
    global before_loop
    before_loop = len(made)


def place_of(what):
    """Where it stands among all that were made before the loop; None where it was made later, or nobody knows."""
    at = by_id.get(id(what))
    return at if at is not None and made[at]() is what and at < before_loop else None


def at(place, others):
    """What stands there, if all that was made before the loop has the types that another rank has told; else None."""
    return made[place]() if types[:before_loop] == others and place < before_loop else None


def all_types():
    return types[:before_loop]
