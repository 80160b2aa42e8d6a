"""What goes wrong in a rank's own part of a recovery, without a framework: `python mishaps.py NAME` prints what was
seen as JSON.

The framework is a stand-in, which reports that it is one.
"""

import json
import os
import random
import socket
import sys
import tempfile
import types

from taskd import (
    _batches,
    _directives,
    _emergency_checkpoint,
    _framework,
    _frames,
    _link,
    _loop,
    _phases,
    _recovery,
    _session,
)
from taskd._aborted import StepAborted


class Copier(_batches.Nothing):
    """Of batches that are lists."""

    is_a_stand_in = keeps = True
    mark, copy = tuple, list
    restore_own = staticmethod(lambda source, own: None)


class Page:
    """Of the lifeline."""

    is_a_stand_in = True
    enters = stands_in_loop = report = staticmethod(lambda value: None)


def session_in_loop(**engine):
    """A session whose program is in its step loop; what it sends is kept."""
    session, sent = _session.Session("none", Page()), []
    session.link.send = sent.append
    session.engine, session.position = (
        types.SimpleNamespace(cannot=None, reported_sharded=[], **engine),
        _session.IN_LOOP,
    )
    return session, sent


def give_up(session, id_=1):
    session.on_message({"do": {"id": id_, "generation": 2, "what": {"abort": {}}}})


def raised(do):
    """What it raises, as text; None where it does not."""
    try:
        do()
    except Exception as error:
        return "%s: %s" % (type(error).__name__, error)


def changed_in_place():
    """A batch of one of two loaders is changed in a step, which is to be done again, and again; and in the step after
    it."""
    streams, loaders = (
        _batches.Streams(_batches.open_plainly, Copier()),
        [[[n + 1] for n in range(8)] for _ in range(2)],
    )
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
    """No thread that waits inside of a group can be freed, and the directive is given again."""

    def release():
        raise OSError(24, os.strerror(24))

    session, _ = session_in_loop(release=release)
    rose = [raised(lambda: give_up(session)) for _ in range(2)]
    queued = [session.inbox.get()[:3] for _ in range(session.inbox.qsize())]
    return {"raised": rose, "queued": queued, "counted": session.link.counts.get("failed")}


class After:
    """Calls hooks when a module has been imported, and receives no failure (`AfterImport` in sitecustomize.py)."""

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
    _framework.use(types.SimpleNamespace(NAME="theirs", recover=recover))
    _recovery.install(after, Page())
    session, sent = _session.current, []
    session.hooked, session.link.send = [], sent.append
    engine = types.SimpleNamespace(cannot=None, reported_sharded=[], release=lambda: None, state_bytes=lambda: 0)
    session.engine, session.position = engine, _session.IN_LOOP
    could = session.hello()["hello"]["capabilities"]
    after.imported()
    give_up(session)
    session.position = _session.PARKED
    session.on_message({"do": {"id": 2, "generation": 2, "what": {"join": {}}}})
    answers = [message["reply"] for message in sent]
    can = session.hello()["hello"]["capabilities"]
    return {"could": could, "can": can, "answers": answers, "queued": session.inbox.qsize(), "hooked": session.hooked}


def in_child(do):
    """What a forked child finds, as JSON."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read)
        os.write(write, json.dumps(do()).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        found = json.loads(file.read() or "null")
    return found, os.WEXITSTATUS(os.waitpid(pid, 0)[1])


def forks_again():
    """A forked child opens a file and a socket, and forks: what of that its own child has."""
    link = _link.Link(dict, dict)
    link.socket = socket.socket()
    held = {link.wake_read, link.wake_write, link.socket.fileno()}

    def child():
        own = [os.open("/dev/null", os.O_RDONLY) for _ in range(8)]
        return [bool(held & set(own)), in_child(lambda: [raised(lambda: os.fstat(one)) for one in own])]

    (reused, (found, _)), _ = in_child(child)
    return {"reused": reused, "found": found, "still_here": raised(lambda: [os.fstat(one) for one in held])}


class Engine:
    """Of a framework that does nothing."""

    is_a_stand_in = True
    cannot, copier, open_data = None, Copier(), staticmethod(_batches.open_plainly)
    reported_sharded = []
    enter = leave = staticmethod(lambda *_: None)
    note = buffers = prove = digest = staticmethod(lambda *_: None)
    state_bytes = staticmethod(lambda: 0)


def entry_fails():
    """What a program wants to do once its rank is known fails, and it tries again, and then something else begins too
    early."""
    session, _ = session_in_loop()
    session.engine, session.mode, session.position = Engine(), _session.TRAIN, _session.BEFORE_LOOP
    rose, numbers = [], []

    def loop(with_rank):
        for step in _loop.Loop(session, None, None, 2, 0, (), with_rank).run():
            numbers.append(step.number)

    for with_rank in (lambda: 1 / 0, lambda: None):
        rose.append(raised(lambda: loop(with_rank)))
    left = [session.loop is None, session.position]
    first = _loop.Loop(session, None, None, 2, 0, (), None).run()
    next(first)
    rose.append(raised(lambda: loop(None)))
    numbers.append(next(first).number)
    return {"raised": rose, "numbers": numbers, "left": left}


def directives_fail():
    """Something in a framework fails in an unforeseen way: in a directive, and before one."""

    def breaks(*_):
        return {}["a name that has moved"]

    session, sent = session_in_loop(join=breaks)
    session.generation = 2
    loop = types.SimpleNamespace(session=session, engine=session.engine, lags=breaks, to=lambda phase: None)
    done = _directives.carry_out(loop, (7, 2, "join", {}))
    needs = _directives.needs_a_step(loop, (8, 2, "sync-state", {"step": 3, "from": {"rank": 0}}))
    line = breaks.__code__.co_firstlineno + 1
    return {
        "done": done,
        "needs": needs,
        "answers": [one["reply"] for one in sent],
        "line": line,
        "file": breaks.__code__.co_filename,
    }


def behind_the_with():
    """Returns `step.completed` before the `with` of a step, inside and after it, with and without an exception that may
    be retried; and the remark on an exception of the program there. Then the loop is left after a step in which an
    optimizer has stepped."""
    import _taskd_error

    class Raises(Engine):
        ran_out_of_memory = staticmethod(lambda error: isinstance(error, MemoryError))
        opened, failed = staticmethod(lambda: None), None

    reported = []
    session, _ = session_in_loop()
    session.engine, session.mode, session.position, session.failed = (
        Raises(),
        _session.TRAIN,
        _session.BEFORE_LOOP,
        lambda *_, **__: None,
    )
    session.page = types.SimpleNamespace(
        report=reported.append, stands_in_loop=lambda value: None, enters=lambda value: None
    )
    _session.current, seen, remarks = session, [], []
    steps = _loop.Loop(session, None, None, None, 0, (), None).run()
    for number in range(2):
        step = next(steps)
        seen.append([step.completed])
        with step:
            seen[-1].append(step.completed)
            session.loop.opens()
            if number:
                raise MemoryError
        seen[-1].append(step.completed)
        remarks.append(_taskd_error.behind_given_up())
    steps.close()
    last = [step.completed, remarks.append(_taskd_error.behind_given_up())]
    steps = _loop.Loop(session, None, None, None, 7, (), None).run()
    with next(steps) as step:
        session.loop.opens()
    steps.close()
    _session.current = None
    plain = [[step.completed, step] for step in _loop.Loop(None, None, None, 2, 0, (), None).run()]
    return {
        "seen": seen,
        "remarks": remarks,
        "last": last,
        "left": step.completed,
        "reported": reported,
        "plain": [one.completed for _, one in plain],
    }


class Seat:
    """Of a standby that receives a rank that it cannot become."""

    is_a_stand_in = True

    def await_seat(self, at, asked):
        return None

    def be_rank(self, packet):
        os.environ["RANK"] = "1"

    def refuse(self, why):
        sys.stderr.write("refused: %s\n" % why)


def seating_fails():
    """A program that catches everything asks for its rank."""

    def ask():
        import _taskd_standby_prepare

        ahead = _taskd_standby_prepare.Ahead(Seat(), ["RANK"], [])
        ahead.then.append(lambda: os.environ["NOT_SET"])
        ahead.begin()
        return raised(lambda: os.environ["RANK"])

    found, code = in_child(ask)
    return {"found": found, "code": code}


MESSAGES = [
    {"welcome": {"version": 1, "mode": "train"}},
    {"do": {"id": 1, "generation": 2, "what": {"abort": {}}}},
    {"do": {"id": 2, "generation": 2, "what": {"join": {"rank": 0, "size": 1, "members": [], "prefix": "taskd/2"}}}},
    {"do": {"id": 3, "generation": 2, "what": {"sync-state": {"step": 5, "from": [], "to": [], "rollback": False}}}},
    {"do": {"id": 4, "generation": 2, "what": {"resume": {"step": 5}}}},
    {"do": {"id": 5, "generation": 2, "what": {"commit-in-memory": {"number": 3}}}},
]
PIECES = [
    b'"',
    b"}",
    b"[[[[",
    b"-1",
    b"1e999",
    b": \n",
    "é'".encode(),
    b"\0",
    b"null",
    b"18446744073709551616",
    b"\\ud800",
    b"\xff",
]


def framed(body):
    return len(body).to_bytes(4, "little") + body


def spoiled(bytes_, chance):
    """With a piece of it replaced, mostly."""
    if chance.random() < 0.4:
        return bytes_
    at = chance.randrange(len(bytes_) + 1)
    piece = chance.choice([chance.choice(PIECES), bytes(chance.randrange(256) for _ in range(chance.randrange(8)))])
    return bytes_[:at] + piece + bytes_[at + chance.randrange(24) :]


def conversation(chance):
    """Bytes that a supervisor sends, with errors in some messages, in their order, in a length, or at the end."""
    bodies = [json.dumps(one).encode() for one in MESSAGES]
    which = range(len(bodies)) if chance.random() < 0.7 else [chance.randrange(len(bodies)) for _ in range(8)]
    stream = b"".join(framed(spoiled(bodies[n], chance) if chance.random() < 0.3 else bodies[n]) for n in which)
    stream = spoiled(stream, chance) if chance.random() < 0.2 else stream
    return stream[: chance.randrange(len(stream) + 1)] if chance.random() < 0.2 else stream


def is_refused(stream):
    """Whether something of it is no message."""
    while len(stream) >= 4:
        length = int.from_bytes(stream[:4], "little")
        body, stream = stream[4 : 4 + length], stream[4 + length :]
        if length > 1 << 20:
            return True
        if len(body) < length:
            return False
        try:
            message = json.loads(body.decode())
            if "welcome" in message:
                is_message = message["welcome"]["version"] == 1 and message["welcome"]["mode"] in ("train", "join")
            else:
                is_message = isinstance(message["do"]["id"], int) and isinstance(message["do"]["generation"], int)
        except Exception:
            return True
        if not is_message:
            return True
    return False


def take(session, stream, chance):
    """Hands it to the link as it may come, in parts; what that raises is counted as the link's thread counts it."""
    unpacker = _frames.Unpacker()
    while stream:
        part = chance.randrange(1, len(stream) + 1)
        try:
            session.link.take(unpacker, stream[:part])
        except Exception as error:
            session.link.complain(error)
            return str(error)
        stream = stream[part:]
    return None


def garbage():
    """A supervisor sends garbage. Valid messages are taken as usual, or answered with the reason for a refusal."""
    session, sent = session_in_loop(release=lambda: None)
    chance, refused, answers, directives = random.Random(5), 0, 0, 0
    for _ in range(20000):
        stream = conversation(chance)
        wrong = take(session, stream, chance)
        if (wrong is not None) != is_refused(stream):
            return {"wrong": [stream.hex(), wrong]}
        refused += wrong is not None
        answers, directives = answers + len(sent), directives + session.inbox.qsize()
        while session.inbox.qsize():
            session.inbox.get()
        for kept in (sent, session.taken, session.answers):
            kept.clear()
        session.generation, session.given_up = 1, False
    counts = {name: session.link.counts[name] for name in ("garbage", "failed")}
    head = _frames.Unpacker()
    head.add((_frames.FRAME_BYTES_MAX + 1).to_bytes(4, "little"))
    later = json.dumps({"welcome": {"version": 2, "mode": "train"}}).encode()
    complaints = [raised(head.next)] + [
        take(session, one, chance) for one in (framed(later), framed(b"{}"), framed(b"[]")[:5])
    ]
    return {
        "refused": refused,
        "counts": counts,
        "answers": answers,
        "directives": directives,
        "complaints": complaints,
    }


def not_shared():
    """The end of an emergency checkpoint whose second part is in a directory of that name on another host."""
    parts, name = {}, "step-7-world-1-1"
    with tempfile.TemporaryDirectory() as own, tempfile.TemporaryDirectory() as other:
        for rank, root in enumerate((own, other)):
            directory = os.path.join(root, name)
            _emergency_checkpoint.make(directory, sweeps=False)
            path = os.path.join(directory, "part-%d" % rank)
            parts[str(rank)] = _emergency_checkpoint.save(path, lambda file: file.write(b"state"))
        order = {"dir": os.path.join(own, name), "manifest": {"parts": parts}}
        refused = raised(lambda: _directives.write_manifest(None, 1, order)).replace(own, "DIR")
        there = [os.path.exists(os.path.join(root, name, _emergency_checkpoint.MANIFEST)) for root in (own, other)]
    return {"refused": refused, "there": there}


def phases():
    """The phases of a loop in which a step fails once, and what a loop raises of a transition that is not in its table.
    Then each phase that a loop can be in, and each that it can change to."""

    class Recovers(Engine):
        give_up = resumed = put_back = release = agree = undone = staticmethod(lambda *_: None)
        state, place = staticmethod(lambda: {}), staticmethod(lambda: (0, 2))
        join = staticmethod(lambda order, cancelled: {})

    class Noted(_loop.Loop):
        def to(self, phase):
            super().to(phase)
            seen.append(phase.name)

    session, sent = session_in_loop()
    session.engine, session.mode = Recovers(), _session.TRAIN
    seen, numbers = [], []
    for step in Noted(session, None, None, 2, 0, (), None).run():
        numbers.append(step.number)
        with step:
            if len(numbers) == 2:
                for id_, what in enumerate(("abort", "join", "sync-state", "resume")):
                    order = {what: {"step": 1}}
                    session.on_message({"do": {"id": id_, "generation": 2, "what": order}})
                raise StepAborted
    loop = _loop.Loop(None, None, None, 2, 0, (), None)
    wrong = [raised(lambda: loop.to(_phases.TRAINING)), loop.phase.name]
    table = {one.name: [then.name for then in _phases.TRANSITIONS[one]] for one in _phases.Phase}
    return {
        "seen": seen,
        "numbers": numbers,
        "answers": [list(one["reply"]) for one in sent if "reply" in one],
        "wrong": wrong,
        "table": table,
        "drawn": [name for name in table if name not in _phases.__doc__],
    }


CASES = {
    "behind_the_with": behind_the_with,
    "changed_in_place": changed_in_place,
    "directives_fail": directives_fail,
    "entry_fails": entry_fails,
    "forks_again": forks_again,
    "garbage": garbage,
    "hook_fails": hook_fails,
    "not_shared": not_shared,
    "phases": phases,
    "release_fails": release_fails,
    "seating_fails": seating_fails,
}

if __name__ == "__main__":
    print(json.dumps(CASES[sys.argv[1]]()))
