"""The group inside of ours where a supervisor is there: one that can be given up, and be another one afterwards.

Outside of the step loop it passes everything on. Inside, whoever waits does so for *done or given up*:

  * What Python called for, a wait included, raises `StepAborted`: the buffers hold garbage that would steer the program.
  * What C++ called for inside of backward (DDP's buckets) completes, and the step is marked as one that cannot be committed.
    An exception there would leave DDP's reducer in a state from which it does not come back.

The first failure shuts the group's connections down, so that the peers see it as well, one by one, without a supervisor.
It never makes a group; that does `_groups_anew`.
"""

import sys
import time
from _thread import get_ident
from datetime import timedelta
from operator import attrgetter

import torch
from torch._C import _distributed_c10d as c10d

from taskd import _alone, _begin_alone
from taskd._aborted import StepAborted
from taskd._group_calls import CALLS

SLICE = timedelta(milliseconds=20)  # of a wait; how late a give-up is seen where shutting the connections down did not end it
NO_LIMIT = timedelta(0)
in_graph_task = getattr(torch._C, "_current_graph_task_id", lambda: -1)
# From which functions of torch's C++ calls for a collective: backward itself, and DDP's copy of buffers before forward.
BACKWARD, BUFFERS = ("_engine_run_backward", "backward", "grad"), "_distributed_broadcast_coalesced"


class Recoverable:
    """In place of a group of torch's, which is `real`."""

    def __init__(self, engine, real, kind, ends, spec):
        self.engine = engine
        self.real, self.kind, self.ends, self.spec = real, kind, ends, spec
        self.client = None  # of the store of its generation, if that is ours
        self.has_failed = False
        self.in_use = True  # until it is destroyed

    def __getattr__(self, name):
        return getattr(self.__dict__["real"], name)

    def rank(self):
        if _begin_alone.runs_ahead() and not is_neutral(sys._getframe(2)):
            sys.modules["_taskd_ahead"].park("asks for its rank")
        return self.spec.rank

    def size(self):
        return len(self.spec.members)

    def is_lost(self):
        return self.has_failed or self.engine.session.given_up

    def fail(self, op, message, in_backward=False):
        """An operation has failed here. Nothing of this group can be relied on any more."""
        loop = self.engine.loop
        if loop is not None:
            loop.tainted = True
        if not self.is_lost():
            self.has_failed = True
            self.engine.session.failed("collective", op, self.spec.told_as, in_backward, message)
            self.release()

    def release(self):
        """Ends every wait inside of it, from any thread."""
        for backend, ends in zip(self.spec.backends(self.real), self.ends):
            self.kind.release(backend, ends)

    def shutdown(self, *args):
        self.in_use = False
        return self.real.shutdown(*args)

    def abort(self, *args):
        self.in_use = False
        return self.real.abort(*args)


def is_neutral(frame):
    """Whether it is torch that asks, or this package."""
    return frame.f_globals.get("__name__", "").split(".")[0] in ("torch", "taskd")


def aborted(engine):
    if engine.loop is not None:
        engine.loop.tainted = True
    return StepAborted("a collective operation of step %s was given up" % (engine.loop.number if engine.loop else "?"))


def caller():
    """`(called from C++ inside of backward, called from DDP's copy of buffers)`: for a method that one of `_groups` calls."""
    try:
        code = sys._getframe(3).f_code
    except ValueError:
        return in_graph_task() != -1, False  # a thread of the engine's own
    if code.co_name == BUFFERS:
        return False, True
    return code.co_name in BACKWARD and in_graph_task() != -1 and "torch" in code.co_filename, False


def calling(name):
    """The method of that name."""
    real = attrgetter(name)

    def method(self, *args, **kwargs):
        engine = self.engine
        if engine.alone:
            if engine.loop is not None and caller()[0]:
                engine.issued(args)
            return _alone.answer(self, name, args, kwargs)
        if engine.loop is None or not engine.loop.in_step:
            return real(self.real)(*args, **kwargs)
        in_backward, of_buffers = caller()
        engine.issued(args if in_backward else None)
        if self.is_lost():
            return refused(self, args, in_backward, of_buffers)
        try:
            work = real(self.real)(*args, **kwargs)
        except RuntimeError as error:
            if not self.is_lost() and not is_ours(error, name):
                raise
            self.fail(name, str(error), in_backward)
            return refused(self, args, in_backward, of_buffers)
        if work is None:
            return None
        if in_backward:
            return engine.completer.follow(self, name, work, args)
        return Work(self, name, work, of_buffers and not engine.loop.guarded, args)

    method.__name__ = name
    return method


def is_ours(error, name):
    """Whether an exception from the call itself is a failure of the group, rather than of the program's arguments."""
    return name == "monitored_barrier" or "gloo/transport" in str(error) or type(error).__name__.startswith("Dist")


def refused(group, args, in_backward, of_buffers):
    """The answer to a call in a group that is given up."""
    if in_backward or (of_buffers and not group.engine.loop.guarded):
        group.engine.loop.tainted = True
        return _alone.completed(args)
    raise aborted(group.engine)


for name in CALLS:
    setattr(Recoverable, name, calling(name))


class Work(c10d.Work):
    """An operation that the program waits for, or C++ does outside of backward."""

    def __init__(self, group, op, work, is_quiet, args):
        c10d.Work.__init__(self)
        self._group, self._op, self._work, self._is_quiet, self._args = group, op, work, is_quiet, args

    def wait(self, timeout=NO_LIMIT):
        group, work = self._group, self._work
        if get_ident() != group.engine.main_thread:
            return work.wait(timeout)
        limit = time.monotonic() + timeout.total_seconds() if timeout > NO_LIMIT else None
        told = False  # that it is completed
        sliced = group.kind.WAITS_IN_SLICES and not CALLS[self._op].between_two
        while True:
            try:
                if sliced and not work.is_completed():  # one that is told that its time is over may complete meanwhile
                    return work.wait(SLICE)
                return work.wait() if limit is None else work.wait(timeout)
            except RuntimeError as error:
                if sliced and work.is_completed() and not told:
                    told = True
                    continue
                if work.is_completed() or not sliced:
                    if group.engine.loop is None:
                        raise
                    group.fail(self._op, str(error))
                    return self.give_up()
                if group.is_lost():
                    return self.give_up()
                if limit is not None and time.monotonic() > limit:
                    raise

    def give_up(self):
        if self._is_quiet:
            self._group.engine.loop.tainted = True
            return True
        raise aborted(self._group.engine)

    def get_future(self):
        if CALLS[self._op].between_two:
            return self._work.get_future()
        return self._group.engine.completer.future(self._group, self._op, self._work, self._args)

    def synchronize(self):
        self.wait()

    def is_completed(self):
        return self._work.is_completed()

    def __getattr__(self, name):  # never reached for what the base class has
        return getattr(self.__dict__["_work"], name)


for name in ("is_success", "exception", "source_rank", "_source_rank", "result"):
    if hasattr(c10d.Work, name):
        setattr(Work, name, (lambda name: lambda self, *args: getattr(self._work, name)(*args))(name))
