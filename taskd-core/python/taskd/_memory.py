"""Checkpoints in memory: every so many steps (TASKD_MEMORY_EVERY) a copy of all of this rank's state, where it outlives the process.

A file of the guard's (TASKD_MEMORY) has two slots. A copy goes into the one that was not declared: it begins between two steps, goes
on beside the next one, and is over before that changes parameters, which waits for it or has it dropped (TASKD_MEMORY_LATE).
When it is whole the supervisor is told, and when all ranks have told of the same, it declares it: only then is the other slot
overwritten. So there is always one step that is whole on all ranks. What was not written to its end is not read.

What is in a copy is the framework's: bytes for the head, and places in memory for the rest. It never waits for a disk or the
supervisor.
"""

import os
import struct
import zlib

from taskd import _link

SLOT_AT = 1 << 42  # where the second begins: the file takes what is written, and each slot can grow
HEAD = struct.Struct("<8sQQQQII")  # mark, generation, step, bytes of the head, bytes of the rest, their checksums
MARK = b"TASKDMM1"
PIECE_BYTES = 4 << 20  # that are copied before it is asked again whether the copy is still wanted
DROP = "drop"
LIMITS = (  # of memory, by those who may have set one: its file, and what is used of it
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)

newest = None  # the step of the newest copy that was begun in this process


class NoCopy(Exception):
    """Why there is none, in one sentence."""


class Slot:
    """One copy, or none."""

    def __init__(self, file, number):
        self.file, self.begin, self.map = file, number * SLOT_AT, None  # it is closed when its slots are gone
        self.key, self.sizes = None, (0, 0)  # (generation, step) of what is whole in it
        size = os.fstat(file.fileno()).st_size - self.begin
        if size >= HEAD.size:
            begin = os.pread(file.fileno(), HEAD.size, self.begin)
            mark, generation, step, head, rest, self.head_sum, self.rest_sum = HEAD.unpack(begin)
            if mark == MARK and HEAD.size + head + rest <= size:
                self.key, self.sizes = (generation, step), (head, rest)

    def room(self, size):
        """Has a map of that many bytes."""
        import mmap

        if self.map is None or len(self.map) < size:
            end = self.begin + size
            if os.fstat(self.file.fileno()).st_size < end:
                os.ftruncate(self.file.fileno(), end)
            self.map = mmap.mmap(self.file.fileno(), size, offset=self.begin)

    def write(self, key, head, pieces, wanted):
        """Copies `(address, bytes)` after the head; whether it has come to its end."""
        import ctypes

        rest = sum(size for _, size in pieces)
        self.forget()
        self.room(HEAD.size + len(head) + rest)
        self.map[HEAD.size : HEAD.size + len(head)] = head
        at, check = HEAD.size + len(head), 0
        here, view = ctypes.addressof(ctypes.c_char.from_buffer(self.map)), memoryview(self.map)
        for address, size in pieces:
            for done in range(0, size, PIECE_BYTES):
                if not wanted():
                    return False
                some = min(PIECE_BYTES, size - done)
                ctypes.memmove(here + at, address + done, some)
                check = zlib.crc32(view[at : at + some], check)
                at += some
        self.map[8 : HEAD.size] = HEAD.pack(MARK, *key, len(head), rest, zlib.crc32(head), check)[8:]
        self.map[:8] = MARK  # last of all
        self.key, self.sizes = key, (len(head), rest)
        return True

    def forget(self):
        """Nothing is whole in it any more."""
        self.key = None
        if os.fstat(self.file.fileno()).st_size > self.begin:
            os.pwrite(self.file.fileno(), b"\0" * 8, self.begin)

    def read(self):
        """`(head, rest)`: bytes, and a view of memory that is only to be read."""
        import mmap

        head, rest = self.sizes
        size = HEAD.size + head + rest
        memory = memoryview(mmap.mmap(self.file.fileno(), size, offset=self.begin, prot=mmap.PROT_READ))
        head, rest = memory[HEAD.size : HEAD.size + head], memory[HEAD.size + head :]
        if zlib.crc32(head) != self.head_sum or zlib.crc32(rest) != self.rest_sum:
            raise NoCopy("the copy of step %d in this rank's memory is damaged: its check sum is another" % self.key[1])
        return bytes(head), rest


def slots():
    """Those of this rank; none where the job keeps no copies."""
    path = os.environ.get("TASKD_MEMORY")
    if not path:
        return []
    file = open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b", buffering=0)
    return [Slot(file, 0), Slot(file, 1)]


def available():
    """Bytes of memory that can still be used here, as far as anybody says."""
    with open("/proc/meminfo") as file:
        found = [int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:")]
    for limit, used in LIMITS:
        try:
            with open(limit) as most, open(used) as now:
                found.append(int(most.read()) - int(now.read()))
        except (OSError, ValueError):
            pass  # no limit, or nobody says
    return min(found) if found else None


class Memory:
    """What this process keeps, from its step loop's begin to its end."""

    def __init__(self, session, every, late):
        import _thread

        self.session, self.every, self.late = session, every, late
        self.slots = slots()
        self.number = 0  # of what was said last
        self.pending = None  # the slot that was called whole, until all have said something
        self.declared = None  # the slot that may not be overwritten
        self.waits = any(slot.key for slot in self.slots)  # what was left here may be the one that all have
        self.lock = _thread.allocate_lock()  # of all this
        self.copying = _thread.allocate_lock()
        self.wanted = True
        self.waited = self.dropped = 0
        self.covers = None  # whether there is memory for it, as it was said last

    def begin(self, step, state):
        """A step begins: it may be one with whose state a copy is made. `state()` is `(head, [(address, bytes)], owner)`."""
        if step == 0 or step % self.every:
            return
        self.end(wait=True)
        if self.pending is not None or self.waits:
            return self.leave_out(step)
        slot = next(one for one in self.ordered() if one is not self.declared)
        try:
            head, pieces, owner = state()
            if not self.fits(HEAD.size + len(head) + sum(size for _, size in pieces)):
                return self.leave_out(step)
            global newest
            newest = step
            self.start(slot, (self.session.generation, step), head, pieces, owner)
        except Exception as error:  # nothing of the program's own fails over it
            _link.say("no copy of step %d is made in memory: %s: %s" % (step, type(error).__name__, error))
            self.leave_out(step)

    def start(self, *what):
        import _thread

        self.wanted = True
        self.copying.acquire()
        try:
            _thread.start_new_thread(self.copy, what)
        except BaseException:
            self.copying.release()
            raise

    def leave_out(self, step):
        with self.lock:
            self.dropped += 1
            self.say(step)

    def ordered(self):
        """The slots, those first of which least is lost."""
        return sorted(self.slots, key=lambda slot: slot.key or (0, 0))

    def fits(self, size):
        """Whether there is memory for two copies on all ranks of this host, besides what this rank's slots have already, and the
        others' will have. Said by one of them, and when there is none by all."""
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
        lacks = 2 * size - os.fstat(self.slots[0].file.fileno()).st_blocks * 512
        there = available() if lacks > 0 else None
        enough = there is None or there > lacks * ranks
        was, self.covers = self.covers, enough
        told = (size / 2**20, self.every, 2 * size * ranks / 2**20)
        if enough and not was and os.environ.get("LOCAL_RANK", "0") == "0":
            _link.say("%.1f MiB of state of each rank are copied to memory every %d steps: %.1f MiB of this host" % told)
        elif not enough and was is not False:
            told += (there / 2**20,)
            _link.say("%.1f MiB of state every %d steps would take %.1f MiB of memory, and %.1f are left: no copy" % told)
        return enough

    def copy(self, slot, key, head, pieces, owner):
        """On a thread of its own."""
        import _signal

        try:
            _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
            if slot.write(key, head, pieces, lambda: self.wanted):
                with self.lock:
                    self.pending = slot
                    self.say(key[1])
            else:
                self.leave_out(key[1])
        except Exception as error:
            _link.say("the copy of step %d to memory has failed: %s: %s" % (key[1], type(error).__name__, error))
            self.leave_out(key[1])
        finally:
            self.copying.release()

    def end(self, wait):
        """What is copied may change from now on: a copy under way comes to its end, or is dropped."""
        if self.copying.acquire(False):
            self.copying.release()
            return
        if wait:
            self.waited += 1
        self.wanted = wait
        self.copying.acquire()
        self.copying.release()

    def window_opens(self):
        self.end(wait=self.late != DROP)

    def given_up(self):
        """Nobody is to wait for a copy now."""
        self.end(wait=False)

    def say(self, step):
        """What there is when a step begins, or that there is nothing. Under the lock."""
        self.number += 1
        made_in, of = self.pending.key if self.pending is not None else (self.session.generation, step)
        self.session.link.send(
            {
                "memory": {
                    "generation": self.session.generation,
                    "number": self.number,
                    "at": step,
                    "of": {"made_in": made_in, "step": of},
                    "whole": self.pending is not None,
                    "bytes": sum(self.pending.sizes) if self.pending is not None else 0,
                    "waited": self.waited,
                    "dropped": self.dropped,
                }
            }
        )

    def say_again(self, step):
        """In a new world nobody knows what was said in the one before."""
        with self.lock:
            self.say(step)

    def on_declare(self, order):
        """On the link's thread."""
        number, whole = order.get("number"), order.get("whole") or {}
        declared = next((slot for slot in self.slots if slot.key == (whole.get("made_in"), whole.get("step"))), None)
        with self.lock:
            if declared is not None and declared is self.pending or number == self.number:
                self.declared, self.pending, self.waits = declared, None, False


def opened(session, step):
    """What this process keeps copies in from that step on; None where the job wants none, or there can be none, which is said."""
    every = os.environ.get("TASKD_MEMORY_EVERY", "")
    if not every.isdigit() or not int(every):
        return None
    if newest is not None and step <= newest:  # ranks would take different states for the same: a copy has its step's name
        told = "a loop before this one has come to step %d, and this one begins at %d: give taskd.steps the `start` of this one"
        _link.say("no copies of the state are kept in memory: " + told % (newest, step))
        return None
    try:
        memory = Memory(session, int(every), os.environ.get("TASKD_MEMORY_LATE"))
        if memory.slots:
            return memory
        why = "this launcher holds no memory for it"
    except (OSError, ValueError) as error:
        why = error
    _link.say("no copies of the state are kept in memory: %s" % why)
    return None
