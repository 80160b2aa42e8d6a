"""A process that runs its program ahead of its rank, as one that is to take another's place: it builds and warms up, with nobody.

Where the program asks for what only a rank knows, or comes to its step loop, the process *parks*: it says so to the guard, and
waits for the rank as which it goes on. What asks for it is a variable of the environment that each rank has its own of, or the
whole environment; what else does, the framework's part of the package `taskd` says by calling `park`.

It computes nothing and hooks nothing but the environment. For Python 3.8 and later.
"""

import os
import sys
from _thread import RLock, get_ident

current = None  # of this process, until it is seated


class Ahead:
    def __init__(self, seat, unknown, shared):
        global current
        current = self
        self.seat, self.unknown, self.shared = seat, frozenset(unknown), frozenset(shared)
        self.asked = set()  # of what all ranks share: by it the program has come to where it is
        self.then = []  # what is done when this process is a rank, in order
        self.main_thread = get_ident()
        self.lock = RLock()  # held by the main thread until then: any other thread that asks waits

    def begin(self):
        """From here on the program may run."""
        self.lock.acquire()
        watch_environment(self)
        os.register_at_fork(after_in_child=leave)

    def park(self, at):
        """Returns when this process is a rank. Where it stands, `at`, is for people."""
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
        """This process has been given a rank and cannot be it. The program is not told: it could catch that, and go on as nobody."""
        from _taskd_standby import FAILED

        why = "%s: %s" % (type(error).__name__, error)
        self.seat.refuse(why)  # where it still listens; else it hears of our end, and of this
        try:
            sys.stderr.write("taskd: this standby cannot become its rank: %s\n" % why)
            sys.stderr.flush()
        finally:
            os._exit(FAILED)


def park(at):
    """Where this process runs ahead, waits until it is a rank."""
    if current is not None:
        current.park(at)


def watch_environment(ahead):
    """Has whoever asks for what is not known yet wait for it. C's `getenv` finds nothing."""
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

    Watched.__name__, Watched.__qualname__, Watched.usual = usual.__name__, usual.__qualname__, usual
    os.environ.__class__ = Watched


def leave():
    """This process is a rank, or a forked child, for which nobody has a seat."""
    global current
    current = None
    os.environ.__class__ = getattr(type(os.environ), "usual", type(os.environ))
