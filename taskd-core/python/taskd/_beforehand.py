"""A newcomer whose predecessor was lost in the commit window of a step does that step by itself as soon as it is there: the others
have completed it in all likelihood, and what only this rank has (its random numbers, its place in the data) then has to come to
where theirs are. They are still leaving their groups meanwhile, and nobody has to wait for it later.

It never decides what the step is: the supervisor does, later, and where it names another one all of this is taken back.
"""

from taskd import _keep, _link

SECONDS_MAX = 1  # that a step has taken when its window opens: of a longer one nothing is done beforehand


def begins(loop):
    """Whether there is such a step, which is the next one then. What the supervisor wants by now comes first."""
    session = loop.session
    if not loop.is_new or loop.noted is not None or loop.beforehand is not None or loop.keep is None:
        return False
    if session.came_in or not session.inbox.empty():
        return False
    step, process = loop.keep.opened() or (None, None)
    if step is None or lives(process) or loop.keep.read(step + 1, _keep.START) is not None:
        return False
    kept = loop.keep.read(step, _keep.START)
    if kept is None or loop.keep.read(step, _keep.FORWARD) is None:
        return False
    loop.beforehand = Beforehand(loop, step)
    loop.become(step, kept)
    loop.has_gone_forward()
    return True


def lives(process):
    try:
        with open("/proc/%d/stat" % process, "rb") as stat:
            return stat.read().rsplit(b") ", 1)[1][:1] not in b"ZX"
    except (OSError, IndexError):
        return False


class Beforehand:
    """The step."""

    def __init__(self, loop, step):
        self.loop, self.step, self.number = loop, step, loop.number
        self.is_under_way, self.is_done = True, False

    def ends(self):
        """Whether this is the step that ends now, and it was done."""
        was, self.is_under_way = self.is_under_way, False
        self.is_done = self.is_done or was and not self.loop.tainted
        return was and self.is_done

    def fails(self, error):
        """Whether this is the step that an exception comes from: it was nobody's wish."""
        if self.is_under_way:
            self.loop.tainted = True
            _link.say("step %d is not done beforehand: %s: %s" % (self.step, type(error).__name__, error))
        return self.is_under_way

    def holds_for(self, step):
        """All are to begin this step. Unless that is where the newcomer is, nothing was done beforehand."""
        loop = self.loop
        if self.is_done and step == self.step + 1 and loop.number == step and loop.keep.read(step, _keep.START) is None:
            return
        loop.engine.put_back(loop.note)  # where that is refused, this is asked again, and refused again
        loop.beforehand = loop.note = loop.noted = loop.own_buffers = loop.start_buffers = None
        loop.number, loop.tainted = self.number, False
