"""Checkpoints in memory: every TASKD_IN_MEMORY_CHECKPOINT_EVERY steps a copy of this rank's whole state, in memory that
outlives the process.

A file of the guard (TASKD_IN_MEMORY_CHECKPOINT) has two slots. A copy is written to the slot that was not declared. It
begins between two steps, continues during the next step, and ends before that step changes parameters: the step waits
for the copy, or drops it (TASKD_IN_MEMORY_CHECKPOINT_LATE). A complete copy is reported to the supervisor. When all
ranks have reported the same step, the supervisor declares it: only then is the other slot overwritten. So there is
always one step that is complete on all ranks. An incomplete copy is not read.

If the job has several hosts, a rank on another one holds a second copy (`_second_copies`), and a copy is reported once
that is complete, too.

The framework defines the content of a copy: bytes for the head, and memory ranges for the rest. This module never waits
for a disk or the supervisor.
"""

import os
import struct
import zlib

from taskd import _link

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SLOT_AT = 1 << 42  # offset of the second slot: the file is sparse, and each slot can grow
HEAD = struct.Struct("<8sQQQQII")  # mark, generation, step, bytes of the head, bytes of the rest, their checksums
MARK = b"TASKDMM1"
PIECE_BYTES = 4 << 20  # copied between two checks whether the copy is still wanted
DROP = "drop"
LIMITS = (  # limits of memory, for cgroup v2 and v1: the file of the limit, and the file of the use
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)

newest = None  # step of the newest copy that this process has begun
# (generation, step) of the copy with which this process has begun, as have all ranks: whatever was declared in earlier
# generations, this one is complete on all of them
loaded = None


class NoCopy(Exception):
    """Raised if there is no valid copy, with the reason in one sentence."""


class Slot:
    """A slot of the file, with one copy or none: one of the two of this rank, or of another rank from `begin` on."""

    def __init__(self, file, number, begin=None):
        self.file, self.number = file, number  # closed when its slots are freed
        self.map: Any = None
        self.begin = number * SLOT_AT if begin is None else begin
        self.key, self.sizes, self.sums = None, (0, 0), (0, 0)  # (generation, step) of the complete copy
        size = os.fstat(file.fileno()).st_size - self.begin
        if size >= HEAD.size:
            begin = os.pread(file.fileno(), HEAD.size, self.begin)
            mark, generation, step, head, rest, *sums = HEAD.unpack(begin)
            if mark == MARK and HEAD.size + head + rest <= size:
                self.key, self.sizes, self.sums = (generation, step), (head, rest), tuple(sums)

    def room(self, size):
        """Maps at least this many bytes."""
        import mmap

        if self.map is None or len(self.map) < size:
            end = self.begin + size
            if os.fstat(self.file.fileno()).st_size < end:
                os.ftruncate(self.file.fileno(), end)
            self.map = mmap.mmap(self.file.fileno(), size, offset=self.begin)

    def write(self, key, head, pieces, wanted):
        """Writes the head and the pieces `(address, bytes)`. Returns true if the copy is complete, false if `wanted()`
        became false."""
        import ctypes

        rest = sum(size for _, size in pieces)
        self.forget()
        self.room(HEAD.size + len(head) + rest)
        self.map[HEAD.size : HEAD.size + len(head)] = head
        at, check = HEAD.size + len(head), 0
        here, view = ctypes.addressof(ctypes.c_char.from_buffer(self.map)), memoryview(self.map)  # pyright: ignore[reportArgumentType]
        for address, size in pieces:
            for done in range(0, size, PIECE_BYTES):
                if not wanted():
                    return False
                some = min(PIECE_BYTES, size - done)
                ctypes.memmove(here + at, address + done, some)
                check = zlib.crc32(view[at : at + some], check)
                at += some
        self.is_whole(key, (len(head), rest), (zlib.crc32(head), check))
        return True

    def take(self, key, sizes, sums, fill):
        """Takes a copy that another process has: `fill(address, bytes)` writes its head and its rest there.

        Raises NoCopy if a check sum differs then."""
        self.forget()
        self.room(HEAD.size + sum(sizes))
        fill(self.address()[0] + HEAD.size, sum(sizes))
        self.sizes = sizes
        with self.content() as content:
            if (zlib.crc32(content[: sizes[0]]), zlib.crc32(content[sizes[0] :])) != sums:
                raise NoCopy("the copy of step %d has changed on its way: its check sum is another" % key[1])
        self.is_whole(key, sizes, sums)

    def is_whole(self, key, sizes, sums):
        """Makes the copy valid."""
        self.map[8 : HEAD.size] = HEAD.pack(MARK, *key, *sizes, *sums)[8:]
        self.map[:8] = MARK  # last
        self.key, self.sizes, self.sums = key, sizes, sums

    def content(self):
        """Returns a view of the head and the rest."""
        self.room(HEAD.size + sum(self.sizes))
        return memoryview(self.map)[HEAD.size : HEAD.size + sum(self.sizes)]

    def address(self):
        """Returns the slot's address in this process, and the bytes there up to the end of the copy."""
        import ctypes

        self.room(HEAD.size + sum(self.sizes))
        return ctypes.addressof(ctypes.c_char.from_buffer(self.map)), HEAD.size + sum(self.sizes)

    def taken(self):
        """Returns the bytes that are mapped, as a lower limit of the memory that the slot has."""
        return len(self.map) if self.map is not None else 0

    def free(self):
        """Gives the slot's memory back."""
        import mmap

        end = os.fstat(self.file.fileno()).st_size
        size = min(HEAD.size + sum(self.sizes), max(end - self.begin, 0))
        if size:
            with mmap.mmap(self.file.fileno(), size, offset=self.begin) as memory:
                memory.madvise(mmap.MADV_REMOVE)
        self.map, self.sizes = None, (0, 0)

    def forget(self):
        """Invalidates the copy."""
        self.key = None
        if os.fstat(self.file.fileno()).st_size > self.begin:
            os.pwrite(self.file.fileno(), b"\0" * 8, self.begin)

    def read(self):
        """Returns `(head, rest)`: bytes, and a read-only view of memory. Raises NoCopy if a check sum differs."""
        import mmap

        head, rest = self.sizes
        size = HEAD.size + head + rest
        memory = memoryview(mmap.mmap(self.file.fileno(), size, offset=self.begin, prot=mmap.PROT_READ))
        head, rest = memory[HEAD.size : HEAD.size + head], memory[HEAD.size + head :]
        if (zlib.crc32(head), zlib.crc32(rest)) != self.sums:
            raise NoCopy("the copy of step %d in this rank's memory is damaged: its check sum is another" % self.key[1])
        return bytes(head), rest


def slots():
    """Returns the two slots of this rank; none if the job keeps no copies."""
    path = os.environ.get("TASKD_IN_MEMORY_CHECKPOINT")
    if not path:
        return []
    file = open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b", buffering=0)
    return [Slot(file, 0), Slot(file, 1)]


def available():
    """Returns the free memory in bytes, within the cgroup's limits; None if unknown."""
    with open("/proc/meminfo") as file:
        found = [int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:")]
    for limit, used in LIMITS:
        try:
            with open(limit) as most, open(used) as now:
                found.append(int(most.read()) - int(now.read()))
        except (OSError, ValueError):
            pass  # no limit, or no such file
    return min(found) if found else None


class Memory:
    """The in-memory checkpoints of this process, from the beginning of its step loop to the end."""

    def __init__(self, session, every, late, second=None):
        """`second` sends copies to another host (`_second_copies`); None: they are on this one alone."""
        import _thread

        self.session, self.every, self.late, self.second = session, every, late, second
        self.slots = slots()
        self.number = 0  # of the last report
        self.began_in = session.generation
        self.pending = None  # the slot reported as complete, until all ranks have reported
        self.declared = None  # the slot that must not be overwritten
        self.waits = any(slot.key for slot in self.slots)  # an earlier copy may be the one that all ranks have
        self.sending = False  # a copy is being sent to another host: no slot is overwritten meanwhile
        self.lock = _thread.allocate_lock()  # of the fields above
        self.copying = _thread.allocate_lock()
        self.wanted = True
        self.waited = self.dropped = 0
        self.covers = None  # whether there is memory for the copies, as last logged

    def begin(self, step, state):
        """Begins a copy if this step is due for one. `state()` returns `(head, [(address, bytes)], owner)`."""
        if step == 0 or step % self.every:
            return
        self.end(wait=True)
        if self.pending is not None or self.waits or self.sending:
            return self.leave_out(step)
        slot = next(one for one in self.ordered() if one is not self.declared)
        try:
            head, pieces, owner = state()
            if not self.fits(HEAD.size + len(head) + sum(size for _, size in pieces)):
                return self.leave_out(step)
            global newest
            newest = step
            self.start(slot, (self.session.generation, step), head, pieces, owner)
        except Exception as error:  # the program must not fail because of a copy
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
        """Returns the slots, the empty or oldest first."""
        return sorted(self.slots, key=lambda slot: slot.key or (0, 0))

    def fits(self, size):
        """Returns true if there is memory for two copies of all ranks of this host, and for as many of other hosts'
        ranks if there are second copies. Memory that this rank's slots use already counts, and the same is assumed of
        the others. One rank logs that there is, each rank that there is not."""
        ranks, copies = int(os.environ.get("LOCAL_WORLD_SIZE") or 1), 2 if self.second is None else 4
        lacks = copies * size - os.fstat(self.slots[0].file.fileno()).st_blocks * 512
        there = available() if lacks > 0 else None
        enough = there is None or there > lacks * ranks
        was, self.covers = self.covers, enough
        figures = (size / 2**20, self.every, copies * size * ranks / 2**20)
        if enough and not was and os.environ.get("LOCAL_RANK", "0") == "0":
            _link.say(
                "%.1f MiB of state of each rank are copied to memory every %d steps: %.1f MiB of this host" % figures
            )
        elif not enough and was is not False:
            figures += (there / 2**20,)
            _link.say(
                "%.1f MiB of state every %d steps would take %.1f MiB of memory, and %.1f are left: no copy" % figures
            )
        return enough

    def copy(self, slot, key, head, pieces, owner):
        """Writes a copy, on its own thread."""
        import _signal  # pyright: ignore[reportMissingImports]

        try:
            _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
            if slot.write(key, head, pieces, lambda: self.wanted):
                self.sending = True  # before the lock is released: the next copy may be due
            else:
                self.leave_out(key[1])
        except Exception as error:
            _link.say("the copy of step %d to memory has failed: %s: %s" % (key[1], type(error).__name__, error))
            self.leave_out(key[1])
        finally:
            self.copying.release()
        if self.sending:
            self.sends(slot)
            with self.lock:
                self.pending, self.sending = slot, False
                self.say(key[1])

    def sends(self, slot):
        """Sends a copy to another host. No failure of that is this host's copy's."""
        try:
            if self.second is not None:
                self.second.send(slot, [one for one in self.slots if one.key and one is not slot])
        except Exception as error:
            _link.say("the copy of step %d cannot be sent: %s: %s" % (slot.key[1], type(error).__name__, error))

    def send_again(self):
        """Sends the newest copy of an earlier process to another host, unless it is there: the rank that held it may be
        lost."""
        import _thread

        complete = [slot for slot in self.ordered() if slot.key]
        if self.second is None or not complete:
            return
        self.sending = True
        try:
            _thread.start_new_thread(self.copy_again, (complete[-1],))
        except RuntimeError:  # no thread is left
            self.sending = False

    def copy_again(self, slot):
        import _signal  # pyright: ignore[reportMissingImports]

        _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
        self.sends(slot)
        self.sending = False

    def end(self, wait):
        """Ends a copy in progress, before the state may change: waits for its end, or drops it."""
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
        """Drops a copy in progress: an abort must not wait for it."""
        self.end(wait=False)

    def say(self, step):
        """Reports the copy at the beginning of a step, or that there is none. The caller holds the lock."""
        self.number += 1
        made_in, of = self.pending.key if self.pending is not None else (self.session.generation, step)
        self.session.link.send(
            {
                "in-memory-checkpoint": {
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
        """Reports again in a new world, where the reports of the previous one are not known."""
        with self.lock:
            self.say(step)

    def on_commit(self, order):
        """Handles the supervisor's declaration, on the link's thread."""
        number, whole = order.get("number"), order.get("whole") or {}
        key = whole.get("made_in"), whole.get("step")
        if loaded is not None and (key[0] or 0) < self.began_in:
            key = loaded
        declared = next((slot for slot in self.slots if slot.key == key), None)
        with self.lock:
            if declared is not None and declared is self.pending or number == self.number:
                self.declared, self.pending, self.waits = declared, None, False
        if declared is not None and self.second is not None:
            self.second.committed(declared.key)


def opened(session, step, second=None):
    """Returns the `Memory` for copies from this step on; None if the job wants none, or if there can be none, which is
    logged."""
    every = os.environ.get("TASKD_IN_MEMORY_CHECKPOINT_EVERY", "")
    if not every.isdigit() or not int(every):
        return None
    # A copy is identified by its step: ranks would take different states for the same one.
    if newest is not None and step <= newest:
        why = (
            "a loop before this one has come to step %d, and this one begins at %d: give "
            "taskd.steps the `start` of this one"
        )
        _link.say("no copies of the state are kept in memory: " + why % (newest, step))
        return None
    try:
        memory = Memory(session, int(every), os.environ.get("TASKD_IN_MEMORY_CHECKPOINT_LATE"), second)
        if memory.slots:
            return memory
        why = "this launcher holds no memory for it"
    except (OSError, ValueError) as error:
        why = error
    _link.say("no copies of the state are kept in memory: %s" % why)
    return None
