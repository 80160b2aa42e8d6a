"""The TCP sockets of this process: which ports it listens on, and the shutdown of those connections that a group made.

A socket of the program's own is never touched: a connection belongs to a group only if one of its ends is an address that a
member of the group listens on.

It asks libc, and makes no socket objects: those of Python set a socket to wait or not to, as the program's default time-out says
(`socket.setdefaulttimeout`), for all who have a descriptor of it.
"""

import ctypes
import os
import socket
import sys
from stat import S_ISSOCK

ADDRESS_BYTES_MAX = 128  # of a sockaddr_storage
SHUT_RDWR = 2

libc = ctypes.PyDLL(None, use_errno=True)  # none of these calls waits, so each keeps the interpreter's lock


class Descriptor:
    """A duplicate of a socket's descriptor, which shares with it all but its number."""

    def __init__(self, fd):
        self.fd = fd

    def option(self, name):
        value, length = ctypes.c_int(), ctypes.c_uint32(ctypes.sizeof(ctypes.c_int))
        checked(libc.getsockopt(self.fd, socket.SOL_SOCKET, name, ctypes.byref(value), ctypes.byref(length)))
        return value.value

    def is_tcp(self):
        families = socket.AF_INET, socket.AF_INET6
        return self.option(socket.SO_TYPE) == socket.SOCK_STREAM and self.option(socket.SO_DOMAIN) in families

    def listens(self):
        return self.option(socket.SO_ACCEPTCONN) == 1

    def own_address(self):
        return self.address(libc.getsockname)

    def peer_address(self):
        return self.address(libc.getpeername)

    def address(self, ask):
        """As `(host, port)`. An address of IPv4 as one of IPv6 has it is one of IPv4."""
        data, length = ctypes.create_string_buffer(ADDRESS_BYTES_MAX), ctypes.c_uint32(ADDRESS_BYTES_MAX)
        checked(ask(self.fd, data, ctypes.byref(length)))
        raw = data.raw
        family, port = int.from_bytes(raw[:2], sys.byteorder), int.from_bytes(raw[2:4], "big")
        host = socket.inet_ntop(family, raw[4:8] if family == socket.AF_INET else raw[8:24])
        return host[7:] if host.startswith("::ffff:") else host, port

    def shut(self):
        checked(libc.shutdown(self.fd, SHUT_RDWR))


def checked(result):
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def sockets():
    """All TCP sockets of this process, each as a duplicate that is closed when the next one is asked for.

    What is no socket is not duplicated: who closes any descriptor of a file gives up all locks that the process has on it (`lockf`)."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            fd = os.dup(int(name))
        except (OSError, ValueError):
            continue  # closed meanwhile
        try:
            one = Descriptor(fd)
            if one.is_tcp():
                yield one
        except OSError:
            pass  # of a kind that does not tell this
        finally:
            os.close(fd)


def listening():
    """The addresses on which this process listens."""
    found = set()
    for one in sockets():
        try:
            if one.listens():
                found.add(one.own_address())
        except OSError:
            pass
    return found


def shut(own, peers):
    """Shuts the connections down of which an end is an address of ours or of a peer; how many there were. Whoever waits for one
    of them is told at once, here and on the other side. Never the listening socket: gloo ends the process over that."""
    count = 0
    for one in sockets():
        try:
            if not one.listens() and (one.own_address() in own or one.peer_address() in peers):
                one.shut()
                count += 1
        except OSError:
            pass  # not connected any more
    return count
