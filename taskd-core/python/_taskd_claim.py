"""The rank behind a wrapper that does not exec it: `bash run.sh`, `nohup`, `setsid`, a script in the background.

The lifeline page names the process that the guard has started. Where that is no Python, one that descends from it may *claim* the
page: the first that imports the framework, or `taskd`. The page then names it, and it is the rank: it beats, counts its steps,
records, keeps in touch with the supervisor, and writes down an exception that nobody caught. Only the lock stays free: how the
rank ended the guard learns from the process that it has started, which may go on after its program.

Left alone is what has nothing to do with training (a script that looks for a port), and everything below a rank (DataLoader
workers, helpers, whatever a launcher in Python starts): a rank tells its descendants in TASKD_RANK_PID. When a process that has
claimed the page has ended, the next one may: a wrapper may try out whether the framework can be imported before it trains. Where
the process that was started becomes Python itself, by exec at the end of a wrapper, the page is its own again.

One that would be the rank and cannot be says so, in one line. It must parse on Python 3.6 and later.
"""

import os
import sys

LOCK_TRIES, LOCK_SECONDS = 100, 0.002  # for the moment in which another one claims
ANCESTORS_MAX = 64


pending = None  # called by the package `taskd` when it is imported


def wait(rank):
    """Claims the page when this process shows that it may be the rank. `rank` is sitecustomize.py."""
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
    """A finder that finds nothing itself. Before this module is looked for, the hooks are put in place; then it is looked for anew,
    since some of them are finders."""

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
    """Is the rank from here on, if it can."""
    if rank.is_of_rank():
        return  # a fork of one
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
    """None: the page names this process now."""
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

    fcntl.flock(fd, fcntl.LOCK_UN)  # a forked child has the same lock


def lives(rank, process):
    try:
        stat = rank.stat_of(process[0])
    except (OSError, ValueError):
        return False
    return stat[22] == process[1] and stat[3] not in (b"Z", b"X")


def descends(rank, started):
    """From the process that was started, or from the guard, which takes in what a wrapper leaves behind (`setsid`)."""
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
