"""State that only this rank has (random numbers, position in the data, buffers), kept in memory that outlives the
process, for the process that replaces it.

A file (TASKD_HANDOFF, on a file system in memory) with the newest two steps that were begun: for each what was there at
its start, and the buffers and random numbers when its forward pass was done. The process that replaces a rank that was
killed continues from there. What was not written whole is not read. After them comes the step whose commit window was
opened last.

Where a job has several hosts, two other ranks keep it as well (`_handoff_peers`), behind what is their own: a successor
may come on another host, and finds it there if one of these two is on it.

It never waits for a disk. Without such a file a successor gets the random numbers and the position in the data of a
peer.
"""

import array
import os
import struct
import time
import zlib

from taskd import _link

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SLOT_BYTES = 4 << 20  # of which the file takes what is written
KINDS = START, FORWARD = 0, 1  # what belongs to the start of a step, and what its forward pass has left
OPENED = 2  # that the commit window of a step was opened
HEAD = struct.Struct("<8sqII")  # mark, step, bytes, checksum
ROOM = SLOT_BYTES - HEAD.size  # bytes of what is kept in a slot
MARK = b"TASKDKP1"
WINDOW = struct.Struct("<8sqqd")  # mark, step, process, when
WINDOW_SECONDS = 60  # older ones are of when the rank was here before
WINDOW_AT = 4 * SLOT_BYTES
AREA_BYTES = WINDOW_AT + 4096  # what is kept of one rank
HELD_MAX = 128  # ranks of which something is held: as many as the two hosts before have
AREAS_AT = AREA_BYTES + 4096  # before them: the rank of each further area plus one, or 0


class Area:
    """What is kept of one rank: a part of the file."""

    def __init__(self, fd, at=0):
        self.fd, self.at = fd, at

    def write(self, step, what, data):
        head = HEAD.pack(MARK, step, len(data), zlib.crc32(data))
        os.pwritev(self.fd, [head, data], self.at + slot(step, what) * SLOT_BYTES)

    def read(self, step, what):
        """None where nothing is, or where it is not whole."""
        found = self.look(slot(step, what), step)
        return None if found is None else found[1]

    def look(self, number, wanted=None):
        """`(step, bytes)` of what fills a slot, if it is of the step that is wanted."""
        at = self.at + number * SLOT_BYTES
        head = os.pread(self.fd, HEAD.size, at)
        mark, step, length, checksum = HEAD.unpack(head) if len(head) == HEAD.size else (b"", 0, 0, 0)
        if mark != MARK or length > ROOM or wanted not in (None, step):
            return None
        data = os.pread(self.fd, length, at + HEAD.size)
        return (step, data) if len(data) == length and zlib.crc32(data) == checksum else None

    def opens(self, step, process):
        os.pwrite(self.fd, WINDOW.pack(MARK, step, process, time.monotonic()), self.at + WINDOW_AT)

    def opened(self):
        """`(step, process)`; None where no window was opened of late."""
        found = os.pread(self.fd, WINDOW.size, self.at + WINDOW_AT)
        mark, step, process, when = WINDOW.unpack(found) if len(found) == WINDOW.size else (b"", 0, 0, 0)
        return (step, process) if mark == MARK and time.monotonic() - when < WINDOW_SECONDS else None

    def forget(self):
        for at in [number * SLOT_BYTES for number in range(4)] + [WINDOW_AT]:
            os.pwrite(self.fd, b"\0" * 8, self.at + at)


class Held:
    """The data that a rank holds for other ranks, stored after its own."""

    def __init__(self, fd):
        self.fd = fd

    def ranks(self):
        """The rank of each area plus one, or 0 for one that is free."""
        found = array.array("i", bytes(4 * HELD_MAX))
        os.preadv(self.fd, [found], AREA_BYTES)
        return found

    def of(self, rank):
        """None where nothing is held of it."""
        ranks = self.ranks()
        return self.area(ranks.index(rank + 1)) if rank + 1 in ranks else None

    def begin(self, rank):
        """Nothing is held of it yet. None where there are too many others."""
        ranks = self.ranks()
        if 0 not in ranks:
            return None
        at = ranks.index(0)
        self.area(at).forget()  # of the rank that had this area before
        ranks[at] = rank + 1
        os.pwrite(self.fd, ranks, AREA_BYTES)
        return self.area(at)

    def area(self, at):
        return Area(self.fd, AREAS_AT + at * AREA_BYTES)

    def forget(self):
        os.pwrite(self.fd, bytes(4 * HELD_MAX), AREA_BYTES)

    def everything(self):
        """`(rank, step, what, bytes)`."""
        for at, of in enumerate(self.ranks()):
            for one in everything(self.area(at)) if of else ():
                yield (of - 1, *one)


class Keep:
    fd = -1

    def __init__(self, path):
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.own, self.held = Area(self.fd), Held(self.fd)
        self.has_buffers = True  # those of a step fit, as far as is known
        self.too_long = 0  # steps of which nothing could be kept
        self.is_reported = False  # it was logged that nothing can be kept any more
        self.away = None  # sends it to another rank
        # In a replacement: what other ranks had of this rank
        self.elsewhere: Any = None  # all of them, once it has joined: `(step, what)` to bytes, or to None
        self.beside = {}  # those on this host: `(step, what)` to bytes

    def __del__(self, close=os.close):
        if self.fd >= 0:
            close(self.fd)

    def write(self, step, what, data):
        """Keeps something of a step, beside that of the step before. Returns true if it fits."""
        if len(data) > ROOM:
            return False
        if self.away is not None:
            self.away.write(step, what, data)
        self.keeps(self.own.write, step, what, data)
        return True

    def keeps(self, write, *what):
        """No step fails because there is no room."""
        try:
            write(*what)
        except OSError as error:
            if not self.is_reported:
                _link.say(
                    "what only a rank has cannot be kept here any more, and a successor takes a peer's: %s" % error
                )
            self.is_reported = True

    def lacks(self, length):
        """Counts a step whose data does not fit into its slot, and logs the first one."""
        self.too_long += 1
        if self.too_long == 1:
            numbers = length, SLOT_BYTES
            _link.say(
                "%d bytes of random numbers and places in the data, and %d fit: a successor takes a peer's" % numbers
            )

    def forget(self):
        """Nothing of an earlier process is to be taken for this one's, or for what others have sent to it."""
        self.keeps(self.own.forget)
        self.keeps(self.held.forget)

    def looks_beside(self, rank):
        """The predecessor of this process may have been on another host."""
        self.beside = left_by(rank)

    def has_come(self):
        """From here on this rank needs nothing of its predecessor."""
        self.elsewhere, self.beside = None, {}

    def opens(self, step):
        """The commit window of a step was opened: all that this rank has computed of it is there, and the others can
        complete it."""
        if self.away is not None:
            self.away.write(step, OPENED, b"")
        self.keeps(self.own.opens, step, os.getpid())

    def opened(self):
        """`(step, process)` of the window that was opened last; None where there is none. Of one on another host the
        process is 0."""
        windows = [(step, 0) for step, what in self.beside if what == OPENED] + [self.own.opened() or (-1, 0)]
        newest = max(windows)
        return newest if newest[0] >= 0 else None

    def read(self, step, what):
        """What was kept of a step; None where nothing is."""
        kept = self.elsewhere(step, what) if self.elsewhere is not None else None
        if kept is None:
            kept = self.beside.get((step, what))
        return self.own.read(step, what) if kept is None else kept


def slot(step, what):
    """Which of the four it fills."""
    return step % 2 * 2 + what


def left_by(rank):
    """Returns what is kept of a rank on this host, by `(step, what)`: bytes from its own file, and from the files of
    other ranks that hold its state. The files are in the directory of this rank's file; each name contains a rank."""
    import re

    directory, found = os.path.dirname(os.environ.get("TASKD_HANDOFF") or ""), {}
    try:
        names = os.listdir(directory) if directory else ()
    except OSError:
        return found  # its holder is going as well
    for name in names:
        path = os.path.join(directory, name)
        try:
            owner = re.search(r"keep-(\d+)( \(deleted\))?$", os.readlink(path) if os.path.islink(path) else name)
            if owner is not None:
                found.update(read_all(path, rank, int(owner.group(1)) == rank))
        except OSError:
            pass  # closed meanwhile
    return found


def read_all(path, rank, is_its):
    """What a file has of a rank."""
    fd, found = os.open(path, os.O_RDONLY | os.O_CLOEXEC), {}
    try:
        area = Area(fd) if is_its else Held(fd).of(rank)
        for step, what, data in everything(area) if area is not None else ():
            found[step, what] = data
    finally:
        os.close(fd)
    return found


def everything(area):
    """`(step, what, bytes)` of all that an area has, the window at last."""
    for at in range(4):
        kept = area.look(at)
        if kept is not None:
            yield kept[0], at % 2, kept[1]
    window = area.opened()
    if window is not None:
        yield window[0], OPENED, b""


def opened():
    """The file of this rank; None if there is none, or if it cannot be used, which is logged."""
    path = os.environ.get("TASKD_HANDOFF")
    if not path:
        return None
    try:
        return Keep(path)
    except (OSError, ValueError) as error:
        _link.say("nothing is kept for a successor of this rank: %s: %s" % (path, error))
        return None
