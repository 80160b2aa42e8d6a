"""When an operation of a process group is over: ends its range when its `Work` completes, whoever waits for it.

Four things tell of it, and the first one ends the range:

  * the program's own `work.wait()`, seen by a function put over `Work.wait`: exact, and all there is for gloo's send
    and receive, which complete in no other way;
  * a thread that waits beside the program, for what only C++ waits for (the buckets of DDP). A callback on the work's
    future would be simpler, but runs on the backend's thread, which would then wait for the interpreter's lock: that
    delays the next operation, deadlocks with a group that is destroyed meanwhile, and aborts a process that exits;
  * a look at all of them when the next operation is called for, and when an optimizer begins its step: the thread is as
    late as Python keeps it waiting, and what backward has waited for would seem to be under way beyond the step;
  * the program dropped the work.

The works themselves stay as they are: their type, their results and their exceptions are torch's. It never waits on
the program's behalf, and never touches a work of a backend whose completion happens on a device.
"""

import os
import time
import weakref
from datetime import timedelta

from taskd import _until_exit

# How long the thread waits for the oldest work before it looks at the others: so late is the end of one that overtook
# it, and so long can the end of the process be delayed by a work that has not completed.
SLICE = timedelta(milliseconds=10)
PAUSE_SECONDS = 0.001  # where nothing has completed


class Reference(weakref.ref):
    """To a work, whose id it remembers."""

    __slots__ = ("key",)


class Ends:
    """The ranges whose works have not completed."""

    def __init__(self, work_class, native, fault):
        self.native = native
        self.fault = fault
        self.open = {}  # id of a work: (weak reference to it, its range, whether it is watched)
        self.watcher = None
        os.register_at_fork(after_in_child=self.open.clear)  # which are the parent's
        self.wait = work_class.wait
        work_class.wait = self.seen(work_class.wait)

    def expect(self, work, range_id, watched):
        """Ends the range when the work completes, which the thread finds out if it is to be watched."""
        reference = Reference(work, self.dropped)
        reference.key = key = id(work)
        self.open[key] = (reference, range_id, watched)
        if watched:
            if self.watcher is None:
                self.watcher = Watcher(self)
            self.watcher.works.put(work)

    def dropped(self, reference):
        try:
            self.finish(reference.key)
        except Exception as error:
            self.fault(error)

    def finish(self, key):
        entry = self.open.pop(key, None)  # one thread gets it
        if entry is not None:
            self.native.end(entry[1])

    def sweep(self):
        """Ends what has completed."""
        for key, (reference, _, watched) in list(self.open.items()):
            work = reference()
            if watched and work is not None and work.is_completed():
                self.finish(key)

    def seen(self, wait):
        """`Work.wait`, which ends the work's range on its way back."""

        def wait_and_end(work, *args, **kwargs):
            if id(work) not in self.open:
                return wait(work, *args, **kwargs)
            completed = False
            try:
                result = wait(work, *args, **kwargs)
                completed = True
                return result
            finally:
                try:
                    if completed or work.is_completed():
                        self.finish(id(work))
                except Exception as error:
                    self.fault(error)

        wait_and_end.__name__, wait_and_end.__qualname__, wait_and_end.__doc__ = "wait", "Work.wait", wait.__doc__
        wait_and_end._torchdynamo_disable = True
        return wait_and_end


class Watcher:
    """The thread that waits beside the program."""

    def __init__(self, ends):
        import _queue

        self.ends = ends
        self.works = _queue.SimpleQueue()
        _until_exit.start(self.run, lambda: self.works.put(None))

    def run(self):
        try:
            give_way()
            self.watch()
        except Exception as error:
            self.ends.fault(error)

    def watch(self):
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

    def wait_for(self, work):
        try:
            self.ends.wait(work, SLICE)
        except Exception:
            pass  # not completed; or failed, which the program's own wait tells it; or it cannot wait for a time

    def ended(self, work):
        """Whether there is nothing more to be seen of it."""
        try:
            completed = work.is_completed() or work.get_future().done()  # some only know the one, some the other
        except RuntimeError:
            return True  # it has no future: it ends when the program drops it
        if completed:
            self.ends.finish(id(work))
        return completed


def give_way():
    """The program's thread, which wakes this one, goes on: it holds the interpreter's lock, so there would be nothing to do
    in its place but to wait for it. Where nobody may say so, the kernel decides."""
    try:
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except (AttributeError, OSError):
        pass
