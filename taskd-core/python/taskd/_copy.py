"""Bytes from the memory of a process that holds still into this one's: read directly where both are on one machine
(process_vm_readv), else over TCP in large pieces.

It knows addresses and lengths and nothing of what they mean. The process that gives serves only ranges that it has named.
"""

import errno
import os
import sys
import time

from taskd import _link

IOVECS_MAX = 512  # of one call; the kernel takes 1,024
CALL_BYTES_MAX = 1 << 30  # the kernel takes less than 2 GiB
PIECE_BYTES = 8 << 20  # of one request over TCP
TOKEN_BYTES = 16
REQUEST_BYTES = TOKEN_BYTES + 16
PR_SET_PTRACER, ANYBODY = 0x59616D61, 2**64 - 1
TCP_SECONDS = 30
AGAIN_SECONDS = 0.1  # after which a connection is accepted again, where that failed


class Unreadable(Exception):
    """The bytes do not come: whose, and why."""


def machine():
    """What is the same for processes that can name each other by pid."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return "%s %s" % (file.read().strip(), os.readlink("/proc/self/ns/pid"))
    except OSError:
        return "?"


def own_host():
    """Where other hosts reach this one: as TASKD_HOST says, else the address that this host has on the way to where ranks meet."""
    return os.environ.get("TASKD_HOST") or on_the_way_to(os.environ.get("MASTER_ADDR")) or "127.0.0.1"


def on_the_way_to(address):
    """This host's own address on its way to another's; None where there is no way, or it is a name. Nothing is sent."""
    import _socket

    try:
        socket = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC)
        try:
            _socket.inet_aton(address)
            socket.connect((address, 9))
            return socket.getsockname()[0]
        finally:
            socket.close()
    except (OSError, TypeError):
        return None


def block_signals():
    """They are for the program's own threads, not for this one."""
    import _signal

    _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())


class Server:
    """Gives ranges of this process's memory, until it is closed."""

    def __init__(self, ranges):
        import _socket
        import _thread

        self.token = os.urandom(TOKEN_BYTES)
        self.ranges = ranges
        self.allowed = False
        self.socket = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
        self.socket.settimeout(None)  # whatever the program has as its default
        self.socket.bind(("0.0.0.0", 0))
        self.socket.listen(64)
        _thread.start_new_thread(serve, (self.socket, self.token, ranges))

    def where(self):
        return {
            "pid": os.getpid(),
            "machine": machine(),
            "host": own_host(),
            "port": self.socket.getsockname()[1],
            "token": self.token,
        }

    def allow(self, pids):
        """Lets other processes of this user read here, where Yama asks for it."""
        try:
            with open("/proc/sys/kernel/yama/ptrace_scope") as file:
                asks = file.read().strip() == "1"
        except OSError:
            asks = False
        if asks:
            self.allowed = True
            prctl(PR_SET_PTRACER, pids[0] if len(pids) == 1 and pids[0] else ANYBODY)

    def close(self):
        if self.allowed:
            prctl(PR_SET_PTRACER, 0)
        try:
            self.socket.shutdown(2)  # SHUT_RDWR: whoever waits in accept is told
        except OSError:
            pass
        self.socket.close()


def prctl(what, value):
    import ctypes

    ctypes.CDLL(None).prctl(ctypes.c_int(what), ctypes.c_ulong(value), 0, 0, 0)


def serve(listener, token, ranges):
    import _thread
    import hmac  # noqa: F401  (ahead of `answer`, where there may be no descriptor to load it with)
    import socket

    block_signals()
    said = False
    while True:
        try:
            fd, _ = listener._accept()
            _thread.start_new_thread(answer, (socket.socket(fileno=fd), token, ranges))
        except (OSError, RuntimeError) as error:
            if getattr(error, "errno", None) in (errno.EINVAL, errno.EBADF):
                return  # it is closed
            if not said:  # no descriptor or no thread is left, for now: who waits has patience
                _link.say("this rank's state cannot be asked for: %s" % error)
            said = True
            time.sleep(AGAIN_SECONDS)


def answer(peer, token, ranges):
    import ctypes
    import hmac

    peer.settimeout(TCP_SECONDS)
    try:
        while True:
            request = exactly(peer, REQUEST_BYTES)
            address, length = (int.from_bytes(request[at : at + 8], "little") for at in (TOKEN_BYTES, TOKEN_BYTES + 8))
            known = any(start <= address and address + length <= start + size for start, size in ranges)
            if not hmac.compare_digest(request[:TOKEN_BYTES], token) or not known:
                return
            peer.sendall(memoryview((ctypes.c_char * length).from_address(address)).cast("B"))
    except (OSError, EOFError):
        pass  # the peer is gone, or has all
    finally:
        peer.close()


def exactly(peer, length):
    data = bytearray()
    while len(data) < length:
        more = peer.recv(length - len(data))
        if not more:
            raise EOFError
        data += more
    return bytes(data)


def read(moves, cancelled):
    """Carries out `[(where, [(address here, address there, bytes)])]`; how many bytes it was. Several peers at once."""
    import _thread

    jobs = []
    for where, ranges in moves:
        job = {"error": None, "done": _thread.allocate_lock()}
        job["done"].acquire()
        jobs.append(job)
        if len(moves) == 1:
            carry(where, ranges, cancelled, job)
        else:
            _thread.start_new_thread(carry, (where, ranges, cancelled, job))
    for job in jobs:
        job["done"].acquire()
    for job in jobs:
        if job["error"] is not None:
            raise job["error"]
    return sum(size for _, ranges in moves for _, _, size in ranges)


def carry(where, ranges, cancelled, job):
    try:
        ranges = [one for one in ranges if one[2]]
        is_here = where["machine"] == machine() != "?" and os.environ.get("TASKD_COPY") != "tcp"
        if not (is_here and read_directly(where["pid"], ranges, cancelled)):
            read_over_tcp(where, ranges, cancelled)
    except Exception as error:
        job["error"] = error
    finally:
        job["done"].release()


def read_directly(pid, ranges, cancelled):
    """Whether this process may read there; if not, nothing was read."""
    import ctypes

    class Iovec(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]

    call = ctypes.CDLL(None, use_errno=True).process_vm_readv
    call.restype = ctypes.c_ssize_t
    is_first = True
    for batch in batches(ranges):
        if cancelled():
            raise Unreadable("given up while reading from process %d" % pid)
        here, there = (Iovec * len(batch))(), (Iovec * len(batch))()
        for at, (own, theirs, size) in enumerate(batch):
            here[at].base, here[at].length = own, size
            there[at].base, there[at].length = theirs, size
        count = ctypes.c_ulong(len(batch))
        got, wanted = call(ctypes.c_int(pid), here, count, there, count, ctypes.c_ulong(0)), sum(one[2] for one in batch)
        if got != wanted:
            number = ctypes.get_errno()
            if is_first and got < 0 and number in (1, 38):  # EPERM, ENOSYS
                sys.stderr.write("taskd: the memory of process %d may not be read directly; over TCP then\n" % pid)
                return False
            raise Unreadable("process %d gave %d of %d bytes: %s" % (pid, max(got, 0), wanted, os.strerror(number)))
        is_first = False
    return True


def batches(ranges):
    """The ranges in portions that one call takes."""
    batch, total = [], 0
    for own, theirs, size in ranges:
        while size:
            part = min(size, CALL_BYTES_MAX - total)
            batch.append((own, theirs, part))
            own, theirs, size, total = own + part, theirs + part, size - part, total + part
            if total == CALL_BYTES_MAX or len(batch) == IOVECS_MAX:
                yield batch
                batch, total = [], 0
    if batch:
        yield batch


def read_over_tcp(where, ranges, cancelled):
    import ctypes
    import socket

    who = "process %d at %s:%d" % (where["pid"], where["host"], where["port"])
    try:
        with socket.create_connection((where["host"], where["port"]), TCP_SECONDS) as peer:
            for own, theirs, size in ranges:
                for at in range(0, size, PIECE_BYTES):
                    if cancelled():
                        raise Unreadable("given up while reading from %s" % who)
                    length = min(PIECE_BYTES, size - at)
                    peer.sendall(where["token"] + (theirs + at).to_bytes(8, "little") + length.to_bytes(8, "little"))
                    view = memoryview((ctypes.c_char * length).from_address(own + at)).cast("B")
                    while len(view):
                        got = peer.recv_into(view)
                        if not got:
                            raise Unreadable("%s closed the connection in the middle" % who)
                        view = view[got:]
    except OSError as error:
        raise Unreadable("%s does not give its state: %s" % (who, error))
