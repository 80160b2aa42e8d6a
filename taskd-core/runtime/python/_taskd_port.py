"""Takes over the launcher's listener at the rendezvous port, for the process that hosts the store.

The launcher listens at the port from the moment the port is chosen, so that no other process of the host can. It sends
its listener through a Unix socket (TASKD_PORT_SOCKET), once, and keeps no copy. A process that can use the listener
continues to listen; one that cannot closes it and binds the port itself at once. A request for another port, or a
second request, returns nothing and changes nothing.

Every Python process with a rank's environment may ask: a program may host its store in a process that it has started.

This module imports only what a socket needs, and must parse on Python 3.6 and later.
"""

import os

VARIABLE = "TASKD_PORT_SOCKET"
# For a supervisor that is busy or stopped: while it holds the port, no other process can listen there.
ANSWER_SECONDS = 30.0
HOST_BYTES_MAX = 1024
SO_NETNS_COOKIE = 71  # from Linux 5.14 on


class Listener:
    """The descriptor of a listening socket, and the host name by which others reach it (empty: any name)."""

    def __init__(self, fd, host):
        self.fd, self.host = fd, host

    def is_for(self, host):
        return self.host in ("", host) and is_of_this_network(self.fd)

    def close(self):
        fd, self.fd = self.fd, None
        if fd is not None:
            os.close(fd)


def take(port):
    """Returns the launcher's listener of this port; None if there is none: then the process listens itself as usual."""
    path = os.environ.get(VARIABLE)
    if not path or not isinstance(port, int) or not 0 < port < 1 << 16:
        return None
    try:
        return ask(path, port)
    except Exception as error:
        # A supervisor that has ended holds no port.
        if not isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
            say("the listener of port %d was not handed over: %s" % (port, error))
        return None


def here():
    """Reports to the launcher that this process is able to ask. After a start without such a report the next port gets
    no listener."""
    try:
        ask(os.environ[VARIABLE], 0, waits=False)
    except Exception:
        pass  # a later request fails as well, and reports it


def release(port):
    """Closes the launcher's listener of this port. The caller listens there next."""
    listener = take(port)
    if listener is not None:
        listener.close()


def ask(path, port, waits=True):
    import _socket

    # The path may be too long for a socket address.
    directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with_launcher = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
        try:
            with_launcher.settimeout(ANSWER_SECONDS)
            with_launcher.connect("/proc/self/fd/%d/%s" % (directory, os.path.basename(path)))
            with_launcher.sendall(b"%d\n" % port)
            return received(_socket, with_launcher) if waits else None
        finally:
            with_launcher.close()
    finally:
        os.close(directory)


def received(_socket, with_launcher):
    room = _socket.CMSG_SPACE(4)
    message, ancillary, _, _ = with_launcher.recvmsg(HOST_BYTES_MAX, room, _socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            fd = memoryview(content)[:4].cast("i")[0]
            try:
                with_launcher.recv(1)  # end of file: the launcher has no copy any more
            except BaseException:
                os.close(fd)
                raise
            return Listener(fd, message.decode("utf-8", "replace").rstrip("\n"))
    return None


def is_of_this_network(fd):
    """Returns true if the listener is in this process's network namespace: in a container with its own network, the
    launcher's port is a different one."""
    import _socket

    theirs = _socket.socket(fileno=fd)
    try:
        ours = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            cookies = [one.getsockopt(_socket.SOL_SOCKET, SO_NETNS_COOKIE, 8) for one in (theirs, ours)]
        finally:
            ours.close()
        return cookies[0] == cookies[1]
    except OSError:
        return True  # the kernel is too old for the option
    finally:
        theirs.detach()


def say(text):
    import sys

    try:
        sys.stderr.write("taskd: %s\n" % text)
    except Exception:
        pass
