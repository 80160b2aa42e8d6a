"""The group inside of ours where a supervisor is there: one that can be given up, and be another one afterwards.

Outside of the step loop, and while torch traces, it passes everything on. Inside, whoever waits does so for *done or given up*:

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

from taskd import _alone, _begin_alone, _tape
from taskd._aborted import StepAborted
from taskd._group_calls import CALLS, amount
from taskd._tracing import is_tracing

SLICE = timedelta(milliseconds=20)  # of a wait; how late a give-up is seen where shutting the connections down did not end it
NO_LIMIT = timedelta(0)
in_graph_task = getattr(torch._C, "_current_graph_task_id", lambda: -1)
# Where C++ calls for a collective: inside of backward, and for DDP's copy of buffers and when it tells of its order, before forward.
BACKWARD, BUFFERS, ORDER = "backward", "buffers", "order"
CALLERS = {"_engine_run_backward": BACKWARD, "backward": BACKWARD, "grad": BACKWARD}
CALLERS.update({"_distributed_broadcast_coalesced": BUFFERS, "_pre_forward": ORDER})


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
        """Ends every wait inside of it, from any thread; how many connections there were."""
        return sum(self.kind.release(backend, ends) for backend, ends in zip(self.spec.backends(self.real), self.ends))

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
    """From where in C++ a method that one of `_groups` calls is called; None where it is Python that calls for it."""
    try:
        code = sys._getframe(3).f_code
    except ValueError:
        return BACKWARD if in_graph_task() != -1 else None  # a thread of the engine's own
    place = CALLERS.get(code.co_name)
    if place is None or "torch" not in code.co_filename or place == BACKWARD and in_graph_task() == -1:
        return None
    return place


def calling(name):
    """The method of that name."""
    real, call = attrgetter(name), CALLS[name]

    def method(self, *args, **kwargs):
        if is_tracing():
            return real(self.real)(*args, **kwargs)
        engine = self.engine
        place = caller() if engine.loop is not None and engine.loop.in_step else None
        if engine.loop is not None and is_of_main(engine, place):
            engine.kinds.calls_for(name, self.spec.members_told, amount(call, args)[1])
        if engine.copier.replays is not None and engine.is_main():
            engine.copier.replays.answer(name, args)
            return _alone.completed(args)
        if place == ORDER and told_of_order(engine, args[0]):
            return _alone.completed(args)
        if engine.alone:
            if place == BACKWARD:
                engine.issued(args)
            work = _alone.answer(self, name, args, kwargs)
            if engine.copier.tape is not None and place is None:
                engine.copier.tape.add(name, args)
            return work
        if engine.loop is None or not engine.loop.in_step:
            return real(self.real)(*args, **kwargs)
        if engine.loop.after is False and is_of_main(engine, place):  # others may be in that step, and take it for one of theirs
            return _alone.completed(args)
        in_backward = place == BACKWARD
        engine.issued(args if in_backward else None)
        if self.is_lost():
            return refused(self, args, place)
        try:
            work = real(self.real)(*args, **kwargs)
        except RuntimeError as error:
            if not self.is_lost() and not is_ours(error, name):
                raise
            self.fail(name, str(error), in_backward)
            return refused(self, args, place)
        if work is None:
            return None
        engine.under_way.add(work)
        if in_backward:
            return engine.completer.follow(self, name, work, args)
        work = Work(self, name, work, place, args)
        if engine.copier.tape is not None and place is None and engine.is_main():
            work._noted = engine.copier.tape.add(name, args)
        return work

    method.__name__ = name
    return method


def is_ours(error, name):
    """Whether an exception from the call itself is a failure of the group, rather than of the program's arguments."""
    return name == "monitored_barrier" or "gloo/transport" in str(error) or type(error).__name__.startswith("Dist")


def told_of_order(engine, tensors):
    """Whether what DDP's reducer is to hear from rank 0 was told before, in a step that is done again; it is in the tensors then."""
    is_known = engine.reducers.answers(tensors)
    engine.reducers.hears(tensors)
    return is_known


def is_of_main(engine, place):
    """Whether the main thread calls, whose steps these are: a thread of the program's own is behind no `with`. torch's backward passes
    have threads of their own."""
    return place == BACKWARD or engine.is_main()


def is_quiet(engine, place):
    """Whether nothing is raised of a failure, as nothing would catch it: where C++ calls without a `with`, and behind the `with`."""
    loop = engine.loop
    if loop is None:  # who waits for it has left the loop
        return False
    return loop.after is not None and is_of_main(engine, place) or place in (BUFFERS, ORDER) and not loop.guarded


def refused(group, args, place):
    """The answer to a call in a group that is given up."""
    if place == BACKWARD or is_quiet(group.engine, place):
        group.engine.fails_quietly()
        return _alone.completed(args)
    raise aborted(group.engine)


for name in CALLS:
    setattr(Recoverable, name, calling(name))


class Work(c10d.Work):
    """An operation that the program waits for, or C++ does outside of backward."""

    def __init__(self, group, op, work, place, args):
        c10d.Work.__init__(self)
        self._group, self._op, self._work, self._place, self._args = group, op, work, place, args
        self._future = self._noted = None

    def wait(self, timeout=NO_LIMIT):
        done = self.wait_for(timeout)
        if self._noted is not None:
            _tape.ends(self._noted)
        return done

    def wait_for(self, timeout):
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
                completed = work.is_completed()  # looked at once: it may be so a moment later, and the error only be the slice's end
                if sliced and completed and not told:
                    told = True
                    continue
                if completed or not sliced:
                    if group.engine.loop is None:
                        raise
                    group.fail(self._op, str(error))
                    return self.give_up()
                if group.is_lost():
                    return self.give_up()
                if limit is not None and time.monotonic() > limit:
                    raise

    def give_up(self):
        engine = self._group.engine
        if not is_quiet(engine, self._place):
            raise aborted(engine)
        engine.fails_quietly()
        if self._place == ORDER:
            engine.reducers.hears_nothing(self._args[0])
        return True

    def get_future(self):
        if CALLS[self._op].between_two:
            return self._work.get_future()
        if self._future is None:  # each one is followed, and some ask again and again
            self._future = self._group.engine.completer.future(self._group, self._op, self._work, self._args)
        return self._future

    def synchronize(self):
        self.wait()

    def is_completed(self):
        return self._work.is_completed()

    def __getattr__(self, name):  # never reached for what the base class has
        return getattr(self.__dict__["_work"], name)


for name in ("is_success", "exception", "source_rank", "_source_rank", "result"):
    if hasattr(c10d.Work, name):
        setattr(Work, name, (lambda name: lambda self, *args: getattr(self._work, name)(*args))(name))
