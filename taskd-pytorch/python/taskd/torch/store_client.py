"""Client of a TCPStore, for the groups of a generation: torch's wire protocol over a plain socket.

torch's own client looks its address up in the name service at every connection, and waits for seconds if the service
does not answer. If the server does not listen yet, it backs off for half a second. This client does neither.

It has the requests that groups need, and refuses all others.
"""

from __future__ import annotations

import _socket
import time
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

VALIDATE, SET, COMPARE_SET, GET, ADD, CHECK, WAIT, NUM_KEYS, DELETE, APPEND, MULTI_GET, MULTI_SET, CANCEL_WAIT = range(
    13
)
MAGIC = 0x3C85F7CE  # the first value that a client sends
PREFIX = "/"  # torch's client puts it before every key
ANSWER_BYTES_MAX = 64 << 20
LARGE_BYTES = 1 << 20  # a store may refuse a larger value; most stores accept 8 MiB
CONNECT_PAUSE_SECONDS = 0.002  # between two tries
GRACE_SECONDS = 5  # after a wait's own limit, for the server's answer to a cancelled wait


class StoreError(RuntimeError):
    """The store does not answer. The text contains the address and the reason."""


class Client(dist.Store):
    """One connection. One thread uses it at a time, and others wait."""

    def __init__(self, host: str, port: int, seconds: float, cancelled: Callable[[], bool] = lambda: False) -> None:
        import _thread

        dist.Store.__init__(self)
        self.address, self.seconds, self.lock = (host, port), seconds, _thread.allocate_lock()
        self.broken = None  # the reason why no request is sent any more
        self.socket = self.connect(cancelled)
        self.request(VALIDATE, MAGIC.to_bytes(4, "little"))
        self.is_asked = False  # a request is under way

    def connect(self, cancelled: Callable[[], bool]) -> Any:
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

    def close(self) -> None:
        """Ends the connection. A thread that waits for an answer gets an error."""
        try:
            self.socket.shutdown(2)  # SHUT_RDWR
        except OSError:
            pass

    # Wire protocol.

    @contextmanager
    def exchange(self) -> Any:
        """Context of a request and its answer. If it is not completed, no other request is sent: the rest of the answer
        would be taken for the answer to the next one."""
        with self.lock:
            if self.broken is not None:
                raise StoreError("%s; nothing more is asked of it" % self.broken)
            try:
                yield
            except BaseException as error:
                if self.is_asked:
                    self.broken = str(error) or "the store at %s:%d did not answer completely" % self.address
                    self.close()
                raise
            finally:
                self.is_asked = False

    def request(self, kind: Any, *parts: Any) -> None:
        self.is_asked = True
        try:
            self.socket.sendall(bytes([kind]) + b"".join(parts))
        except OSError as error:
            raise StoreError("the store at %s:%d is gone: %s" % (self.address + (error,)))

    def exactly(self, length: int) -> bytes:
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

    def send_request(self, kind: Any, key: Any, value: Any) -> None:
        """Sends a request without an answer. A store refuses a value that is too long by closing the connection: this
        is detected here, before the next request."""
        try:
            self.request(kind, name(key), packed(value))
            if len(value) > LARGE_BYTES:
                self.request(CHECK, names([key]))
                self.number(1)
        except StoreError as error:
            if len(value) <= LARGE_BYTES:
                raise
            raise StoreError(
                "%s; it does not take %d bytes of %s, stores take 8 MiB as a rule" % (error, len(value), key)
            )

    def number(self, length: int, signed: bool = False) -> int:
        return int.from_bytes(self.exactly(length), "little", signed=signed)

    def value(self) -> bytes:
        return self.exactly(self.number(8))

    # Requests that torch makes.

    def set(self, key: Any, value: Any) -> None:
        with self.exchange():
            self.send_request(SET, key, as_bytes(value))

    def get(self, key: Any) -> bytes:
        self.wait([key])
        with self.exchange():
            self.request(GET, name(key))
            return self.value()

    def multi_get(self, keys: Any) -> list[bytes]:
        self.wait(keys)
        with self.exchange():
            self.request(MULTI_GET, names(keys))
            return [self.value() for _ in keys]

    def multi_set(self, keys: Any, values: Any) -> None:
        for key, value in zip(keys, values):
            self.set(key, value)

    def add(self, key: Any, amount: Any) -> int:
        with self.exchange():
            self.request(ADD, name(key), int(amount).to_bytes(8, "little", signed=True))
            return self.number(8, signed=True)

    def append(self, key: Any, value: Any) -> None:
        with self.exchange():
            self.send_request(APPEND, key, as_bytes(value))

    def check(self, keys: Any) -> bool:
        with self.exchange():
            self.request(CHECK, names(keys))
            return self.number(1) == 0

    def wait(self, keys: Any, timeout: Any = None) -> None:
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
                if answer == b"\0":  # the key was set at the last moment, and the answer to the cancellation follows
                    self.exactly(1)
            finally:
                self.socket.settimeout(self.seconds)
        if answer != b"\0":
            raise StoreError("no rank has set %s in the store at %s:%d in %d s" % ((keys,) + self.address + (seconds,)))

    def delete_key(self, key: Any) -> bool:
        with self.exchange():
            self.request(DELETE, name(key))
            return self.number(8, signed=True) > 0

    def num_keys(self) -> int:
        with self.exchange():
            self.request(NUM_KEYS)
            return self.number(8, signed=True)

    def has_extended_api(self) -> bool:
        return True

    def set_timeout(self, timeout: Any) -> None:
        self.seconds = timeout.total_seconds()

    @property
    def timeout(self) -> Any:
        return timedelta(seconds=self.seconds)


def as_bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def packed(data: Any) -> Any:
    return len(data).to_bytes(8, "little") + data


def name(key: Any) -> Any:
    return packed((PREFIX + key).encode())


def names(keys: Any) -> bytes:
    return len(keys).to_bytes(8, "little") + b"".join(map(name, keys))
