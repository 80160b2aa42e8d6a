"""Marks that a script makes with functions of a vendor's: `range_start(message, stream)`, `range_end(id)` and `mark(message)`.

Their own function is called first, as ever, and what it returns is returned. Where it returns 0 for every range, as some do
while no profiler listens, the range that its thread has begun last is the one that ends.
"""

from _thread import get_ident

import taskd
from taskd import _hooks
from taskd._kinds import STEP

OPEN_MAX = 256  # ranges without an end that are remembered; of more the oldest are forgotten


def install(theirs, native):
    """Stands around their functions, which are those of a module or the static methods of a class; only the first time."""
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
    """Which of our ranges belongs to which of theirs."""

    def __init__(self):
        self.begun = []  # (what they call it, what we do)
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
