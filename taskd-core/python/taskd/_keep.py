"""What only this rank has (its random numbers, its place in the data, its buffers), kept where it outlives the process.

A file (TASKD_KEEP, on a file system in memory) with the newest two steps that were begun: for each what was there at its start,
and the buffers and random numbers when its forward pass was done. Whoever takes the place of a rank that was killed goes on from there. What was
not written whole is not read. Behind them stands of which step the commit window was opened last.

Where a job has several hosts, two other ranks keep it as well (`_away`): a successor may come on another host.

It never waits for a disk, and a program without such a file goes without: its successor then gets the random numbers and the
place of a peer.
"""

import os
import struct
import zlib

from taskd import _link

SLOT_BYTES = 4 << 20  # of which the file takes what is written
KINDS = START, FORWARD = 0, 1  # what belongs to the start of a step, and what its forward pass has left
HEAD = struct.Struct("<8sqII")  # mark, step, bytes, checksum
MARK = b"TASKDKP1"
OPENED = struct.Struct("<8sqq")  # mark, step, process
OPENED_AT = 4 * SLOT_BYTES
FILE_BYTES = OPENED_AT + 4096


class Keep:
    def __init__(self, path):
        import mmap

        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(fd).st_size != FILE_BYTES:
                os.ftruncate(fd, FILE_BYTES)
            self.memory = mmap.mmap(fd, FILE_BYTES)
        finally:
            os.close(fd)
        self.too_long = 0  # steps of which nothing could be kept
        self.away = None  # who sends it to another rank
        self.elsewhere = None  # who tells what other ranks had of this one when it came: `(step, what)` to bytes, or to None

    def write(self, step, what, data):
        """Keeps something of a step, beside that of the step before; whether it fits."""
        if HEAD.size + len(data) > SLOT_BYTES:
            return False
        if self.away is not None:
            self.away.write(step, what, data)
        at = slot(step, what) * SLOT_BYTES
        self.memory[at : at + 8] = b"\0" * 8  # nothing, while it is written
        self.memory[at + HEAD.size : at + HEAD.size + len(data)] = data
        self.memory[at : at + HEAD.size] = HEAD.pack(MARK, step, len(data), zlib.crc32(data))
        return True

    def lacks(self, length):
        """A step of which nothing fits: counts it, and says so the first time."""
        self.too_long += 1
        if self.too_long == 1:
            numbers = length, SLOT_BYTES
            _link.say("%d bytes of random numbers and places in the data, and %d fit: a successor takes a peer's" % numbers)

    def forget(self):
        """Nothing of an earlier process is to be taken for this one's."""
        for at in [slot * SLOT_BYTES for slot in range(4)] + [OPENED_AT]:
            self.memory[at : at + 8] = b"\0" * 8

    def opens(self, step):
        """The commit window of a step was opened: all that this rank has computed of it is there, and the others can complete it."""
        OPENED.pack_into(self.memory, OPENED_AT, MARK, step, os.getpid())

    def opened(self):
        """`(step, process)` of the window that was opened last; None where there is none."""
        mark, *of = OPENED.unpack_from(self.memory, OPENED_AT)
        return tuple(of) if mark == MARK else None

    def read(self, step, what):
        """What was kept of a step; None where nothing is."""
        kept = self.elsewhere(step, what) if self.elsewhere is not None else None
        if kept is not None:
            return kept
        at = slot(step, what) * SLOT_BYTES
        mark, of_step, length, checksum = HEAD.unpack_from(self.memory, at)
        if mark != MARK or of_step != step or HEAD.size + length > SLOT_BYTES:
            return None
        data = self.memory[at + HEAD.size : at + HEAD.size + length]
        return data if zlib.crc32(data) == checksum else None


def slot(step, what):
    """Which of the four it fills."""
    return step % 2 * 2 + what


def left_by(rank):
    """The memory of another rank, where it is beside that of this one, and tells by its name whose it is; else None."""
    import re

    directory = os.path.dirname(os.environ.get("TASKD_KEEP") or "")
    is_its = re.compile(r"keep-%d( \(deleted\))?$" % rank).search
    try:
        for name in os.listdir(directory) if directory else ():
            path = os.path.join(directory, name)
            if is_its(os.readlink(path) if os.path.islink(path) else name):
                return Keep(path)
    except (OSError, ValueError):
        pass  # its holder is going as well
    return None


def opened():
    """The file of this rank; None where there is none, or it cannot be used, which is said."""
    path = os.environ.get("TASKD_KEEP")
    if not path:
        return None
    try:
        return Keep(path)
    except (OSError, ValueError) as error:
        _link.say("nothing is kept for a successor of this rank: %s: %s" % (path, error))
        return None
