"""The worker's end of the control link: a thread that connects, sends hello, passes on received messages and sends
outgoing ones.

The link never makes the program wait (except in `flush`), never raises into it, and sends nothing from a forked child.
If the supervisor has ended, the thread tries again without limit, at growing intervals; the guard holds the listener,
so the next supervisor has the same address. Messages to a supervisor that has ended are dropped, except the standing
failure: the next supervisor receives it after the hello.
"""

import os
import sys
import time
from collections import deque

from taskd import _frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BACKOFF_FIRST_MS, BACKOFF_MAX_MS = 50, 1000
FLUSH_SECONDS = 0.2  # maximum wait of the program for messages to be sent
OUTBOX_MAX = 256  # messages that wait to be sent; if it is full, the newest is dropped and counted
UNSENT_BYTES_MAX = 1 << 20  # that a supervisor has not read; beyond that, messages wait in the outbox
READ_BYTES = 65536
GREETING_MS = 5000  # maximum time from connecting to the supervisor's welcome; then the connection ends


class Link:
    """The control link of this process.

    `hello()` returns the first message of a connection. `on_message(message)` is called on the link's thread with each
    received message; if it raises `NoFrame`, the connection ends.
    """

    def __init__(self, hello, on_message):
        self.hello, self.on_message = hello, on_message
        self.pid = os.getpid()
        self.outbox = deque()
        self.standing: Any = None  # the failure that every new supervisor receives
        self.socket = None
        self.is_sent = True  # true if all messages are sent
        self.is_greeted = False  # a supervisor has sent welcome, and the connection is open
        self.counts = {"connected": 0, "dropped": 0, "garbage": 0, "failed": 0}
        self.wake_read, self.wake_write = os.pipe()
        for fd in (self.wake_read, self.wake_write):
            os.set_blocking(fd, False)
        os.register_at_fork(after_in_child=self.leave_in_child)

    def start(self, path):
        """Starts the thread without `threading`, like the heartbeat's: it does not survive a fork, and the interpreter
        does not wait for it."""
        import _thread

        self.path = path
        _thread.start_new_thread(self.run, ())

    def leave_in_child(self):
        """Closes the link's descriptors in a forked child, which would otherwise keep the connection of a dead parent
        open. A child of the child does nothing: the numbers may belong to other files by then."""
        held, self.wake_read, self.wake_write = (self.wake_read, self.wake_write), None, None
        for fd in held:
            if fd is not None:
                os.close(fd)
        if self.socket is not None:
            os.close(self.socket.detach())
        self.socket = None

    def send(self, message):
        """Queues a message for sending, from any thread. Does nothing in a forked child."""
        if os.getpid() != self.pid:
            return
        if len(self.outbox) >= OUTBOX_MAX:
            self.drop("%d messages wait for the supervisor, which does not read" % OUTBOX_MAX)
            return
        self.outbox.append(message)
        self.is_sent = False
        try:
            os.write(self.wake_write, b"\0")  # pyright: ignore[reportArgumentType]
        except OSError:
            pass  # the pipe is full: the thread wakes up anyway

    def flush(self):
        """Waits at most FLUSH_SECONDS until all messages are sent, since the process may be killed next. Returns true
        if they are, and the supervisor has sent welcome."""
        limit = time.monotonic() + FLUSH_SECONDS
        while not self.is_sent and time.monotonic() < limit:
            time.sleep(0.0005)
        return self.is_sent and self.is_greeted

    def drop(self, why):
        """Counts a dropped message, and logs the first."""
        self.counts["dropped"] += 1
        if self.counts["dropped"] == 1:
            say("a message to the supervisor is dropped: %s" % why)

    def packed(self, message):
        """Returns a message as bytes. A reply that is too long becomes an error; any other long message is dropped."""
        try:
            return _frames.packed(message)
        except _frames.NoFrame as error:
            if "reply" in message:
                return _frames.packed(
                    {"reply": {"id": message["reply"]["id"], "error": "the answer is too long: %s" % error}}
                )
            self.drop(error)
            return b""

    def run(self):
        import _signal  # pyright: ignore[reportMissingImports]

        _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
        wait_ms = BACKOFF_FIRST_MS
        while True:
            try:
                greeted = self.converse()
            except Exception as error:
                greeted = False
                self.complain(error)
            self.close()
            wait_ms = BACKOFF_FIRST_MS if greeted else min(wait_ms * 2, BACKOFF_MAX_MS)
            sleep_ms(wait_ms)

    def complain(self, error):
        """Logs the first error of each kind in one line; the others are only counted."""
        kind = "garbage" if isinstance(error, _frames.NoFrame) else "failed"
        self.counts[kind] += 1
        if self.counts[kind] > 1:
            return
        if kind == "garbage":
            say("the supervisor sent what is no message (%s); the connection is made anew" % error)
        else:
            say(
                "something has failed on the link to the supervisor, which "
                "goes on: %s: %s" % (type(error).__name__, error)
            )

    def close(self):
        self.is_greeted = False
        self.outbox.clear()
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def converse(self):
        """Runs one connection to its end. Returns true if the supervisor has sent welcome."""
        import _socket
        import select

        self.socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
        try:
            self.socket.connect(self.path)
            self.socket.setblocking(False)
            unsent = bytearray(_frames.packed(self.hello()))
            if self.standing is not None:
                unsent += _frames.packed(self.standing)
        except OSError:
            return False
        self.counts["connected"] += 1
        poll, fd, greeted, unpacker = select.poll(), self.socket.fileno(), False, _frames.Unpacker()
        poll.register(self.wake_read, select.POLLIN)  # pyright: ignore[reportArgumentType]
        while True:
            while self.outbox and len(unsent) < UNSENT_BYTES_MAX:
                unsent += self.packed(self.outbox.popleft())
            self.is_sent = not unsent and not self.outbox
            poll.register(fd, select.POLLIN | (select.POLLOUT if unsent else 0))
            ready = dict(poll.poll(None if greeted else GREETING_MS))
            if not ready and not greeted:
                return False
            if self.wake_read in ready:
                os.read(self.wake_read, 4096)
            if ready.get(fd, 0) & select.POLLOUT:
                try:
                    del unsent[: self.socket.send(unsent, _socket.MSG_NOSIGNAL)]
                except OSError:
                    return greeted  # the supervisor has closed it
            if ready.get(fd, 0) & ~select.POLLOUT:
                try:
                    data = self.socket.recv(READ_BYTES)
                except BlockingIOError:
                    continue
                except OSError:
                    return greeted
                if not data:
                    return greeted
                greeted = self.is_greeted = self.take(unpacker, data) or greeted

    def take(self, unpacker, data):
        """Passes on all complete messages. Returns true if there was one."""
        unpacker.add(data)
        took = False
        while True:
            message = unpacker.next()
            if message is None:
                return took
            self.on_message(message)
            took = True


def sleep_ms(milliseconds):
    time.sleep(milliseconds / 1000.0)


def say_whole(text, error):
    """Logs a text with the exception's whole traceback."""
    import traceback

    say("%s:\n%s" % (text, "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()))


def say(text):
    try:
        sys.stderr.write("taskd: %s\n" % text)
    except Exception:
        pass
