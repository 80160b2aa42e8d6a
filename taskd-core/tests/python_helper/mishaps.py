"""What goes wrong in a rank's own part of a recovery, without a framework: `python mishaps.py NAME` prints what was seen as JSON.

What stands for the framework is a stand-in, which says so.
"""

import json
import os
import sys
import types

from taskd import _batches, _recovery, _session


class Copier:
    """Of batches that are lists."""

    is_a_stand_in = keeps = True
    mark, copy = tuple, list

    def seed(self):
        return None


class Page:
    """Of the lifeline."""

    is_a_stand_in = True
    enters = stands_in_loop = says = staticmethod(lambda value: None)


def session_in_loop(**engine):
    """A session whose program is in its step loop; what it sends is kept."""
    session, sent = _session.Session("none", Page()), []
    session.link.send = sent.append
    session.engine, session.place = types.SimpleNamespace(cannot=None, **engine), _session.LOOP
    return session, sent


def give_up(session, id_=1):
    session.on_message({"do": {"id": id_, "generation": 2, "what": {"give-up": {}}}})


def raised(do):
    """What it raises, as text; None where it does not."""
    try:
        do()
    except Exception as error:
        return "%s: %s" % (type(error).__name__, error)


def changed_in_place():
    """A batch of one of two loaders is changed in a step, which is to be done again, and again; and in the step after it."""
    streams, loaders = _batches.Streams(_batches.open_plainly, Copier()), [[[n + 1] for n in range(8)] for _ in range(2)]
    plain, changed = (streams.of(one) for one in loaders)
    streams.begin_step()
    plain.next()
    changed.next()[0] /= 255
    changed.next()
    refused = [raised(streams.redo_step) for _ in range(3)]
    cursors = [plain.cursor, changed.cursor]
    streams.begin_step()
    changed.next()[0] /= 255
    streams.redo_step()
    return {"refused": refused, "cursors": cursors, "copied": changed.next()}


def release_fails():
    """Nobody can be freed who waits inside of a group, and the directive is given again."""

    def release():
        raise OSError(24, os.strerror(24))

    session, _ = session_in_loop(release=release)
    rose = [raised(lambda: give_up(session)) for _ in range(2)]
    queued = [session.inbox.get()[:3] for _ in range(session.inbox.qsize())]
    return {"raised": rose, "queued": queued, "counted": session.link.counts.get("failed")}


class After:
    """What calls hooks when a module has been imported, and is told of no failure (`AfterImport` in sitecustomize.py)."""

    is_a_stand_in = True

    def __init__(self):
        self.waiting = []

    def __call__(self, name, then):
        self.waiting.append(then)

    def imported(self):
        for then in self.waiting:
            raised(lambda: then(types.ModuleType("theirs")))


def hook_fails():
    """Of two hooks in a framework one fails, since a name has moved: in a rank that trains, and that joins others."""
    after = After()

    def recover(after_import, session):
        after_import("theirs.optim", lambda module: module.Optimizer)
        after_import("theirs.nn", lambda module: session.hooked.append(module.__name__))

    os.environ["TASKD_CONTROL"] = "/nonexistent"
    sys.modules["taskd._framework"] = types.SimpleNamespace(NAME="theirs", recover=recover)
    _recovery.install(after, Page())
    session, sent = _session.current, []
    session.hooked, session.link.send = [], sent.append
    session.engine, session.place = types.SimpleNamespace(cannot=None, release=lambda: None, state_bytes=lambda: 0), _session.LOOP
    could = session.hello()["hello"]["can"]
    after.imported()
    give_up(session)
    session.place = _session.PARKED
    session.on_message({"do": {"id": 2, "generation": 2, "what": {"join": {}}}})
    answers = [message["answer"] for message in sent]
    can = session.hello()["hello"]["can"]
    return {"could": could, "can": can, "answers": answers, "queued": session.inbox.qsize(), "hooked": session.hooked}


CASES = {"changed_in_place": changed_in_place, "release_fails": release_fails, "hook_fails": hook_fails}

if __name__ == "__main__":
    print(json.dumps(CASES[sys.argv[1]]()))
