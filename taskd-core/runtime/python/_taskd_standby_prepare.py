"""Runs a standby's program before it has a rank: the program builds and warms up, without peers.

When the program needs what only a rank has, or reaches its step loop, the process *parks*: it reports that to the
guard, waits for its rank, and continues as this rank. The program parks when it reads an environment variable whose
value differs between ranks, or the whole environment. For all other cases, the framework's part of the package `taskd`
calls `park`.

This module hooks only the environment. For Python 3.8 and later.
"""

import os
import sys
from _thread import RLock, get_ident

current = None  # the `Ahead` of this process, until it is seated


class Ahead:
    def __init__(self, seat, unknown, shared):
        global current
        current = self
        self.seat, self.unknown, self.shared = seat, frozenset(unknown), frozenset(shared)
        self.asked = set()  # variables, the same for all ranks, that the program has read
        self.then = []  # functions to call, in order, when this process is a rank
        self.main_thread = get_ident()
        self.lock = RLock()  # held by the main thread until then: any other thread that parks waits

    def begin(self):
        """Prepares for the start of the program."""
        self.lock.acquire()
        watch_environment(self)
        os.register_at_fork(after_in_child=leave)

    def park(self, at):
        """Waits until this process is a rank. `at` describes the point in the program, for the log."""
        if get_ident() != self.main_thread:
            with self.lock:
                return
        if current is not self:
            return
        packet = self.seat.await_seat(at, self.asked)
        leave()
        try:
            self.seat.be_rank(packet)
            for then in self.then:
                then()
        except BaseException as error:
            self.end(error)
        self.lock.release()

    def end(self, error):
        """Ends this process, which has received a rank and cannot become it. No exception is raised: the program could
        catch it and continue without a rank."""
        from _taskd_standby import FAILED

        why = "%s: %s" % (type(error).__name__, error)
        self.seat.refuse(why)  # if the guard still listens; if not, it learns of the exit and this line
        try:
            sys.stderr.write("taskd: this standby cannot become its rank: %s\n" % why)
            sys.stderr.flush()
        finally:
            os._exit(FAILED)


def park(at):
    """Waits, in a standby that runs its program, until it is a rank."""
    if current is not None:
        current.park(at)


def watch_environment(ahead):
    """Parks the program when it reads a variable that only a rank has. C's `getenv` finds nothing."""
    usual = type(os.environ)

    class Watched(usual):
        def __getitem__(self, key):
            if key in ahead.unknown:
                ahead.park("asks for the variable %s" % key)
            elif key in ahead.shared:
                ahead.asked.add(key)
            return usual.__getitem__(self, key)

        def __iter__(self):
            ahead.park("looks at its whole environment")
            return usual.__iter__(self)

    Watched.__name__, Watched.__qualname__, Watched.usual = usual.__name__, usual.__qualname__, usual  # pyright: ignore[reportAttributeAccessIssue]
    os.environ.__class__ = Watched


def leave():
    """Ends the watch of the environment, in a rank or in a forked child, which has no seat."""
    global current
    current = None
    os.environ.__class__ = getattr(type(os.environ), "usual", type(os.environ))
