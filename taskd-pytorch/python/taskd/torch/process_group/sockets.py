"""The TCP sockets of this process: the ports on which it listens, and the shutdown of the connections of a group.

A socket of the program is never touched: a connection belongs to a group only if one of its ends is an address on which
a member of the group listens.

The module calls libc, and makes no socket objects: Python's set a socket to blocking or not, by the program's default
time-out (`socket.setdefaulttimeout`), for every owner of a descriptor of it.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from stat import S_ISSOCK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ADDRESS_BYTES_MAX = 128  # size of a sockaddr_storage
SHUT_RDWR = 2

libc = ctypes.PyDLL(None, use_errno=True)  # none of these calls blocks, so each keeps the interpreter's lock


class Descriptor:
    """A duplicate of a socket's descriptor, which shares everything but its number with the original."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def option(self, name: int) -> int:
        value, length = ctypes.c_int(), ctypes.c_uint32(ctypes.sizeof(ctypes.c_int))
        checked(libc.getsockopt(self.fd, socket.SOL_SOCKET, name, ctypes.byref(value), ctypes.byref(length)))
        return value.value

    def is_tcp(self) -> bool:
        families = socket.AF_INET, socket.AF_INET6
        return self.option(socket.SO_TYPE) == socket.SOCK_STREAM and self.option(socket.SO_DOMAIN) in families

    def listens(self) -> bool:
        return self.option(socket.SO_ACCEPTCONN) == 1

    def own_address(self) -> tuple[str, int]:
        return self.address(libc.getsockname)

    def peer_address(self) -> tuple[str, int]:
        return self.address(libc.getpeername)

    def address(self, ask: Any) -> tuple[str, int]:
        """Returns `(host, port)`. An IPv4 address in IPv6 notation is returned as IPv4."""
        data, length = ctypes.create_string_buffer(ADDRESS_BYTES_MAX), ctypes.c_uint32(ADDRESS_BYTES_MAX)
        checked(ask(self.fd, data, ctypes.byref(length)))
        raw = data.raw
        family, port = int.from_bytes(raw[:2], sys.byteorder), int.from_bytes(raw[2:4], "big")
        host = socket.inet_ntop(family, raw[4:8] if family == socket.AF_INET else raw[8:24])
        return host[7:] if host.startswith("::ffff:") else host, port

    def shut(self) -> None:
        checked(libc.shutdown(self.fd, SHUT_RDWR))


def checked(result: Any) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def sockets() -> Any:
    """Yields all TCP sockets of this process, each as a duplicate that is closed when the next one is requested.

    Other descriptors are not duplicated: closing any descriptor of a file releases all locks of the process on the file
    (`lockf`)."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            fd = os.dup(int(name))
        except (OSError, ValueError):
            continue  # closed in the meantime
        try:
            one = Descriptor(fd)
            if one.is_tcp():
                yield one
        except OSError:
            pass  # a kind of socket without these options
        finally:
            os.close(fd)


def listening() -> Any:
    """Returns the addresses on which this process listens."""
    found = set()
    for one in sockets():
        try:
            if one.listens():
                found.add(one.own_address())
        except OSError:
            pass
    return found


def shut(own: Any, peers: Any) -> int:
    """Shuts down the connections with an own or a peer's address at an end; returns their number. A wait for one of
    them ends at once, at both ends. Listening sockets are skipped: gloo ends the process if one is shut down."""
    count = 0
    for one in sockets():
        try:
            if not one.listens() and (one.own_address() in own or one.peer_address() in peers):
                one.shut()
                count += 1
        except OSError:
            pass  # no longer connected
    return count
