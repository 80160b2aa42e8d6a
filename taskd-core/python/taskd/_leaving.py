"""The planned end of a rank: SIGTERM, which reaches the program's `exit` callback within the grace time of a stop.

Every planned end comes as that signal, from every launcher: of a job that is stopped, of a world that starts anew. A directive
ahead of it would be one more thing to wait for, and none comes where the link is gone; so it is the signal that is listened to. It is
taken only from a program that has a callback for it and no handler of its own: nobody else ends later than before. The callback is
called between two steps, as all are; a step that waits for ranks which have left already is given up after a moment. Whoever takes
longer than the grace time is killed, as ever.
"""

import _thread
import os
import signal
import time

from taskd import _link
from taskd._callbacks import call

CODE = 128 + signal.SIGTERM  # as shells have it
STEP_SECONDS = 1.0  # for the step that is under way; what then still waits for others is freed


class Leaving:
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
        self.session.inbox.put((None, 0, "exit", {}))  # who waits for a directive has one
        return _thread.start_new_thread(self.free, ())

    def free(self):
        """On a thread of its own: the main one may be inside of an operation that a rank was to take part in which is gone."""
        time.sleep(STEP_SECONDS)
        if not self.done:
            with self.session.lock:
                self.session.given_up = True
            self.session.engine.release()

    def leave(self):
        """Between two steps. Whatever the callback does, this process ends as one that was told to."""
        self.done = True
        try:
            call(self.loop.callbacks, "exit", CODE)
        except Exception as error:
            _link.say("the callback exit failed: %s: %s" % (type(error).__name__, error))
        raise SystemExit(CODE)

    def end(self):
        """The loop is over: the signal does what it did before, also one that has come and was not followed."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self.asked and not self.done:
            self.done = True
            os.kill(os.getpid(), signal.SIGTERM)


def watched(loop):
    """From here on this process is a rank in its loop; None where the signal is somebody else's, or nobody waits for it."""
    if "exit" not in loop.callbacks or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return None
    try:
        return Leaving(loop)
    except ValueError:  # not on the main thread
        return None
