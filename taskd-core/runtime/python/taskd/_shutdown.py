"""The planned end of a rank: SIGTERM, which reaches the program's `exit` callback within the grace time of a stop.

Every planned end comes as that signal, from every launcher: of a job that is stopped, of a world that restarts. A
directive before it would be one more thing to wait for, and none comes if the link is gone; so the signal is used. It
is taken only from a program that has a callback for it and no handler of its own: no other program ends later than
before. The callback is called between two steps, as all are; a step that waits for ranks which have left already is
aborted after a moment. A process that takes longer than the grace time is killed.
"""

import _thread
import os
import signal
import time

from taskd import _link
from taskd._callbacks import call

CODE = 128 + signal.SIGTERM  # as shells have it
STEP_SECONDS = 1.0  # for the step that is under way; an operation that then still waits for other ranks is freed


class Shutdown:
    """Of one loop, on the main thread."""

    def __init__(self, loop):
        self.loop, self.session = loop, loop.session
        self.pid, self.asked, self.done = os.getpid(), False, False
        signal.signal(signal.SIGTERM, self.on_signal)

    def on_signal(self, *_):
        if os.getpid() != self.pid:  # a helper that was forked, such as one that loads data: it ends as any other
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            return os.kill(os.getpid(), signal.SIGTERM)
        if self.asked:
            return None
        self.asked = self.session.attention = True
        self.session.inbox.put((None, 0, "exit", {}))  # a main thread that waits for a directive has one
        return _thread.start_new_thread(self.free, ())

    def free(self):
        """On a thread of its own: the main one may be inside of an operation that a rank was to take part in which is
        gone."""
        time.sleep(STEP_SECONDS)
        if not self.done:
            with self.session.lock:
                self.session.given_up = True
            self.session.engine.release()

    def exit_now(self):
        """Called between two steps. Ends this process with the signal's exit code, also if the callback fails."""
        self.done = True
        try:
            call(self.loop.program.callbacks, "exit", CODE)
        except Exception as error:
            _link.say("the callback exit failed: %s: %s" % (type(error).__name__, error))
        raise SystemExit(CODE)

    def end(self):
        """The loop is over: the signal does what it did before, also one that has come and was not followed."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self.asked and not self.done:
            self.done = True
            os.kill(os.getpid(), signal.SIGTERM)


def install(loop):
    """From here on this process is a rank in its loop. None if the program has a handler of its own for the signal, or
    no callback for it."""
    if "exit" not in loop.program.callbacks or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return None
    try:
        return Shutdown(loop)
    except ValueError:  # not on the main thread
        return None
