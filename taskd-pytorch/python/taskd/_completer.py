"""Waits beside the program for what only C++ waits for: done or given up, its future completes, and never with an exception.

A callback on the work's own future would run on the backend's thread and wait there for the interpreter's lock, which
delays the next operation and deadlocks with a group that is destroyed meanwhile. So there is a thread, bare as the
heartbeat's.
"""

import os

import torch
from torch._C import _distributed_c10d as c10d

from taskd._recoverable import SLICE


class Completer:
    def __init__(self):
        import _queue
        import _thread

        self.lock = _thread.allocate_lock()
        self.pending = {}  # id of a future: (the future, its value, the group)
        self.queue = _queue.SimpleQueue()
        self.is_running = False
        os.register_at_fork(after_in_child=self.leave_in_child)

    def leave_in_child(self):
        import _thread

        self.pending, self.is_running, self.lock = {}, False, _thread.allocate_lock()

    def follow(self, group, op, work, args):
        """A work for C++ in place of this one, which never fails."""
        return c10d._create_work_from_future(self.future(group, op, work, args, in_backward=True))

    def future(self, group, op, work, args, in_backward=False):
        future = torch.futures.Future()
        with self.lock:
            self.pending[id(future)] = (future, value_of(args), group)
        self.queue.put((future, op, work, group, in_backward))
        if not self.is_running:
            self.start()
        if group.is_lost():  # while it was put there: `release` may have come and gone
            self.release()
        return future

    def start(self):
        import _thread

        self.is_running = True
        _thread.start_new_thread(self.run, ())

    def run(self):
        import _signal

        _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
        while True:
            self.wait(*self.queue.get())

    def wait(self, future, op, work, group, in_backward):
        while id(future) in self.pending:
            completed = work.is_completed()
            try:
                work.wait() if completed else work.wait(SLICE)
            except Exception as error:
                if not completed:
                    continue  # it may have completed since
                if id(future) not in self.pending:
                    return  # given up meanwhile: the group is another one by now
                group.fail(op, str(error), in_backward)
            self.complete(future)

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
