"""The worker's end of the control link: a thread that connects, says hello, hands on what comes, and sends what is to be sent.

It never waits on behalf of the program, never raises into it, and never speaks for a forked child. Where the supervisor is
gone it tries again for ever, at growing intervals; the guard holds the listener, so it is found again. What was to be sent
to a supervisor that is gone is dropped, but for the failure that still stands: the next one is told that after the hello.
"""

import os
import sys
import time
from collections import deque

from taskd import _frames

BACKOFF_FIRST_MS, BACKOFF_MAX_MS = 50, 1000
FLUSH_SECONDS = 0.2  # that the program waits at most for what is to be sent
OUTBOX_MAX = 256  # messages that wait to be sent; of more the newest is dropped, and counted
UNSENT_BYTES_MAX = 1 << 20  # of messages that a supervisor does not read; of more, messages wait in the outbox
READ_BYTES = 65536
GREETING_MS = 5000  # within which a supervisor that has accepted says welcome; else the connection is given up


class Link:
    """One for each process.

    `hello()` gives the first message of a connection. `on_message(message)` is called on the link's thread with all that
    comes; a message that it refuses with `NoFrame` ends the connection.
    """

    def __init__(self, hello, on_message):
        self.hello, self.on_message = hello, on_message
        self.pid = os.getpid()
        self.outbox = deque()
        self.standing = None  # the failure that is to be told to every new supervisor
        self.socket = None
        self.is_sent = True  # all of it
        self.is_greeted = False  # a supervisor has said welcome, and is there as far as is known
        self.counts = {"connected": 0, "dropped": 0, "garbage": 0, "failed": 0}
        self.wake_read, self.wake_write = os.pipe()
        for fd in (self.wake_read, self.wake_write):
            os.set_blocking(fd, False)
        os.register_at_fork(after_in_child=self.leave_in_child)

    def start(self, path):
        """A bare thread, as the heartbeat's: gone after a fork, not waited for at the end."""
        import _thread

        self.path = path
        _thread.start_new_thread(self.run, ())

    def leave_in_child(self):
        """A child that kept the descriptors would keep the connection of a parent that has died. It may fork as well: by then their
        numbers are others'."""
        held, self.wake_read, self.wake_write = (self.wake_read, self.wake_write), None, None
        for fd in held:
            if fd is not None:
                os.close(fd)
        if self.socket is not None:
            os.close(self.socket.detach())
        self.socket = None

    def send(self, message):
        """Has it sent soon, from any thread. Nothing is sent from a forked child."""
        if os.getpid() != self.pid:
            return
        if len(self.outbox) >= OUTBOX_MAX:
            self.drop("%d messages wait for the supervisor, which does not read" % OUTBOX_MAX)
            return
        self.outbox.append(message)
        self.is_sent = False
        try:
            os.write(self.wake_write, b"\0")
        except OSError:
            pass  # full: it wakes up anyway

    def flush(self):
        """Waits, within a bound, until all is sent: a process that is killed then has said it. Whether it is."""
        limit = time.monotonic() + FLUSH_SECONDS
        while not self.is_sent and time.monotonic() < limit:
            time.sleep(0.0005)
        return self.is_sent and self.is_greeted

    def drop(self, why):
        """Counts a message that is not sent, and says so the first time."""
        self.counts["dropped"] += 1
        if self.counts["dropped"] == 1:
            say("a message to the supervisor is dropped: %s" % why)

    def packed(self, message):
        """A message of this process's as bytes; of an answer that is too long, that it is; nothing of what else is."""
        try:
            return _frames.packed(message)
        except _frames.NoFrame as error:
            if "answer" in message:
                return _frames.packed({"answer": {"id": message["answer"]["id"], "error": "the answer is too long: %s" % error}})
            self.drop(error)
            return b""

    def run(self):
        import _signal

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
        """In one line, the first time of each kind; the others are counted."""
        kind = "garbage" if isinstance(error, _frames.NoFrame) else "failed"
        self.counts[kind] += 1
        if self.counts[kind] > 1:
            return
        if kind == "garbage":
            say("the supervisor sent what is no message (%s); the connection is made anew" % error)
        else:
            say("something has failed on the link to the supervisor, which goes on: %s: %s" % (type(error).__name__, error))

    def close(self):
        self.is_greeted = False
        self.outbox.clear()
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def converse(self):
        """One connection, from dialling to its end; whether the supervisor has said welcome."""
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
        poll.register(self.wake_read, select.POLLIN)
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
                    return greeted  # it is gone
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
        """Hands on all whole messages; whether there was one."""
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
    """With all of the exception's traceback."""
    import traceback

    say("%s:\n%s" % (text, "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()))


def say(text):
    try:
        sys.stderr.write("taskd: %s\n" % text)
    except Exception:
        pass
