"""Pieces of what lives in a rank, each alone, with doubles around it that say so: `python pieces.py DIRECTORY`.

It writes what it has seen as JSON.
"""

import ctypes
import json
import os
import resource
import socket
import sys
import threading
import time
import types

from taskd import _attempt, _codec, _copy, _frames, _handoff, _handoff_peers, _link, _loop, _phases, _replay, _session

SOON_SECONDS = 10
logged = []
_link.say = logged.append


def until(is_so, seconds=SOON_SECONDS):
    """Whether it comes to be so."""
    limit = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > limit:
            return False
        time.sleep(0.002)
    return True


# The control link.


class Supervisor:
    """A double of it: it accepts, and reads on request."""

    is_a_double = True

    def __init__(self, path):
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(4)

    def accept(self):
        self.peer, _ = self.listener.accept()
        self.unpacker = _frames.Unpacker()

    def read(self, is_last):
        """Messages, up to one that is the last."""
        self.peer.settimeout(SOON_SECONDS)
        found = []
        while not found or not is_last(found[-1]):
            message = self.unpacker.next()
            if message is not None:
                found.append(message)
                continue
            data = self.peer.recv(1 << 20)
            if not data:
                break
            self.unpacker.add(data)
        return found


def linked(directory, name):
    path = os.path.join(directory, name)
    supervisor = Supervisor(path)
    link = _link.Link(lambda: {"hello": {}}, lambda message: None)
    link.start(path)
    supervisor.accept()
    return supervisor, link


def supervisor_does_not_read(directory):
    """More and more is to be sent: memory does not grow, and what is dropped is counted and logged."""
    del logged[:]
    supervisor, link = linked(directory, "slow")
    text = "x" * 60000
    for number in range(1000):
        link.send({"number": number, "text": text})
        until(lambda: not link.outbox, 0.002)  # what the link's thread takes it shall take
    waits = len(link.outbox)
    found = supervisor.read(lambda message: message.get("number") == 999 - link.counts["dropped"])
    numbers = [message["number"] for message in found[1:]]
    link.send({"last": True})
    is_last = "last" in supervisor.read(lambda message: "last" in message)[-1]
    is_whole = numbers == list(range(1000 - link.counts["dropped"]))
    return {
        "waits": waits,
        "dropped": link.counts["dropped"],
        "whole": is_whole,
        "goes on": is_last,
        "logged": list(logged),
    }


def message_is_too_long(directory):
    """A message of this process itself: an answer becomes a refusal, any other message is dropped, and no other process
    is blamed."""
    del logged[:]
    supervisor, link = linked(directory, "long")
    text = "x" * (_frames.FRAME_BYTES_MAX + 1)
    for message in ({"odd": text}, {"reply": {"id": 7, "ok": text}}, {"reply": {"id": 8, "ok": {}}}):
        link.send(message)
    found = supervisor.read(lambda message: message.get("reply", {}).get("id") == 8)
    return {
        "found": found[1:],
        "logged": list(logged),
        "garbage": link.counts["garbage"],
        "connected": link.counts["connected"],
    }


# The session.


class DoubleOfEngine:
    cannot, reported_sharded = None, []

    def __init__(self):
        self.released, self.asked_by = 0, []

    def release(self):
        self.released += 1

    def state_bytes(self):
        self.asked_by.append(threading.get_ident())
        return 64


def session_of():
    page = types.SimpleNamespace(stands_in_loop=lambda _: None, enters=lambda _: None)
    session = _session.Session("a double", page)
    session.sent = []
    session.link.send = session.sent.append
    session.engine, session.position, session.generation = DoubleOfEngine(), _session.IN_LOOP, 5
    return session


def do(session, id_, generation, kind):
    session.on_message({"do": {"id": id_, "generation": generation, "what": {kind: {}}}})


def directive_of_an_older_generation():
    """It is refused, and what was taken of the newest stays known: nothing is carried out twice."""
    session = session_of()
    do(session, 1, 5, "abort")
    id_, *_ = session.next_directive()
    session.answer(id_, "given up")
    do(session, 2, 4, "abort")
    do(session, 3, 5, "join")
    do(session, 1, 5, "abort")
    answers = [message["reply"] for message in session.sent]
    queued = []
    while not session.inbox.empty():
        queued.append(session.inbox.get()[0])
    do(session, 4, 6, "abort")
    return {"answers": answers, "queued": queued, "known": sorted(session.taken), "answered": sorted(session.answers)}


def hello_of_another_thread():
    """The size of the state is computed on the program's own thread, and reported with the position."""
    del logged[:]
    session = session_of()
    session.at(_session.IN_LOOP)
    hellos = []
    thread = threading.Thread(target=lambda: hellos.append(session.hello()["hello"]))
    thread.start()
    thread.join()
    at = [message["position"] for message in session.sent]
    session.engine.state_bytes = lambda: {}["of the program's"]
    session.at(_session.PARKED)
    return {
        "at": at,
        "hello": hellos[0]["state_bytes"],
        "on main": all(one == threading.get_ident() for one in session.engine.asked_by),
        "fails": session.sent[-1]["position"],
        "logged": logged,
    }


def directive_that_comes_as_another_is_taken():
    """It is not overlooked, though it comes between the look and what is made of it."""
    session = session_of()

    class Inbox:
        def __init__(self):
            self.all, self.comes = [], [2]

        def put(self, one):
            self.all.append(one)

        def get(self, *_):
            return self.all.pop(0)

        def empty(self):
            is_empty = not self.all
            if self.comes:
                do(session, self.comes.pop(), 5, "exit")  # as the link's thread would
            return is_empty

    session.inbox = Inbox()
    do(session, 1, 5, "exit")
    session.next_directive()
    return {"waits": len(session.inbox.all), "attention": session.attention}


def loop_that_is_left_as_a_copy_is_declared():
    """The link's thread looks at the loop, which the main thread leaves."""
    session = session_of()

    class Session(type(session)):
        @property
        def loop(self):
            self.looks = getattr(self, "looks", 0) + 1
            return types.SimpleNamespace(memory=None) if self.looks == 1 else None

        @loop.setter
        def loop(self, _):
            pass

    session.__class__ = Session
    session.__dict__.pop("loop")
    do(session, 1, 5, "commit-in-memory")
    return session.sent[-1]["reply"]


def failure_that_was_given_up():
    """The failure is not reported to the next supervisor as one that stands."""
    session = session_of()
    session.failed("exception", message="once")
    stands = session.link.standing is not None
    do(session, 1, 6, "abort")
    return [stands, session.link.standing is not None]


# What is kept for a successor.


class DoubleOfCopier:
    def seed(self):
        return b"now"


def kept(directory):
    """Buffers that are too large for it are not even packed; random numbers and the place in the data are kept all the
    same."""
    del logged[:]
    os.environ["TASKD_HANDOFF"] = os.path.join(directory, "keep")
    found = {}
    for name, size in (("small", 1000), ("large", 2 * _handoff.SLOT_BYTES)):
        packed = []

        def buffers(note=None):
            packed.append(size)
            return {"mean": bytes(size)}

        note = types.SimpleNamespace(random=b"random numbers")
        engine = types.SimpleNamespace(
            copier=DoubleOfCopier(),
            open_data=None,
            note=lambda: note,
            buffers=buffers,
            buffer_bytes=lambda: size,
            prove=lambda _: None,
        )
        session = types.SimpleNamespace(engine=engine, given_up=False, attention=False)
        loop = _loop.Loop(session, {}, None, None, 0, (), None)
        loop.keep = _handoff.opened()
        loop.keep.forget()
        for _ in range(3):
            loop.to(_phases.READY)
            loop.begin()
            loop.keep_forward()
            loop.number += 1
        random, _, own = _codec.decode(loop.keep.read(2, _handoff.START) or _codec.encode((None, None, None)))
        forward = loop.keep.read(2, _handoff.FORWARD)
        found[name] = {
            "random": random == b"random numbers",
            "buffers": bool(own),
            "forward": bool(forward and _codec.decode(forward)[0]),
            "packed": len(packed),
            "logged": list(logged),
        }
    return found


def held(directory):
    """Two ranks hold state of a rank that was on another host. Its replacement finds that state beside its own
    memory."""
    os.environ["TASKD_HANDOFF"] = os.path.join(directory, "keep-7")  # its own, of when it was here before
    own = _handoff.opened()
    own.write(2, _handoff.START, b"long ago")
    own.opens(2)
    first, second = (_handoff.Keep(os.path.join(directory, "keep-%d" % rank)) for rank in (1, 2))
    for keep, step in ((first, 4), (second, 5)):
        area = keep.held.begin(7)
        area.write(step, _handoff.START, b"start %d" % step)
        area.write(step, _handoff.FORWARD, b"forward %d" % step)
        area.opens(step, 0)
    at = second.held.of(7).at + _handoff.slot(5, _handoff.FORWARD) * _handoff.SLOT_BYTES + _handoff.HEAD.size
    before = own.opened()[0], own.read(5, _handoff.START)
    own.looks_beside(7)
    found = {
        "before": str(before),
        "opened": own.opened(),
        "read": [str(own.read(step, what)) for step in (2, 4, 5) for what in _handoff.KINDS],
        "of another": sorted(_handoff.left_by(3)),
    }
    passing, _handoff.WINDOW_SECONDS = _handoff.WINDOW_SECONDS, 0
    own.looks_beside(7)
    found["late"], _handoff.WINDOW_SECONDS = own.opened(), passing
    os.pwrite(second.fd, b"torn", at)
    own.looks_beside(7)
    found["torn"] = own.read(5, _handoff.FORWARD)
    own.has_come()
    found["has come"] = own.opened()[0]
    ranks = [first.held.begin(rank) is not None for rank in range(100, 100 + _handoff.HELD_MAX)]
    found["fit"], found["refused"] = ranks.count(True) + 1, first.held.begin(300) is None
    first.forget()
    found["forgotten"] = sorted(set(first.held.ranks()) - {0}), first.held.begin(8).read(4, _handoff.START)
    return found


def full(directory):
    """The file cannot grow: no step fails because of it, and it is logged once."""
    del logged[:]
    keep = _handoff.Keep(os.path.join(directory, "keep-9"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        fits = [keep.write(step, _handoff.START, b"data") for step in (1, 2)]
        keep.opens(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    return {"fits": fits, "logged": list(logged), "read": keep.read(1, _handoff.START), "opened": keep.opened()}


# Steps that are replayed early.


def not_taken_back():
    """A step was replayed that the other ranks have not completed, and a double of the engine refuses to put it
    back."""
    asked = []

    def put_back(note):
        asked.append(note)
        raise _session.Refused("the average has changed")

    loop = types.SimpleNamespace(number=3, engine=types.SimpleNamespace(put_back=put_back))
    loop.snapshot, loop.recovery = _attempt.Snapshot(), _attempt.Recovery()
    loop.snapshot.take(15, "note")
    replacement = loop.recovery.replacement = _attempt.Replacement()
    replacement.replay = _replay.Replay(loop, 15)
    refused = []
    for _ in range(2):  # ahead of the repair, and in it
        try:
            replacement.replay.holds_for(15)
        except _session.Refused as error:
            refused.append(str(error))
    return {"refused": refused, "asked": asked, "noted": loop.snapshot.step}


# Copies.


def server_without_descriptors():
    """A server of copies that has run out of descriptors goes on when there are some again."""
    del logged[:]
    os.environ["TASKD_SECRET"] = "5a" * 32
    os.environ["TASKD_STATE_TRANSFER"], _copy.TCP_SECONDS = "tcp", 3
    source, target = ctypes.create_string_buffer(b"0123456789abcdef", 16), ctypes.create_string_buffer(16)
    server = _copy.Server([(ctypes.addressof(source), 16)])
    move = (server.where(), [(ctypes.addressof(target), ctypes.addressof(source), 16)])
    _copy.read([move], lambda: False)  # so that it waits for the next one
    until(lambda: len(os.listdir("/proc/self/task")) == 2, 5)  # or its answerer leaves one descriptor to spare
    limits, taken, waiting = resource.getrlimit(resource.RLIMIT_NOFILE), [], socket.socket()
    resource.setrlimit(resource.RLIMIT_NOFILE, (waiting.fileno() + 1, limits[1]))
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    waiting.connect(("127.0.0.1", server.listener.port()))
    until(lambda: logged, 5)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    waiting.close()
    for fd in taken:
        os.close(fd)
    ctypes.memset(target, 0, 16)
    try:
        _copy.read([move], lambda: False)
        error = None
    except _copy.Unreadable as one:
        error = str(one)
    until(lambda: len(os.listdir("/proc/self/task")) == 2, 5)  # those that answered are gone
    server.close()
    ends = until(lambda: len(os.listdir("/proc/self/task")) == 1, 5)
    return {"copied": target.raw == source.raw, "error": error, "logged": logged, "ends": ends}


def takes(rank, length):
    """What another rank of the job sends to be kept, with a head of its choice: whether anything of it was kept."""
    away = _handoff_peers.HandoffPeers.__new__(_handoff_peers.HandoffPeers)
    kept = []
    away.hold = lambda *what: kept.append(what)
    ours, theirs = tcp_pair()

    def sends():
        try:
            theirs.sendall(_handoff_peers.HEAD.pack(rank, 1, _handoff.START, length) + b"x" * length)
        except OSError:  # it was refused
            pass
        theirs.close()

    sender = threading.Thread(target=sends)
    sender.start()
    try:
        away.take(ours)
    except (EOFError, OSError):  # the sender has closed
        pass
    ours.close()
    sender.join()
    return len(kept)


def tcp_pair():
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        return server.accept()[0], theirs


def heads_of_another_rank():
    """A slot begins with a head, and ranks are bounded."""
    return [
        takes(7, _handoff.ROOM),
        takes(7, _handoff.ROOM + 1),
        takes((1 << 20) - 1, 8),
        takes(1 << 20, 8),
        takes((1 << 32) - 1, 8),
    ]


def main():
    directory = sys.argv[1]
    scenarios = {
        "slow": lambda: supervisor_does_not_read(directory),
        "long": lambda: message_is_too_long(directory),
        "older": directive_of_an_older_generation,
        "hello": hello_of_another_thread,
        "overlooked": directive_that_comes_as_another_is_taken,
        "left": loop_that_is_left_as_a_copy_is_declared,
        "stands": failure_that_was_given_up,
        "kept": lambda: kept(directory),
        "held": lambda: held(directory),
        "full": lambda: full(directory),
        "descriptors": server_without_descriptors,
        "replayed-early": not_taken_back,
        "heads": heads_of_another_rank,
    }
    found = {}
    for name in sys.argv[2:] or scenarios:
        try:
            found[name] = scenarios[name]()
        except Exception as error:
            found[name] = {"failed": "%s: %s" % (type(error).__name__, error)}
    print(json.dumps(found))


main()
