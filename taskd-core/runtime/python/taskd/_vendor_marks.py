"""Marks that a script makes with a vendor's functions: `range_start(message, stream)`, `range_end(id)` and
`mark(message)`.

The vendor's function is called first, and its result is returned. Some return 0 for every range while no profiler
listens: then `range_end` ends the range that its thread began last.
"""

from _thread import get_ident

import taskd
from taskd import _hooks
from taskd._kinds import STEP

OPEN_MAX = 256  # open ranges that are kept; beyond that, the oldest are dropped


def install(theirs, native):
    """Wraps the vendor's functions, which are a module's or the static methods of a class. Wraps them only once."""
    try:
        if not hasattr(theirs.range_start, "_taskd"):
            stand_around(theirs)
    except Exception as error:
        _hooks.failed(native, STEP, error)


def stand_around(theirs):
    marks = Marks()
    for name, then in (("range_start", marks.start), ("range_end", marks.end), ("mark", marks.mark)):
        both = with_ours(getattr(theirs, name), marks, then)
        setattr(theirs, name, staticmethod(both) if isinstance(theirs, type) else both)


def with_ours(function, marks, then):
    def both(*args, **kwargs):
        result = function(*args, **kwargs)
        if marks.working:
            try:
                then(result, *args, **kwargs)
            except Exception as error:
                marks.fail(error)
        return result

    both._taskd = True
    return _hooks.in_place_of(function, both)


class Marks:
    """The vendor's open ranges and the corresponding ranges of taskd."""

    def __init__(self):
        self.begun = []  # (the vendor's id, taskd's range)
        self.working = True

    def start(self, theirs, message, *_, **__):
        _hooks.first()
        ours = taskd.range_start(message)
        if ours:
            self.begun.append((theirs or -get_ident(), ours))
            del self.begun[:-OPEN_MAX]

    def end(self, _, range_id, *__, **___):
        wanted = range_id or -get_ident()
        for at in reversed(range(len(self.begun))):
            if self.begun[at][0] == wanted:
                taskd.range_end(self.begun.pop(at)[1])
                return

    def mark(self, _, message, *__, **___):
        taskd.mark(message)

    def fail(self, error):
        self.working = False
        _hooks.failed(taskd.native, STEP, error)
