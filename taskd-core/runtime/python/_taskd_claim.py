"""Claims the lifeline page for a rank that a wrapper starts without exec: `bash run.sh`, `nohup`, `setsid`, a script in
the background.

The lifeline page names the process that the guard has started. If that process is not Python, a descendant may *claim*
the page: the first process that imports the framework, or `taskd`. The page then names this process, and it is the
rank: it has a heartbeat, counts its steps, records, connects to the supervisor, and writes an uncaught exception to the
error file. Only the lock stays free: the guard learns how the rank ended from the process that it has started, which
may continue after its program.

Processes that do not train (a script that looks for a port) claim nothing, and neither do the descendants of a rank
(DataLoader workers, helpers, the children of a launcher in Python): they find the rank's pid in TASKD_RANK_PID. When a
process that has claimed the page has ended, the next one may claim it: a wrapper may first test whether the framework
can be imported. If the process that the guard started becomes Python itself, by exec at the end of a wrapper, it takes
the page back.

A process that fails to claim the page reports the reason in one line. This module must parse on Python 3.6 and later.
"""

import os
import sys

LOCK_TRIES, LOCK_SECONDS = 100, 0.002  # while another process claims the page
ANCESTORS_MAX = 64


pending = None  # function that the package `taskd` calls when it is imported


def wait(rank):
    """Claims the page once this process imports the framework or `taskd`. `rank` is the module sitecustomize.py."""
    global pending
    framework = rank.load_framework()
    module = getattr(framework, "MODULE", None)
    at_import = module and AtImport(module)

    def once():
        global pending
        if pending is not None:
            pending = None
            if at_import in sys.meta_path:
                sys.meta_path.remove(at_import)
            claim(rank)

    pending = once
    if at_import:
        sys.meta_path.insert(0, at_import)
    elif framework:
        once()


class AtImport(object):
    """A finder that finds no module. It has the hooks installed before the module `name` is found, and then asks all
    finders again, since some hooks are finders."""

    def __init__(self, name):
        self.name = name

    def find_spec(self, name, path=None, target=None):
        if name != self.name or pending is None:
            return None
        pending()
        for finder in list(sys.meta_path):
            find_spec = getattr(finder, "find_spec", None)
            spec = find_spec(name, path, target) if find_spec else None
            if spec is not None:
                return spec
        return None


def claim(rank):
    """Makes this process the rank; reports the reason if that fails."""
    if rank.is_of_rank():
        return  # a fork of the rank
    try:
        fd = os.open(os.environ["TASKD_LIFELINE"], os.O_RDWR | os.O_CLOEXEC)
        why = why_not(rank, fd)
        if why is None:
            rank.join_page(fd)
            return
        os.close(fd)
    except Exception as error:
        why = str(error)
    rank.say(
        "process %d is not seen as %s (%s): its steps, records and heartbeats are missing, and it is only restarted"
        % (os.getpid(), os.environ.get("TASKD_PROC", "a rank"), why)
    )


def why_not(rank, fd):
    """Claims the page. Returns the reason why not; None if the page names this process now."""
    if not locked(fd):
        return "another process is about to claim its lifeline"
    try:
        page = os.pread(fd, rank.PAGE_BYTES, 0)
        if not rank.is_page(page):
            return "its lifeline is of another version"
        own = rank.stat_of("self")
        if own[1] != os.getpid():
            return "it is in another PID namespace than its supervisor"
        named = rank.number(page, rank.AT_PID, 4), rank.number(page, rank.AT_START_TIME, 8)
        started = rank.number(page, rank.AT_STARTED_PID, 4), rank.number(page, rank.AT_STARTED_TIME, 8)
        if named == (os.getpid(), own[22]):
            return None
        if not started[0] or named == started:
            if rank.number(page, rank.AT_STATE, 4) != rank.NEVER_TAKEN or rank.number(page, rank.AT_BEAT_TIME, 8):
                return "process %d, which was started, is" % named[0]
            started = named
        elif named != started and lives(rank, named):
            return "process %d is" % named[0]
        if not descends(rank, started):
            return "it does not descend from process %d, which was started" % started[0]
        os.pwrite(fd, started[1].to_bytes(8, sys.byteorder), rank.AT_STARTED_TIME)
        os.pwrite(fd, started[0].to_bytes(4, sys.byteorder), rank.AT_STARTED_PID)
        rank.clear(fd)
        os.pwrite(fd, own[22].to_bytes(8, sys.byteorder), rank.AT_START_TIME)
        os.pwrite(fd, os.getpid().to_bytes(4, sys.byteorder), rank.AT_PID)
        return None
    finally:
        unlock(fd)


def locked(fd):
    import fcntl
    import time

    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            time.sleep(LOCK_SECONDS)
    return False


def unlock(fd):
    import fcntl

    fcntl.flock(fd, fcntl.LOCK_UN)  # a forked child would share the lock


def lives(rank, process):
    try:
        stat = rank.stat_of(process[0])
    except (OSError, ValueError):
        return False
    return stat[22] == process[1] and stat[3] not in (b"Z", b"X")


def descends(rank, started):
    """Returns true if this process descends from `started`, or from the guard, which adopts orphans (`setsid`)."""
    guard = os.environ["TASKD_LIFELINE"].split("/")
    guard = int(guard[2]) if guard[:2] == ["", "proc"] and guard[2].isdigit() else 0
    pid = os.getpid()
    for _ in range(ANCESTORS_MAX):
        try:
            stat = rank.stat_of(pid)
        except (OSError, ValueError):
            return False
        if (pid, stat[22]) == started or pid == guard:
            return True
        pid = stat[4]
        if pid <= 1 and pid != guard:
            return False
    return False
