"""Replays the step in whose commit window this rank's predecessor was lost, as soon as the replacement has started. The
other ranks have most likely completed that step, and what only this rank has (random numbers, position in the data) has
to advance to where theirs are. The other ranks still abort their groups meanwhile, so no rank waits for it later.

It never decides what the step is: the supervisor does, later, and if it names another one all of this is undone.
"""

from taskd import _handoff, _link

SECONDS_MAX = 1  # that a step has taken when its window opens: a longer one is not replayed


def begins(loop):
    """Returns true if there is such a step, which is the next one then. Directives that are there by now come first."""
    session, replacement = loop.session, loop.recovery.replacement
    if replacement is None or loop.snapshot.step is not None or replacement.replay is not None or loop.keep is None:
        return False
    if session.came_in or not session.inbox.empty():
        return False
    step, process = loop.keep.opened() or (None, None)
    if step is None or lives(process) or loop.keep.read(step + 1, _handoff.START) is not None:
        return False
    kept = loop.keep.read(step, _handoff.START)
    if kept is None or loop.keep.read(step, _handoff.FORWARD) is None:
        return False
    replacement.replay = Replay(loop, step)
    loop.become(step, kept)
    loop.has_gone_forward()
    return True


def lives(process):
    try:
        with open("/proc/%d/stat" % process, "rb") as stat:
            return stat.read().rsplit(b") ", 1)[1][:1] not in b"ZX"
    except (OSError, IndexError):
        return False


class Replay:
    """The replay of one step, by the replacement `loop.recovery.replacement`."""

    def __init__(self, loop, step):
        self.loop, self.step, self.number = loop, step, loop.number
        self.is_under_way, self.is_done = True, False

    def ends(self):
        """Returns true if this is the step that ends now, and it was done."""
        was, self.is_under_way = self.is_under_way, False
        self.is_done = self.is_done or was and not self.loop.tainted
        return was and self.is_done

    def fails(self, error):
        """Returns true if this is the step that has raised the exception: no directive has asked for it."""
        if self.is_under_way:
            self.loop.tainted = True
            _link.say("step %d is not replayed: %s: %s" % (self.step, type(error).__name__, error))
        return self.is_under_way

    def holds_for(self, step):
        """All ranks are to begin this step. Unless that is where the replacement is, the replay is undone."""
        loop, replacement = self.loop, self.loop.recovery.replacement
        if (
            self.is_done
            and step == self.step + 1
            and loop.number == step
            and loop.keep.read(step, _handoff.START) is None
        ):
            return
        loop.engine.put_back(loop.snapshot.taken)  # where that is refused, this is asked again, and refused again
        replacement.replay = replacement.own_buffers = replacement.start_buffers = None
        loop.snapshot.forget()
        loop.number, loop.tainted = self.number, False
