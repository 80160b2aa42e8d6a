"""A client of a TCPStore, for the groups of a generation: torch's wire protocol over a plain socket.

torch's own client looks its address up in the name service at every connect, and so waits for seconds where that does not answer;
and where a server does not listen yet it falls into a back-off of half a second. This one does neither.

It knows what groups need of a store, and no more; whatever it is asked for beside it refuses.
"""

import _socket
import time
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

VALIDATE, SET, COMPARE_SET, GET, ADD, CHECK, WAIT, NUM_KEYS, DELETE, APPEND, MULTI_GET, MULTI_SET, CANCEL_WAIT = range(13)
MAGIC = 0x3C85F7CE  # with which a client begins
PREFIX = "/"  # that torch's client puts before every key
ANSWER_BYTES_MAX = 64 << 20
LARGE_BYTES = 1 << 20  # of a value that a store may refuse; as a rule it takes 8 MiB
CONNECT_PAUSE_SECONDS = 0.002  # between two tries
GRACE_SECONDS = 5  # beyond a wait's own limit, for the server's answer to a wait that is given up


class StoreError(RuntimeError):
    """The store does not answer: which, and why."""


class Client(dist.Store):
    """One connection. It is used by one thread at a time: others wait."""

    def __init__(self, host, port, seconds, cancelled=lambda: False):
        import _thread

        dist.Store.__init__(self)
        self.address, self.seconds, self.lock = (host, port), seconds, _thread.allocate_lock()
        self.broken = None  # why nothing is asked any more
        self.socket = self.connect(cancelled)
        self.request(VALIDATE, MAGIC.to_bytes(4, "little"))
        self.is_asked = False  # a request is under way

    def connect(self, cancelled):
        limit = time.monotonic() + self.seconds
        while True:
            one = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
            try:
                one.settimeout(self.seconds)
                one.connect(self.address)
                one.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
                return one
            except OSError as error:
                one.close()
                if cancelled() or time.monotonic() > limit:
                    raise StoreError("the store at %s:%d cannot be reached: %s" % (self.address + (error,)))
            time.sleep(CONNECT_PAUSE_SECONDS)

    def close(self):
        """Whoever waits in it is told."""
        try:
            self.socket.shutdown(2)  # SHUT_RDWR
        except OSError:
            pass

    # What the wire has.

    @contextmanager
    def exchange(self):
        """A request and its answer. Where they do not come to their end nothing else is asked: what is still on its way would be
        taken for the next one's answer."""
        with self.lock:
            if self.broken is not None:
                raise StoreError("%s; nothing more is asked of it" % self.broken)
            try:
                yield
            except BaseException as error:
                if self.is_asked:
                    self.broken = str(error) or "the store at %s:%d was not heard to the end" % self.address
                    self.close()
                raise
            finally:
                self.is_asked = False

    def request(self, kind, *parts):
        self.is_asked = True
        try:
            self.socket.sendall(bytes([kind]) + b"".join(parts))
        except OSError as error:
            raise StoreError("the store at %s:%d is gone: %s" % (self.address + (error,)))

    def exactly(self, length):
        if length > ANSWER_BYTES_MAX:
            raise StoreError("the store at %s:%d answers with %d bytes" % (self.address + (length,)))
        data = bytearray()
        while len(data) < length:
            try:
                more = self.socket.recv(length - len(data))
            except OSError as error:
                raise StoreError("the store at %s:%d does not answer: %s" % (self.address + (error,)))
            if not more:
                raise StoreError("the store at %s:%d has closed the connection" % self.address)
            data += more
        return bytes(data)

    def tell(self, kind, key, value):
        """What has no answer. A store refuses what is too long by closing the connection: that is found out here, ahead of
        whatever is asked next."""
        try:
            self.request(kind, name(key), packed(value))
            if len(value) > LARGE_BYTES:
                self.request(CHECK, names([key]))
                self.number(1)
        except StoreError as error:
            if len(value) <= LARGE_BYTES:
                raise
            raise StoreError("%s; it does not take %d bytes of %s, stores take 8 MiB as a rule" % (error, len(value), key))

    def number(self, length, signed=False):
        return int.from_bytes(self.exactly(length), "little", signed=signed)

    def value(self):
        return self.exactly(self.number(8))

    # What torch asks a store for.

    def set(self, key, value):
        with self.exchange():
            self.tell(SET, key, as_bytes(value))

    def get(self, key):
        self.wait([key])
        with self.exchange():
            self.request(GET, name(key))
            return self.value()

    def multi_get(self, keys):
        self.wait(keys)
        with self.exchange():
            self.request(MULTI_GET, names(keys))
            return [self.value() for _ in keys]

    def multi_set(self, keys, values):
        for key, value in zip(keys, values):
            self.set(key, value)

    def add(self, key, amount):
        with self.exchange():
            self.request(ADD, name(key), int(amount).to_bytes(8, "little", signed=True))
            return self.number(8, signed=True)

    def append(self, key, value):
        with self.exchange():
            self.tell(APPEND, key, as_bytes(value))

    def check(self, keys):
        with self.exchange():
            self.request(CHECK, names(keys))
            return self.number(1) == 0

    def wait(self, keys, timeout=None):
        seconds = self.seconds if timeout is None else timeout.total_seconds()
        with self.exchange():
            self.request(WAIT, names(keys))
            self.socket.settimeout(seconds)
            try:
                answer = self.exactly(1)
            except StoreError as error:
                if "timed out" not in str(error):
                    raise
                self.socket.settimeout(GRACE_SECONDS)
                self.request(CANCEL_WAIT)
                answer = self.exactly(1)
                if answer == b"\0":  # it came at the last moment, and the answer to the cancellation comes as well
                    self.exactly(1)
            finally:
                self.socket.settimeout(self.seconds)
        if answer != b"\0":
            raise StoreError("nobody has set %s in the store at %s:%d for %d s" % ((keys,) + self.address + (seconds,)))

    def delete_key(self, key):
        with self.exchange():
            self.request(DELETE, name(key))
            return self.number(8, signed=True) > 0

    def num_keys(self):
        with self.exchange():
            self.request(NUM_KEYS)
            return self.number(8, signed=True)

    def has_extended_api(self):
        return True

    def set_timeout(self, timeout):
        self.seconds = timeout.total_seconds()

    @property
    def timeout(self):
        return timedelta(seconds=self.seconds)


def as_bytes(value):
    return value.encode() if isinstance(value, str) else bytes(value)


def packed(data):
    return len(data).to_bytes(8, "little") + data


def name(key):
    return packed((PREFIX + key).encode())


def names(keys):
    return len(keys).to_bytes(8, "little") + b"".join(map(name, keys))
