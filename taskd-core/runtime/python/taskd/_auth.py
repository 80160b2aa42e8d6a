"""Authentication between the processes of a job, by the job's secret (TASKD_SECRET), which only the job's user and root
can read.

Values in a store are signed; a value without a signature, or with one of another generation, is not read. A process
that connects to a rank proves before its first request that it knows the secret, and the rank proves the same; the
secret itself is never sent.

Signatures are HMAC-SHA256 (RFC 2104), with keys derived from the secret: one for each generation's store, and one for
connections, which may outlive a generation. A proof names the listener that it is meant for, by a random name that the
listener has written to the store: a process that takes the port of a rank that has ended cannot pass a proof on to
another rank. Nothing is encrypted: a process that can read packets of the network can read what ranks send each other,
and one that can change packets can change it.
"""

import hmac
import os
import time

VARIABLE = "TASKD_SECRET"
SECRET_BYTES = 32
TAG_BYTES = 32
NONCE_BYTES = 16
TRIES = 3  # attempts to reach a rank


class NotOurs(OSError):
    """Raised for data that is not from a process of this job and generation, with its description in one sentence."""


CONNECTIONS = b"connections"  # a use of the secret


def store_of(generation):
    """Returns the use of the secret for values in a generation's store."""
    return b"store of generation %d" % generation


def key_of(use):
    """Returns the key for one use of the job's secret.

    Raises NotOurs if this process was started without a secret."""
    try:
        secret = bytes.fromhex(os.environ.get(VARIABLE, ""))
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise NotOurs(
            "this process has no secret of its job (%s), by which ranks of one job know each other" % VARIABLE
        )
    return hmac.digest(secret, b"taskd " + use, "sha256")


def tag_of(key, what, *parts):
    """Returns the signature of these parts for the purpose `what`. Different lists of parts are signed differently."""
    lengths = b"".join(len(part).to_bytes(8, "little") for part in (what,) + parts)
    return hmac.digest(key, lengths + what + b"".join(parts), "sha256")


class Store:
    """A store in which every value is signed, for its key and this part of the store, with the methods that taskd
    needs."""

    def __init__(self, inner, key, part):
        self.inner, self.key, self.part = inner, key, part.encode()

    def set(self, key, value):
        value = value.encode() if isinstance(value, str) else bytes(value)
        self.inner.set(key, tag_of(self.key, self.part, key.encode(), value) + value)

    def get(self, key):
        return self.checked(key, bytes(self.inner.get(key)))

    def checked(self, key, signed):
        tag, value = signed[:TAG_BYTES], signed[TAG_BYTES:]
        if not hmac.compare_digest(tag, tag_of(self.key, self.part, key.encode(), value)):
            raise NotOurs("%s in the store was not written by a process of this job: it is not read" % key)
        return value

    def check(self, keys):
        return self.inner.check(keys)


# Connections.


def dial(address, listener, purpose, seconds):
    """Returns a connection, for this purpose, to the listener of a rank of this job with this `name`. Its time limit
    stays `seconds`.

    Raises OSError, and NotOurs if another process listens there."""
    for tries_left in reversed(range(TRIES)):
        try:
            return dial_once(address, listener, purpose, seconds)
        except (EOFError, ConnectionResetError):  # if too many connections are unproved, the listener closes the oldest
            if not tries_left:
                raise NotOurs("what listens at %s:%d does not take this process for one of its job" % address[:2])


def dial_once(address, listener, purpose, seconds):
    import socket

    key, listener, until = key_of(CONNECTIONS), listener.encode(), time.monotonic() + seconds
    peer = socket.create_connection(address, seconds)
    try:
        theirs, own = exactly(peer, NONCE_BYTES, until), os.urandom(NONCE_BYTES)
        peer.sendall(own + tag_of(key, b"dials", purpose, listener, theirs, own))
        if not hmac.compare_digest(
            exactly(peer, TAG_BYTES, until), tag_of(key, b"listens", purpose, listener, theirs, own)
        ):
            raise NotOurs("what listens at %s:%d is no rank of this job" % address[:2])
        peer.settimeout(seconds)
        return peer
    except BaseException:
        peer.close()
        raise


class Welcome:
    """A connection that has not yet proved that it knows the key. Its methods never block."""

    def __init__(self, peer, key, purpose, listener):
        self.peer, self.key, self.purpose, self.listener = peer, key, purpose, listener.encode()
        self.nonce, self.came = os.urandom(NONCE_BYTES), bytearray()
        peer.setblocking(False)
        peer.send(self.nonce)  # there is room for that in any new connection

    def receive(self):
        """Reads from the connection. Returns true once it has proved that it knows the key.

        Raises OSError if the connection is closed, or the proof is wrong."""
        more = self.peer.recv(NONCE_BYTES + TAG_BYTES - len(self.came))
        if not more:
            raise ConnectionResetError
        self.came += more
        if len(self.came) < NONCE_BYTES + TAG_BYTES:
            return False
        theirs, tag = bytes(self.came[:NONCE_BYTES]), bytes(self.came[NONCE_BYTES:])
        if not hmac.compare_digest(tag, tag_of(self.key, b"dials", self.purpose, self.listener, self.nonce, theirs)):
            raise PermissionError
        self.peer.send(tag_of(self.key, b"listens", self.purpose, self.listener, self.nonce, theirs))
        return True


def exactly(peer, length, until=None):
    """Returns exactly `length` bytes. Raises EOFError if there are fewer, and TimeoutError after `until`."""
    data = bytearray()
    while len(data) < length:
        if until is not None:  # a socket's time limit is for each call, which may return one byte
            peer.settimeout(max(until - time.monotonic(), 0.001))
        more = peer.recv(length - len(data))
        if not more:
            raise EOFError
        data += more
    return bytes(data)
