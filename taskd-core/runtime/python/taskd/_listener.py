"""Listens for connections of other ranks of the job. Connections that have not proved the job's secret are limited in
number and time, and share one thread; each connection that has proved it gets its own thread.

This module does not read the data after the proof: `serve` does.
"""

import errno
import os
import time

from taskd import _auth, _link

UNKNOWN_MAX = 64  # connections without a proof; beyond that, the one that has waited longest is closed
UNKNOWN_SECONDS = 5  # time limit for the proof
# Connections that the kernel queues until they are accepted; beyond that, a rank has to wait seconds to try again.
BACKLOG = 1024
SERVED_MAX = 256  # concurrent connections of the job's ranks; further ones are closed, which is logged
AGAIN_SECONDS = 0.1  # pause before accepting again, if no descriptor is left


class Listener:
    """Listens at this host's own address on the job's network, until it is closed. `serve(socket)` is called for each
    connection of a process of the job, on its own thread, with a socket without a time limit; the socket is closed
    afterwards."""

    def __init__(self, host, purpose, serve):
        import _socket
        import _thread

        self.key, self.purpose, self.serve = _auth.key_of(_auth.CONNECTIONS), purpose, serve
        self.name = os.urandom(_auth.NONCE_BYTES).hex()  # unique to this listener
        self.unknown = {}  # descriptor: (Welcome, until when)
        self.served, self.lock = 0, _thread.allocate_lock()
        self.closed = 0  # connections closed without a proof, or beyond a limit
        self.logged = set()
        self.socket = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
        try:
            self.socket.bind((host, 0))
        except OSError as error:  # not an address of this host: others reach it by another route
            _link.say("%s is no address of this host (%s): this rank listens on all of them" % (host, error))
            self.socket.bind(("0.0.0.0", 0))
        self.socket.listen(BACKLOG)
        self.socket.setblocking(False)
        _thread.start_new_thread(self.run, ())

    def port(self):
        return self.socket.getsockname()[1]

    def close(self):
        try:
            self.socket.shutdown(2)  # SHUT_RDWR: wakes up the waiting thread
        except OSError:
            pass

    # On the thread.

    def run(self):
        import _signal  # pyright: ignore[reportMissingImports]
        import select

        _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())  # signals are for the program's own threads
        poll = select.poll()
        poll.register(self.socket.fileno(), select.POLLIN)
        try:
            while self.turn(poll):
                pass
        finally:
            for welcome, _ in self.unknown.values():
                welcome.peer.close()
            self.socket.close()

    def turn(self, poll):
        """Handles the next events. Returns true while the listener is open."""
        own, first = self.socket.fileno(), min((until for _, until in self.unknown.values()), default=None)
        wait = None if first is None else max(0, (first - time.monotonic()) * 1000 + 1)
        for fd, events in poll.poll(wait):
            if fd != own:
                self.receive(poll, fd)
            elif not self.accept(poll):
                return False
        for fd in [fd for fd, (_, until) in self.unknown.items() if until < time.monotonic()]:
            self.leaves(poll, fd)
        return True

    def accept(self, poll):
        import select
        import socket

        try:
            fd, _ = self.socket._accept()  # pyright: ignore[reportAttributeAccessIssue]
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EBADF):
                return False  # the listener is closed
            if self.unknown:
                self.leaves(poll, next(iter(self.unknown)))
                return True
            self.say_once("no connection of another rank can be accepted, for now: %s" % error)
            time.sleep(AGAIN_SECONDS)
            return True
        if len(self.unknown) >= UNKNOWN_MAX:
            self.leaves(poll, next(iter(self.unknown)))
        peer = socket.socket(fileno=fd)
        try:
            self.unknown[fd] = (
                _auth.Welcome(peer, self.key, self.purpose, self.name),
                time.monotonic() + UNKNOWN_SECONDS,
            )
            poll.register(fd, select.POLLIN)
        except OSError:
            self.unknown.pop(fd, None)
            peer.close()
        return True

    def receive(self, poll, fd):
        welcome, _ = self.unknown.get(fd, (None, None))
        if welcome is None:
            return
        try:
            if not welcome.receive():
                return
        except BlockingIOError:
            return
        except OSError:
            return self.leaves(poll, fd)
        poll.unregister(fd)
        del self.unknown[fd]
        self.begin(welcome.peer)

    def leaves(self, poll, fd):
        welcome, _ = self.unknown.pop(fd)
        poll.unregister(fd)
        welcome.peer.close()
        self.closed += 1
        self.say_once(
            "a connection was closed that has not shown the job's secret within %d s, or no right one" % UNKNOWN_SECONDS
        )

    def begin(self, peer):
        import _thread

        with self.lock:
            is_one_too_many = self.served >= SERVED_MAX
            self.served += not is_one_too_many
        if is_one_too_many:
            self.closed += 1
            self.say_once("more than %d ranks are connected here: further connections are closed" % SERVED_MAX)
            return peer.close()
        try:
            _thread.start_new_thread(self.serve_one, (peer,))
        except RuntimeError as error:  # no thread is left
            self.ends(peer)
            self.say_once("another rank cannot be served: %s" % error)

    def serve_one(self, peer):
        try:
            peer.settimeout(None)
            self.serve(peer)
        except (OSError, EOFError):
            pass  # the peer has ended, or has finished
        finally:
            self.ends(peer)

    def ends(self, peer):
        peer.close()
        with self.lock:
            self.served -= 1

    def say_once(self, what):
        if what not in self.logged:
            self.logged.add(what)
            _link.say(what)
