"""A process group that can be aborted and replaced by the group of the next generation. With a supervisor it is inside
of the wrapper.

Outside of the step loop, and while torch traces, it passes all calls on. Inside, a wait ends when the operation is
*completed or aborted*:

  * An operation that Python calls, including a wait, raises `StepAborted`: the buffers hold garbage that would steer
    the program.
  * An operation that C++ calls inside of backward (DDP's buckets) completes, and the step is marked as one that cannot
    be committed. An exception there would leave DDP's reducer in a state from which it cannot recover.

The first failure shuts the group's connections down, so that the peers detect it as well, one by one, without a
supervisor. The module never makes a group; `rebuild` does.
"""

from __future__ import annotations

import sys
import time
from _thread import get_ident
from datetime import timedelta
from operator import attrgetter

import torch
from torch._C import _distributed_c10d as c10d

from taskd._aborted import StepAborted
from taskd.torch.data import epoch_collectives
from taskd.torch.process_group.operations import CALLS, amount
from taskd.torch.standby import init_process_group, local_collectives
from taskd.torch.tracing import is_tracing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Sequence

    from taskd.torch.engine import Engine

# Duration of one wait; also the delay of an abort if the shutdown of the connections did not end the wait.
SLICE = timedelta(milliseconds=20)
NO_LIMIT = timedelta(0)
WRAPPER = "taskd.torch.process_group.wrapper"  # imported by name only: it imports the engine
in_graph_task = getattr(torch._C, "_current_graph_task_id", lambda: -1)
# Places where C++ calls a collective: inside of backward; and before forward, for DDP's broadcasts of buffers and of
# its bucket order.
BACKWARD, BUFFERS, ORDER = "backward", "buffers", "order"
CALLERS = {"_engine_run_backward": BACKWARD, "backward": BACKWARD, "grad": BACKWARD}
CALLERS.update({"_distributed_broadcast_coalesced": BUFFERS, "_pre_forward": ORDER})


class AbortableGroup:
    """Stands in for a group of torch, `real`."""

    def __init__(self, engine: Engine, real: Any, kind: Any, ends: Any, spec: Any) -> None:
        self.engine = engine
        self.real, self.kind, self.ends, self.spec = real, kind, ends, spec
        self.client = None  # of the generation's store, if taskd made the client
        self.has_failed = False
        self.in_use = True  # until the group is destroyed

    def __getattr__(self, name):
        return getattr(self.__dict__["real"], name)

    def rank(self) -> Any:
        if init_process_group.has_no_rank_yet() and not is_neutral(sys._getframe(2)):
            sys.modules["_taskd_standby_prepare"].park("asks for its rank")
        return self.spec.rank

    def size(self) -> int:
        return len(self.spec.members)

    def is_lost(self) -> bool:
        return self.has_failed or self.engine.session.given_up

    def fail(self, op: str, message: str, in_backward: bool = False) -> None:
        """Records the failure of an operation on this rank. Nothing of this group is reliable afterwards."""
        loop = self.engine.loop
        if loop is not None:
            loop.tainted = True
        if not self.is_lost():
            self.has_failed = True
            self.engine.session.failed("collective", op, self.spec.display_name, in_backward, message)
            self.release()

    def release(self) -> int:
        """Ends every wait in the group, from any thread; returns the number of its connections."""
        return sum(self.kind.release(backend, ends) for backend, ends in zip(self.spec.backends(self.real), self.ends))

    def shutdown(self, *args: Any) -> Any:
        self.in_use = False
        return self.real.shutdown(*args)

    def abort(self, *args: Any) -> Any:
        self.in_use = False
        return self.real.abort(*args)


def is_neutral(frame: FrameType) -> bool:
    """Returns true if the caller is torch or this package."""
    return frame.f_globals.get("__name__", "").split(".")[0] in ("torch", "taskd")


def aborted(engine: Engine) -> Any:
    if engine.loop is not None:
        engine.loop.tainted = True
    return StepAborted("a collective operation of step %s was given up" % (engine.loop.number if engine.loop else "?"))


def caller() -> str | None:
    """Returns the place in C++ that calls a method through `wrapper`; None if Python calls it. The wrapper has a frame
    only where its method is Python code: native code has none."""
    frame = sys._getframe(1).f_back
    if frame is not None and frame.f_globals.get("__name__") == WRAPPER:
        frame = frame.f_back
    if frame is None:
        return BACKWARD if in_graph_task() != -1 else None  # a thread of the autograd engine
    code = frame.f_code
    place = CALLERS.get(code.co_name)
    if place is None or "torch" not in code.co_filename or place == BACKWARD and in_graph_task() == -1:
        return None
    return place


def calling(name: str) -> Any:
    """Returns the method of this name."""
    real, call = attrgetter(name), CALLS[name]

    def method(self, *args, **kwargs):
        if is_tracing():
            return real(self.real)(*args, **kwargs)
        engine = self.engine
        place = caller() if engine.loop is not None and engine.loop.in_step else None
        if engine.loop is not None and is_of_main(engine, place):
            engine.kinds.calls_for(name, self.spec.display_members, amount(call, args)[1])
        if engine.copier.replays is not None and engine.is_main():
            engine.copier.replays.answer(name, args)
            return local_collectives.completed(args)
        if place == ORDER and answer_order(engine, args[0]):
            return local_collectives.completed(args)
        if engine.alone:
            if place == BACKWARD:
                engine.issued(args)
            work = local_collectives.answer(self, name, args, kwargs)
            if engine.copier.tape is not None and place is None:
                engine.copier.tape.add(name, args)
            return work
        if engine.loop is None or not engine.loop.in_step:
            return real(self.real)(*args, **kwargs)
        # other ranks may be in that step, and would match the operation with one of theirs
        if engine.loop.attempt.body_completed is False and is_of_main(engine, place):
            return local_collectives.completed(args)
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


def is_ours(error: BaseException, name: str) -> bool:
    """Returns true if an exception from the call itself is a failure of the group, not of the program's arguments."""
    return name == "monitored_barrier" or "gloo/transport" in str(error) or type(error).__name__.startswith("Dist")


def answer_order(engine: Engine, tensors: Sequence[torch.Tensor]) -> bool:
    """Returns true if rank 0 sent the bucket order before, in the step that is retried. The tensors of the operation
    then hold that order."""
    is_known = engine.reducers.answers(tensors)
    engine.reducers.save_sent(tensors)
    return is_known


def is_of_main(engine: Engine, place: Any) -> bool:
    """Returns true if the main thread, which runs the steps, makes the call: no `with` encloses a thread of the
    program. torch's backward passes have their own threads."""
    return place == BACKWARD or engine.is_main()


def is_quiet(engine: Engine, place: Any) -> bool:
    """Returns true if a failure raises nothing, since nothing would catch it: C++ calls without a `with`, or the `with`
    has ended."""
    loop = engine.loop
    if loop is None:  # the caller has left the loop
        return False
    attempt = loop.attempt
    if attempt.body_completed is not None and is_of_main(engine, place):
        return True
    return place in (BUFFERS, ORDER) and not attempt.is_guarded


def refused(group: Any, args: tuple[Any, ...], place: Any) -> Any:
    """Returns the answer to a call in an aborted group, or raises."""
    if place == BACKWARD or is_quiet(group.engine, place):
        group.engine.fails_quietly()
        return local_collectives.completed(args)
    raise aborted(group.engine)


for name in CALLS:
    setattr(AbortableGroup, name, calling(name))


class Work(c10d.Work):
    """An operation that the program waits for, or that C++ calls outside of backward."""

    def __init__(self, group: Any, op: str, work: Any, place: Any, args: tuple[Any, ...]) -> None:
        c10d.Work.__init__(self)
        self._group, self._op, self._work, self._place, self._args = group, op, work, place, args
        self._future = self._noted = None

    def wait(self, timeout: Any = NO_LIMIT) -> bool:
        done = self.wait_for(timeout)
        if self._noted is not None:
            epoch_collectives.ends(self._noted)
        return done

    def wait_for(self, timeout: Any) -> bool:
        group, work = self._group, self._work
        if get_ident() != group.engine.main_thread:
            return work.wait(timeout)
        limit = time.monotonic() + timeout.total_seconds() if timeout > NO_LIMIT else None
        has_failed = False  # true once a wait has failed on a completed work
        sliced = group.kind.WAITS_IN_SLICES and not CALLS[self._op].between_two
        while True:
            try:
                if sliced and not work.is_completed():  # a work may complete after its wait has timed out
                    return work.wait(SLICE)
                return work.wait() if limit is None else work.wait(timeout)
            except RuntimeError as error:
                # read once: the work may complete a moment later, and the error be only the slice's time-out
                completed = work.is_completed()
                if sliced and completed and not has_failed:
                    has_failed = True
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

    def give_up(self) -> bool:
        engine = self._group.engine
        if not is_quiet(engine, self._place):
            raise aborted(engine)
        engine.fails_quietly()
        if self._place == ORDER:
            engine.reducers.restore_own(self._args[0])
        return True

    def get_future(self) -> Any:
        if CALLS[self._op].between_two:
            return self._work.get_future()
        if self._future is None:  # each future is followed, and some callers request it repeatedly
            self._future = self._group.engine.completer.future(self._group, self._op, self._work, self._args)
        return self._future

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> Any:
        return self._work.is_completed()

    def __getattr__(self, name):  # never called for attributes of the base class
        return getattr(self.__dict__["_work"], name)


for name in ("is_success", "exception", "source_rank", "_source_rank", "result"):
    if hasattr(c10d.Work, name):
        setattr(Work, name, (lambda name: lambda self, *args: getattr(self._work, name)(*args))(name))
