"""Completes futures that C++ waits for, on its own thread: when the work is done or the step is aborted, and never with
an exception.

A callback on the work's own future would run on the backend's thread and wait there for the interpreter's lock. That
delays the next operation, and deadlocks with a group that is being destroyed. So a thread waits, bare as the
heartbeat's.
"""

from __future__ import annotations

import os
from _thread import allocate_lock, get_ident

import torch
from torch._C import _distributed_c10d as c10d

from taskd import _link
from taskd.torch import background_thread
from taskd.torch.process_group.abortable import SLICE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RUNNERS_MAX = 16  # callbacks that wait for each other; PowerSGD has four


class Runner:
    """A thread, and the operations that it waits for in turn."""

    def __init__(self) -> None:
        from _queue import SimpleQueue

        self.queue, self.ident = SimpleQueue(), None
        self.stops = False  # true once the interpreter is about to exit


class Completer:
    """Completes futures on runner threads. A callback of the program on a future runs there, and may call an operation
    and wait for it (PowerSGD's does): the next runner waits for that operation."""

    def __init__(self) -> None:
        self.lock = allocate_lock()
        self.pending = {}  # id of a future: (the future, its value, the group)
        self.runners = []
        self.is_reported = False
        os.register_at_fork(after_in_child=self.leave_in_child)

    def leave_in_child(self) -> None:
        self.pending, self.runners, self.lock = {}, [], allocate_lock()

    def follow(self, group: Any, op: str, work: Any, args: tuple[Any, ...]) -> Any:
        """Returns a work that never fails, for C++ in place of this one."""
        return c10d._create_work_from_future(self.future(group, op, work, args, in_backward=True))

    def future(self, group: Any, op: str, work: Any, args: tuple[Any, ...], in_backward: bool = False) -> Any:
        future = torch.futures.Future()
        with self.lock:
            self.pending[id(future)] = (future, value_of(args), group)
        self.runner().queue.put((future, op, work, group, in_backward))
        if group.is_lost():  # aborted during the put: `release` may have run before it
            self.release()
        return future

    def runner(self) -> Any:
        """Returns a runner whose thread is not blocked by the current thread's work."""
        me, at = get_ident(), 0
        for number, runner in enumerate(self.runners):
            if runner.ident == me:
                at = (number + 1) % RUNNERS_MAX
        with self.lock:
            if len(self.runners) > at:
                return self.runners[at]
            runner = Runner()
            self.runners.append(runner)
        try:
            background_thread.start(lambda: self.run(runner), lambda: self.stop(runner))
        except BaseException:  # no thread waits for what is put there
            self.stop(runner)
            raise
        return runner

    def stop(self, runner: Any) -> None:
        with self.lock:
            runner.stops = True
            if runner in self.runners:
                self.runners.remove(runner)
        runner.queue.put(None)

    def run(self, runner: Any) -> None:
        runner.ident = get_ident()
        while self.ends(runner, runner.queue.get()):
            pass  # no reference to a completed operation is kept here

    def ends(self, runner: Any, followed: Any) -> bool:
        """Waits for one operation; returns true if more may follow."""
        if followed is None:
            return False
        future, op, _, group, in_backward = followed
        try:
            self.wait(runner, *followed)
        except Exception as error:
            self.fail_unknown(op, group, in_backward, error)
        finally:
            if not runner.stops:  # the waiting code would use data that has not arrived
                self.complete(future)  # otherwise backward would wait for ever
        return True

    def fail_unknown(self, op: str, group: Any, in_backward: bool, error: BaseException) -> None:
        """Marks the step as one that cannot be committed: the detection of the operation's end, or the report of its
        failure, has failed."""
        loop = group.engine.loop
        if loop is not None:
            loop.tainted = True
        if not group.is_lost():
            group.engine.session.failed("collective", op, group.spec.display_name, in_backward, str(error))
        if not self.is_reported:
            self.is_reported = True
            _link.say("the outcome of %s is not known: %s: %s" % (op, type(error).__name__, error))

    def wait(self, runner: Any, future: Any, op: str, work: Any, group: Any, in_backward: bool) -> None:
        while id(future) in self.pending and not runner.stops:
            completed = work.is_completed()
            try:
                work.wait() if completed else work.wait(SLICE)
            except Exception as error:
                if not completed:
                    continue  # the work may have completed since
                if id(future) not in self.pending:
                    return  # aborted during the wait: the group has been replaced
                group.fail(op, str(error), in_backward)
            return

    def complete(self, future: Any) -> None:
        with self.lock:
            entry = self.pending.pop(id(future), None)
        if entry is not None:
            future.set_result(entry[1])

    def release(self) -> None:
        """Completes all pending futures, on any thread: their groups are aborted."""
        for future, _, group in list(self.pending.values()):
            loop = group.engine.loop  # read once: the main thread may leave the loop
            if loop is not None:
                loop.tainted = True
            self.complete(future)


def value_of(args: tuple[Any, ...]) -> Any:
    """Returns the value that a backend's future would hold: the tensors of the first argument."""
    first = args[0] if args else []
    return list(first) if isinstance(first, (list, tuple)) else [first]
