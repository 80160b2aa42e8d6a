"""The end of a recorded operation: ends its range when its `Work` completes, on any thread that waits for it.

Four events report completion, and the first one ends the range:

  * the program's own `work.wait()`, seen by a function put over `Work.wait`: exact, and the only event for gloo's send
    and receive, which complete in no other way;
  * a thread that waits in parallel to the program, for operations that only C++ waits for (the buckets of DDP). A
    callback on the work's future would be simpler, but runs on the backend's thread, which would then wait for the
    interpreter's lock: that delays the next operation, deadlocks with a group that is being destroyed, and aborts a
    process that exits;
  * a check of all works when the next operation is called, and when an optimizer begins its step: the thread runs late
    while Python keeps it waiting, and operations that backward has waited for would appear to be in flight beyond the
    step;
  * the program drops the work.

The works themselves stay unchanged: their type, results and exceptions are torch's. The module never waits on the
program's behalf, and never touches a work of a backend that completes on a device.
"""

from __future__ import annotations

import os
import time
import weakref
from datetime import timedelta

from taskd.torch import background_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Time that the thread waits for the oldest work before it checks the others. It limits the delay of the end of a work
# that overtook the oldest, and the delay of the process's exit by a work that has not completed.
SLICE = timedelta(milliseconds=10)
PAUSE_SECONDS = 0.001  # pause if nothing has completed


class Reference(weakref.ref):
    """Weak reference to a work, with the id of the work."""

    __slots__ = ("key",)


class Ends:
    """The ranges whose works have not completed."""

    def __init__(self, work_class: Any, native: Any, fault: Any) -> None:
        self.native = native
        self.fault = fault
        self.open: Any = {}  # id of a work: (weak reference to it, its range, whether it is watched)
        self.watcher = None
        self.functions = None  # native code that has replaced those of this class
        os.register_at_fork(after_in_child=self.open.clear)  # the ranges are the parent's
        self.work_class, self.wait = work_class, work_class.wait
        work_class.wait = as_wait(self.wait, self.seen(self.wait))

    def go_native(self, functions: Any) -> None:
        """Leaves the open ranges to native code, which does what the functions of this class do. None is open yet."""
        self.functions = functions
        self.expect, self.finish, self.sweep = functions.expect, functions.finish, functions.sweep
        os.register_at_fork(after_in_child=functions.forget_works)
        self.work_class.wait = as_wait(self.wait, self.seen_natively(functions, self.wait))
        if self.watcher is not None:  # prepared again
            functions.is_watching()

    def expect(self, work: Any, range_id: int, watched: Any) -> None:
        """Ends the range when the work completes. If `watched`, the thread detects the completion."""
        reference = Reference(work, self.dropped)
        reference.key = key = id(work)
        self.open[key] = (reference, range_id, watched)
        if watched:
            self.watch(work)

    def watch(self, work: Any) -> None:
        """Has the thread detect the completion of a work."""
        if self.watcher is None:
            self.watcher = Watcher(self)
            if self.functions is not None:
                self.functions.is_watching()
        self.watcher.works.put(work)

    def dropped(self, reference: Any) -> None:
        try:
            self.finish(reference.key)
        except Exception as error:
            self.fault(error)

    def finish(self, key: Any) -> None:
        entry = self.open.pop(key, None)  # only one thread gets it
        if entry is not None:
            self.native.end(entry[1])

    def sweep(self) -> None:
        """Ends the ranges of completed works.

        gloo completes the future of a work, for which DDP waits, before the work itself: the next operation may begin
        in between. The future of the latest work is enough, since a group completes its works in their order.
        """
        watched = [(key, reference) for key, (reference, _, watched) in list(self.open.items()) if watched]
        for at, (key, reference) in enumerate(watched, start=1):
            work = reference()
            if work is not None and (work.is_completed() or at == len(watched) and has_result(work)):
                self.finish(key)

    def seen(self, wait: Any) -> Any:
        """Returns a `Work.wait` that ends the work's range before it returns."""

        def wait_and_end(work, *args, **kwargs):
            if id(work) not in self.open:
                return wait(work, *args, **kwargs)
            return self.wait_for_open(work, args, kwargs)

        return wait_and_end

    def seen_natively(self, functions: Any, wait: Any) -> Any:
        """Returns the same `Work.wait`, in which native code runs a wait without a time limit."""
        waited, is_open = functions.waited, functions.is_open

        def wait_and_end(work, *args, **kwargs):
            if not args and not kwargs:
                return waited(work)
            if not is_open(work):
                return wait(work, *args, **kwargs)
            return self.wait_for_open(work, args, kwargs)

        return wait_and_end

    def wait_for_open(self, work: Any, args: Any, kwargs: Any) -> Any:
        """Waits for a work whose range is open, and ends the range."""
        completed = False
        try:
            result = self.wait(work, *args, **kwargs)
            completed = True
            return result
        finally:
            try:
                if completed or work.is_completed():
                    self.finish(id(work))
            except Exception as error:
                self.fault(error)


def has_result(work: Any) -> Any:
    """Returns true if the future of a work has completed, false if it has none."""
    try:
        return work.get_future().done()
    except RuntimeError:
        return False


def as_wait(wait: Any, replacement: Any) -> Any:
    """Gives the replacement of `Work.wait` its names, and hides it from torch.compile."""
    replacement.__name__, replacement.__qualname__, replacement.__doc__ = "wait", "Work.wait", wait.__doc__
    replacement._torchdynamo_disable = True
    return replacement


def queue() -> Any:
    import _queue

    return _queue.SimpleQueue()


class NativeQueue:
    """The queue of native code, which puts works into it without calling Python."""

    def __init__(self, functions: Any) -> None:
        self.put, self.get, self.empty = functions.watch, functions.next_watched, functions.is_none_watched


class Watcher:
    """The thread that waits in parallel to the program."""

    def __init__(self, ends: Any) -> None:
        self.ends = ends
        self.works = queue() if ends.functions is None else NativeQueue(ends.functions)
        background_thread.start(self.run, lambda: self.works.put(None))

    def run(self) -> None:
        try:
            give_way()
            self.watch()
        except Exception as error:
            self.ends.fault(error)

    def watch(self) -> None:
        waiting = []
        while True:
            while not waiting or not self.works.empty():
                waiting.append(self.works.get())
                if waiting[-1] is None:
                    return
            self.wait_for(waiting[0])
            before = len(waiting)
            waiting = [work for work in waiting if not self.ended(work)]
            if len(waiting) == before:
                time.sleep(PAUSE_SECONDS)

    def wait_for(self, work: Any) -> None:
        try:
            self.ends.wait(work, SLICE)
        except Exception:
            pass  # not completed; or failed, which the program's own wait reports; or no wait with a time limit

    def ended(self, work: Any) -> bool:
        """Returns true if the work needs no further watching."""
        try:
            completed = work.is_completed() or work.get_future().done()  # some works support only one of them
        except RuntimeError:
            return True  # the work has no future: its range ends when the program drops it
        if completed:
            self.ends.finish(id(work))
        return completed


def give_way() -> None:
    """Lets the program's thread, which wakes this one, run on: it holds the interpreter's lock, so this thread could
    only wait for the lock. If the process may not set the policy, the kernel decides."""
    try:
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except (AttributeError, OSError):
        pass
