"""The TCP sockets of this process: which ports it listens on, and the shutdown of those connections that a group made.

A socket of the program's own is never touched: a connection belongs to a group only if one of its ends is an address that a
member of the group listens on.
"""

import _socket
import os
from stat import S_ISSOCK


def sockets():
    """All sockets of this process, each as a duplicate that is closed when the next one is asked for."""
    for name in os.listdir("/proc/self/fd"):
        try:
            fd = int(name)
            if not S_ISSOCK(os.fstat(fd).st_mode):
                continue
            one = _socket.socket(fileno=os.dup(fd))
        except (OSError, ValueError):
            continue  # closed meanwhile
        try:
            if one.family in (_socket.AF_INET, _socket.AF_INET6) and one.type == _socket.SOCK_STREAM:
                yield one
        finally:
            one.close()


def listening():
    """The addresses on which this process listens."""
    found = set()
    for one in sockets():
        try:
            if one.getsockopt(_socket.SOL_SOCKET, _socket.SO_ACCEPTCONN):
                found.add(plain(one.getsockname()))
        except OSError:
            pass
    return found


def plain(address):
    """A socket's address as `(host, port)`; one of IPv4 in the clothes of IPv6 is one of IPv4."""
    host, port = address[:2]
    return host[7:] if host.startswith("::ffff:") else host, port


def shut(own, peers):
    """Shuts the connections down of which an end is an address of ours or of a peer; how many there were. Whoever waits for one
    of them is told at once, here and on the other side. Never the listening socket: gloo ends the process over that."""
    count = 0
    for one in sockets():
        try:
            if one.getsockopt(_socket.SOL_SOCKET, _socket.SO_ACCEPTCONN):
                continue
            if plain(one.getsockname()) in own or plain(one.getpeername()) in peers:
                one.shutdown(2)  # SHUT_RDWR
                count += 1
        except OSError:
            pass  # not connected any more
    return count
