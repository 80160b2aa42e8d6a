"""Marks of a script that was written for torch_npu: `torch.npu.mstx.range_start(f"step {n}", stream)` and its like.

Their own function is called first, as ever, and what it returns is returned. Where it returns 0 for every range, as it does
while no profiler listens, the range that its thread has begun last is the one that ends.
"""

import sys
from _thread import get_ident

import taskd
from taskd import _hooks

OPEN_MAX = 256  # ranges without an end that are remembered; of more the oldest are forgotten


def look():
    """Puts the hook in place if there is a torch.npu.mstx by now."""
    npu = getattr(sys.modules.get("torch"), "__dict__", {}).get("npu")
    mstx = getattr(npu, "mstx", None)
    if mstx is not None and not hasattr(mstx.range_start, "_taskd"):
        install(mstx)


def install(mstx):
    """`mstx` is a class with static methods, or a module."""
    marks = Marks()
    for name, then in (("range_start", marks.start), ("range_end", marks.end), ("mark", marks.mark)):
        both = with_ours(getattr(mstx, name), marks, then)
        setattr(mstx, name, staticmethod(both) if isinstance(mstx, type) else both)


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
        _hooks.failed(taskd.native, _hooks.STEP, error)
