"""How fast `taskd._copy` carries bytes from one process to another: on one machine, and between two network
namespaces."""

import ctypes
import json
import mmap
import os
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.environ["PYTHONPATH"].split(os.pathsep)[0])
os.environ["TASKD_SECRET"] = "5a" * 32


def address_of(memory):
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def plainly(pid, here, there, size):
    """One process_vm_readv, repeated where the kernel gives less."""

    class Iovec(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]

    call = ctypes.CDLL(None, use_errno=True).process_vm_readv
    call.restype = ctypes.c_ssize_t
    done = 0
    while done < size:
        own, theirs = Iovec(here + done, size - done), Iovec(there + done, size - done)
        got = call(pid, ctypes.byref(own), 1, ctypes.byref(theirs), 1, 0)
        if got <= 0:
            raise OSError(ctypes.get_errno(), "process_vm_readv")
        done += got


def filled(size):
    """Memory of which every page is another one."""
    memory = mmap.mmap(-1, size)
    for at in range(0, size, mmap.PAGESIZE):
        memory[at : at + 4] = (at // mmap.PAGESIZE).to_bytes(4, "little")
    return memory


def touched(size):
    """Memory of which no page has to be made any more."""
    memory = mmap.mmap(-1, size)
    for at in range(0, size, mmap.PAGESIZE):
        memory[at] = 1
    return memory


def seconds(do):
    before = time.perf_counter()
    do()
    return time.perf_counter() - before


class Parts:
    """The same of two memories: as many parts of one size as a state has tensors."""

    def __init__(self, size, tensors=200):
        self.source, self.here = filled(size), touched(size)
        self.tensors, self.part = tensors, size // tensors
        self.size = self.part * tensors
        self.own, self.there = address_of(self.here), address_of(self.source)
        self.ranges = [(self.there + self.part * at, self.part) for at in range(tensors)]

    def give(self, write, **also):
        """Serves the source, and writes its address into this pipe."""
        from taskd import _copy

        server = _copy.Server(self.ranges)
        server.allow([os.getppid()])
        where = dict(server.where(), **also)
        os.write(write, json.dumps(where).encode() + b"\n")
        return server

    def taken(self, read):
        """Where it is, and the moves that bring all of it here."""
        with os.fdopen(read) as file:
            where = json.loads(file.readline())
        moves = [(self.own + self.part * at, self.there + self.part * at, self.part) for at in range(self.tensors)]
        return where, [(where, moves)]

    def is_equal(self):
        """Whether all is here; from then on it is not."""
        equal = self.here[: self.size] == self.source[: self.size]
        self.here[: self.size] = bytes(self.size)
        return equal

    def rates(self, found):
        return {name: self.size / min(times) / 1e9 for name, times in found.items()}


def measure(size):
    from taskd import _copy

    parts = Parts(size)
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        server = parts.give(write)  # noqa: F841  (it is kept)
        time.sleep(3600)
    os.close(write)  # the reader sees the end of the pipe
    try:
        where, moves = parts.taken(read)
        found = {"plain": [], "ours": [], "tcp": []}
        for _ in range(3):
            found["plain"].append(seconds(lambda: plainly(pid, parts.own, parts.there, parts.size)))
            found["ours"].append(seconds(lambda: _copy.read(moves, lambda: False)))
        is_equal = parts.is_equal()
        os.environ["TASKD_STATE_TRANSFER"] = "tcp"
        found["tcp"].append(seconds(lambda: _copy.read(moves, lambda: False)))
        is_equal = is_equal and parts.is_equal()
        os.environ["TASKD_SECRET"] = "5b" * 32
        try:
            _copy.read([(where, moves[0][1])], lambda: False)
            refused = None
        except _copy.Unreadable as error:
            refused = str(error)
        rates = parts.rates(found)
        return {"gb_a_second": rates, "ratio": rates["ours"] / rates["plain"], "equal": is_equal, "refused": refused}
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


# Between two network namespaces.

CLONE_NEWNET = 0x40000000
LINK = "copy0"
ADDRESSES = ("10.213.77.1", "10.213.77.2")  # no other host is on this network
RECEIVE_BYTES = 1 << 20


class Host:
    """A process in a network namespace of its own."""

    def __init__(self, address, main):
        ready, self.is_ready = os.pipe()
        self.is_linked, linked = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            self.run(address, main)
        os.close(self.is_ready)
        os.close(self.is_linked)
        self.linked = linked
        with os.fdopen(ready) as file:
            self.why = file.read()

    def run(self, address, main):
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.unshare(CLONE_NEWNET):
                os.write(self.is_ready, b"no network namespace: " + os.strerror(ctypes.get_errno()).encode())
                os._exit(1)
            os.close(self.is_ready)
            os.read(self.is_linked, 1)
            for words in ("addr add %s/24 dev %s" % (address, LINK), "link set %s up" % LINK):
                subprocess.run(["ip", *words.split()], check=True)
            os.environ.update(TASKD_HOST=address, TASKD_STATE_TRANSFER="tcp")
            main()
        except BaseException as error:
            sys.stderr.write("%s: %s: %s\n" % (address, type(error).__name__, error))
        os._exit(1)

    def end(self):
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)


def send_plainly(listener, memory):
    while True:
        with listener.accept()[0] as peer:
            peer.sendall(memory)


def receive_plainly(where, memory):
    with socket.create_connection(where) as peer:
        at, size = 0, len(memory)
        while at < size:
            got = peer.recv_into(memory[at : at + RECEIVE_BYTES])
            if not got:
                raise EOFError
            at += got


def between_hosts(size):
    """Over TCP, beside as many bytes that are only sent and received. None where no namespaces can be made, and why."""
    parts = Parts(size)
    read, write = os.pipe()
    reader, writer = os.pipe()

    def gives():
        import _thread

        os.close(writer)
        listener = socket.create_server((ADDRESSES[0], 0))
        server = parts.give(write, plain=listener.getsockname()[1])  # noqa: F841  (it is kept)
        _thread.start_new_thread(send_plainly, (listener, memoryview(parts.source)[: parts.size]))
        time.sleep(3600)

    def takes():
        from taskd import _copy

        os.close(write)
        where, moves = parts.taken(read)
        found, is_equal = {"plain": [], "ours": []}, True
        for _ in range(3):
            here = memoryview(parts.here)[: parts.size]
            found["plain"].append(seconds(lambda: receive_plainly((where["host"], where["plain"]), here)))
            here.release()
            is_equal = parts.is_equal() and is_equal
            found["ours"].append(seconds(lambda: _copy.read(moves, lambda: False)))
            is_equal = parts.is_equal() and is_equal
        rates = parts.rates(found)
        os.write(
            writer,
            json.dumps({"gb_a_second": rates, "ratio": rates["ours"] / rates["plain"], "equal": is_equal}).encode(),
        )
        os._exit(0)

    hosts = [Host(address, main) for address, main in zip(ADDRESSES, (gives, takes))]
    try:
        why = next((host.why for host in hosts if host.why), None) or linked(*hosts)
        if why:
            return {"why": why}
        os.close(writer)
        os.close(write)
        with os.fdopen(reader) as file:
            return json.loads(file.read())
    finally:
        for host in hosts:
            host.end()


def linked(one, other):
    """Joins them by a link, whose ends go with them; why it cannot be, or None."""
    ends = "link add name %s netns %d type veth peer name %s netns %d" % (LINK, one.pid, LINK, other.pid)
    try:
        done = subprocess.run(["ip", *ends.split()], stderr=subprocess.PIPE, text=True)
    except OSError as error:
        return "ip: %s" % error
    for host in (one, other):
        os.write(host.linked, b"1")
        os.close(host.linked)
    return done.stderr.strip() if done.returncode else None
