"""Waits beside the program for what only C++ waits for: done or given up, its future completes, and never with an exception.

A callback on the work's own future would run on the backend's thread and wait there for the interpreter's lock, which
delays the next operation and deadlocks with a group that is destroyed meanwhile. So there is a thread, bare as the
heartbeat's.
"""

import os
from _thread import allocate_lock, get_ident

import torch
from torch._C import _distributed_c10d as c10d

from taskd import _link, _until_exit
from taskd._recoverable import SLICE

RUNNERS_MAX = 16  # callbacks that wait for each other: PowerSGD's are four


class Runner:
    """A thread, and the operations that it waits for in turn."""

    def __init__(self):
        from _queue import SimpleQueue

        self.queue, self.ident = SimpleQueue(), None
        self.stops = False  # the interpreter is about to end


class Completer:
    """A callback of the program's on a future runs on the thread that completes it, and may call for an operation and wait for that
    (PowerSGD's does). So what is called for on a thread of ours is waited for by the next one."""

    def __init__(self):
        self.lock = allocate_lock()
        self.pending = {}  # id of a future: (the future, its value, the group)
        self.runners = []
        self.said = False
        os.register_at_fork(after_in_child=self.leave_in_child)

    def leave_in_child(self):
        self.pending, self.runners, self.lock = {}, [], allocate_lock()

    def follow(self, group, op, work, args):
        """A work for C++ in place of this one, which never fails."""
        return c10d._create_work_from_future(self.future(group, op, work, args, in_backward=True))

    def future(self, group, op, work, args, in_backward=False):
        future = torch.futures.Future()
        with self.lock:
            self.pending[id(future)] = (future, value_of(args), group)
        self.runner().queue.put((future, op, work, group, in_backward))
        if group.is_lost():  # while it was put there: `release` may have come and gone
            self.release()
        return future

    def runner(self):
        """Whose thread is not held up by what this one does."""
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
            _until_exit.start(lambda: self.run(runner), lambda: self.stop(runner))
        except BaseException:  # what is put there is waited for by nobody
            self.stop(runner)
            raise
        return runner

    def stop(self, runner):
        with self.lock:
            runner.stops = True
            if runner in self.runners:
                self.runners.remove(runner)
        runner.queue.put(None)

    def run(self, runner):
        runner.ident = get_ident()
        while self.ends(runner, runner.queue.get()):
            pass  # nothing of the one that is over is kept here

    def ends(self, runner, followed):
        """Waits for one operation; whether there may be more."""
        if followed is None:
            return False
        future, op, _, group, in_backward = followed
        try:
            self.wait(runner, *followed)
        except Exception as error:
            self.cannot_tell(op, group, in_backward, error)
        finally:
            if not runner.stops:  # whoever waited would go on with what has not come
                self.complete(future)  # else backward would wait for ever
        return True

    def cannot_tell(self, op, group, in_backward, error):
        """What has failed is how the operation's end is found out, or how its failure is told: the step cannot be committed."""
        loop = group.engine.loop
        if loop is not None:
            loop.tainted = True
        if not group.is_lost():
            group.engine.session.failed("collective", op, group.spec.told_as, in_backward, str(error))
        if not self.said:
            self.said = True
            _link.say("what became of %s is not known: %s: %s" % (op, type(error).__name__, error))

    def wait(self, runner, future, op, work, group, in_backward):
        while id(future) in self.pending and not runner.stops:
            completed = work.is_completed()
            try:
                work.wait() if completed else work.wait(SLICE)
            except Exception as error:
                if not completed:
                    continue  # it may have completed since
                if id(future) not in self.pending:
                    return  # given up meanwhile: the group is another one by now
                group.fail(op, str(error), in_backward)
            return

    def complete(self, future):
        with self.lock:
            entry = self.pending.pop(id(future), None)
        if entry is not None:
            future.set_result(entry[1])

    def release(self):
        """Completes all, on any thread: their groups are given up."""
        for future, _, group in list(self.pending.values()):
            loop = group.engine.loop  # the main thread may leave it meanwhile
            if loop is not None:
                loop.tainted = True
            self.complete(future)


def value_of(args):
    """What a backend's future would hold: the tensors of the first argument."""
    first = args[0] if args else []
    return list(first) if isinstance(first, (list, tuple)) else [first]
