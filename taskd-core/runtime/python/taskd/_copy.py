"""Copies memory of a waiting process into this one: directly (process_vm_readv) if both run on one machine, else over
TCP in large pieces.

This module handles addresses and lengths, not the meaning of the bytes. The source process serves only ranges that it
has named, and only to processes of its job (`_listener`).
"""

import os
import sys

from taskd import _auth, _listener

IOVECS_MAX = 512  # of one call; the kernel takes 1,024
CALL_BYTES_MAX = 1 << 30  # the kernel takes less than 2 GiB
PIECE_BYTES = 8 << 20  # of one request over TCP
PURPOSE = b"state"
REQUEST_BYTES = 16
PR_SET_PTRACER, ANY_PROCESS = 0x59616D61, 2**64 - 1
TCP_SECONDS = 30


class Unreadable(Exception):
    """Raised if the bytes cannot be read, with the process and the reason."""


def machine():
    """Returns a text that is equal for processes that can address each other by pid; "?" if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return "%s %s" % (file.read().strip(), os.readlink("/proc/self/ns/pid"))
    except OSError:
        return "?"


def own_host():
    """Returns the address at which other hosts reach this one: TASKD_HOST, else the local address of the route to
    MASTER_ADDR."""
    return os.environ.get("TASKD_HOST") or on_the_way_to(os.environ.get("MASTER_ADDR")) or "127.0.0.1"


def on_the_way_to(address):
    """Returns the local address of the route to an address; None for a name or without a route. Sends nothing."""
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
    """Blocks all signals in this thread: they are for the program's own threads."""
    import _signal  # pyright: ignore[reportMissingImports]

    _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())


class Server:
    """Serves ranges of this process's memory until it is closed."""

    def __init__(self, ranges):
        self.ranges, self.allowed = ranges, False
        self.listener = _listener.Listener(own_host(), PURPOSE, self.answer)

    def where(self):
        listener = self.listener
        return {
            "pid": os.getpid(),
            "machine": machine(),
            "host": own_host(),
            "port": listener.port(),
            "listener": listener.name,
        }

    def allow(self, pids):
        """Allows other processes of this user to read this memory, if Yama (ptrace_scope 1) requires that."""
        try:
            with open("/proc/sys/kernel/yama/ptrace_scope") as file:
                asks = file.read().strip() == "1"
        except OSError:
            asks = False
        if asks:
            self.allowed = True
            prctl(PR_SET_PTRACER, pids[0] if len(pids) == 1 and pids[0] else ANY_PROCESS)

    def close(self):
        if self.allowed:
            prctl(PR_SET_PTRACER, 0)
        self.listener.close()

    def answer(self, peer):
        """Serves the requests of one peer, on a thread of the listener."""
        import ctypes

        peer.settimeout(TCP_SECONDS)
        while True:
            request = _auth.exactly(peer, REQUEST_BYTES)
            address, length = (int.from_bytes(request[at : at + 8], "little") for at in (0, 8))
            if not any(start <= address and address + length <= start + size for start, size in self.ranges):
                return
            peer.sendall(memoryview((ctypes.c_char * length).from_address(address)).cast("B"))


def prctl(what, value):
    import ctypes

    ctypes.CDLL(None).prctl(ctypes.c_int(what), ctypes.c_ulong(value), 0, 0, 0)


def read(moves, cancelled):
    """Copies `[(where, [(address here, address there, bytes)])]`, all peers in parallel. Returns the byte count."""
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
        is_here = where["machine"] == machine() != "?" and os.environ.get("TASKD_STATE_TRANSFER") != "tcp"
        if not (is_here and read_directly(where["pid"], ranges, cancelled)):
            read_over_tcp(where, ranges, cancelled)
    except Exception as error:
        job["error"] = error
    finally:
        job["done"].release()


def read_directly(pid, ranges, cancelled):
    """Reads the ranges. Returns false if this process may not read there: then nothing was read."""
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
        got, wanted = (
            call(ctypes.c_int(pid), here, count, there, count, ctypes.c_ulong(0)),
            sum(one[2] for one in batch),
        )
        if got != wanted:
            number = ctypes.get_errno()
            if is_first and got < 0 and number in (1, 38):  # EPERM, ENOSYS
                sys.stderr.write("taskd: the memory of process %d may not be read directly; over TCP then\n" % pid)
                return False
            raise Unreadable("process %d gave %d of %d bytes: %s" % (pid, max(got, 0), wanted, os.strerror(number)))
        is_first = False
    return True


def batches(ranges):
    """Yields the ranges in portions that fit one call."""
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

    peer_name = "process %d at %s:%d" % (where["pid"], where["host"], where["port"])
    try:
        with _auth.dial((where["host"], where["port"]), where["listener"], PURPOSE, TCP_SECONDS) as peer:
            for own, theirs, size in ranges:
                for at in range(0, size, PIECE_BYTES):
                    if cancelled():
                        raise Unreadable("given up while reading from %s" % peer_name)
                    length = min(PIECE_BYTES, size - at)
                    peer.sendall((theirs + at).to_bytes(8, "little") + length.to_bytes(8, "little"))
                    view = memoryview((ctypes.c_char * length).from_address(own + at)).cast("B")
                    while len(view):
                        got = peer.recv_into(view)
                        if not got:
                            raise Unreadable("%s closed the connection in the middle" % peer_name)
                        view = view[got:]
    except OSError as error:
        raise Unreadable("%s does not give its state: %s" % (peer_name, error))
