"""Copies in memory (`taskd._in_memory_checkpoint`) of three ranks, which are killed, lag and lose messages: `python
copies.py DIRECTORY SEEDS`.

The supervisor is a stand-in that models one rule. The results are written as JSON.
"""

import ctypes
import json
import os
import random
import sys
import types
import zlib

from taskd import _in_memory_checkpoint, _link

_in_memory_checkpoint.PIECE_BYTES = 16  # so that small copies have many pieces
RANKS, EVENTS = 3, 2000
logged = []
_link.say = logged.append


class Killed(BaseException):
    """In the middle of a copy."""


class Rank:
    """A rank's process, one after the other with the same memory."""

    def __init__(self, world, number):
        self.world, self.path = world, os.path.join(world.directory, "rank-%d" % number)
        self.memory = None
        self.start(0)

    def start(self, step):
        self.step = step
        self.answers, self.sent = [], []  # messages on their way to this rank, and from it
        link = types.SimpleNamespace(send=lambda message: self.sent.append(message["in-memory-checkpoint"]))
        self.session = types.SimpleNamespace(generation=self.world.generation, link=link)
        os.environ["TASKD_IN_MEMORY_CHECKPOINT"] = self.path
        self.memory = _in_memory_checkpoint.Memory(self.session, 10, self.world.dice.choice(["wait", "drop"]))
        self.memory.say_again(step)

    def state(self):
        """Bytes that say of which step they are."""
        held = ctypes.create_string_buffer(b"%d " % self.step * self.world.dice.randrange(1, 40))
        return b"head of %d" % self.step, [(ctypes.addressof(held), len(held.raw))], held

    def begin(self):
        self.step += 10
        self.world.copies_now = self
        self.memory.begin(self.step, self.state)

    def whole(self):
        """What a process that starts now finds, and can read."""
        found = set()
        with open(self.path, "rb", buffering=0) as file:
            for slot in (_in_memory_checkpoint.Slot(file, 0), _in_memory_checkpoint.Slot(file, 1)):
                if slot.key:
                    head, rest = slot.read()
                    assert head == b"head of %d" % slot.key[1] and bytes(rest).startswith(b"%d " % slot.key[1])
                    found.add(slot.key)
        return found


def has(message, of):
    return message["whole"] and message["of"] == of


class World:
    """Ranks, messages between them and the model of a supervisor, and the rule that has to hold."""

    is_a_model = True

    def __init__(self, directory, seed):
        self.directory, self.dice = directory, random.Random(seed)
        self.generation = 1
        self.reported, self.declared = {}, None
        self.counts = {"declared": 0, "killed": 0, "killed_copying": 0, "lost": 0, "dropped": 0}
        self.due = []  # copies that are under way: (rank, function, arguments)
        self.copies_now = None
        os.makedirs(directory)
        self.ranks = [Rank(self, number) for number in range(RANKS)]

    def receive(self, number, message):
        """Does what the kernel does: declares the copy that all ranks have, and answers each rank whose copy another
        rank will never have."""
        if message["generation"] != self.generation:
            return
        of = message["of"]
        self.reported[number] = message = dict(message, waits=True)
        if len(self.reported) == RANKS and all(has(one, of) for one in self.reported.values()):
            self.declared = of
            self.counts["declared"] += 1
        settled = [rank for rank, one in self.reported.items() if one["waits"] and self.is_settled(one)]
        for rank in settled:
            one = self.reported[rank]
            one["waits"], one["whole"] = False, one["whole"] and one["of"] == self.declared
            self.ranks[rank].answers.append({"number": one["number"], "whole": self.declared})

    def is_settled(self, one):
        lacked = any(other["at"] >= one["of"]["step"] and not has(other, one["of"]) for other in self.reported.values())
        return not one["whole"] or one["of"] == self.declared or lacked

    def new_world(self, lost):
        """Lost ranks are replaced, and the other ranks report again what they have."""
        self.generation += 1
        self.reported = {}
        newest = max(one.step for one in self.ranks)
        for number, rank in enumerate(self.ranks):
            rank.memory.wanted = False  # an abort: no rank waits for a copy
            self.finish(rank)
            rank.step = newest  # all ranks are brought there
            if number in lost:
                rank.start(newest)
            else:
                rank.session.generation = self.generation
                rank.memory.say_again(rank.step)

    def finish(self, rank):
        for at, (of, function, arguments) in reversed(list(enumerate(self.due))):
            if of is rank:
                del self.due[at]
                function(*arguments)

    def event(self):
        dice = self.dice
        rank = dice.choice(self.ranks)
        what = dice.random()
        if what < 0.05:
            if rank.step <= min(one.step for one in self.ranks):  # no rank is more than one checkpoint ahead
                self.finish(rank)
                rank.begin()
        elif what < 0.3:
            if dice.random() < 0.03:
                rank.memory.wanted = False
            self.finish(rank)
        elif what < 0.65 and rank.sent:
            self.receive(self.ranks.index(rank), rank.sent.pop(0))
        elif what < 0.95 and rank.answers:
            rank.memory.on_commit(rank.answers.pop(0))
        elif what < 0.952:  # the supervisor is another one: what was on its way is lost
            self.counts["lost"] += len(rank.sent) + len(rank.answers)
            rank.sent, rank.answers = [], []
        elif what > 0.998:
            lost = dice.sample(range(RANKS), dice.choice([1, 1, 2, RANKS]))
            for number in lost:
                self.counts["killed"] += 1
                self.kill(self.ranks[number])
            self.new_world(lost)

    def kill(self, rank):
        """In the middle of its copy, if there is one."""
        for at, (of, _, (slot, key, head, pieces, _)) in reversed(list(enumerate(self.due))):
            if of is rank:
                del self.due[at]
                left = [self.dice.randrange(4)]

                def wanted():
                    left[0] -= 1
                    if left[0] < 0:
                        raise Killed
                    return True

                try:
                    slot.write(key, head, pieces, wanted)
                except Killed:
                    self.counts["killed_copying"] += 1

    def check(self):
        if self.declared is not None:
            key = (self.declared["made_in"], self.declared["step"])
            for rank in self.ranks:
                assert key in rank.whole(), "%s is declared, and a rank has %s" % (key, rank.whole())

    def run(self):
        import _thread

        real = _thread.start_new_thread
        _thread.start_new_thread = lambda *what: self.due.append((self.copies_now, *what))
        try:
            for _ in range(EVENTS):
                self.event()
                self.check()
        finally:
            _thread.start_new_thread = real
        self.counts["dropped"] += sum(rank.memory.dropped for rank in self.ranks)
        return self.counts


def random_worlds(directory, seeds):
    total = {}
    for seed in range(seeds):
        try:
            counts = World(os.path.join(directory, "seed-%d" % seed), seed).run()
        except AssertionError as error:
            raise AssertionError("seed %d: %s" % (seed, error))
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count
    return total


def one(directory, name, late="wait"):
    """A memory of its own, whose sayings are kept."""
    os.environ["TASKD_IN_MEMORY_CHECKPOINT"] = os.path.join(directory, name)
    sent = []
    link = types.SimpleNamespace(send=lambda message: sent.append(message["in-memory-checkpoint"]))
    return _in_memory_checkpoint.Memory(types.SimpleNamespace(generation=1, link=link), 10, late), sent


def buffer(size, byte=b"x"):
    held = ctypes.create_string_buffer(byte * size, size)
    return lambda: (b"head", [(ctypes.addressof(held), size)], held)


def late(directory):
    """A copy that is not finished when the window opens."""
    found = {}
    for how in ("wait", "drop"):
        memory, sent = one(directory, "late-" + how, how)
        memory.begin(10, buffer(8 << 20))
        memory.window_opens()
        memory.end(wait=True)
        found[how] = {"whole": sent[-1]["whole"], "counted": [memory.waited, memory.dropped]}
    return found


def damaged(directory, dice):
    """Bytes that were changed, and bytes that never were a copy."""
    memory, _ = one(directory, "damaged")
    memory.begin(10, buffer(1000))
    memory.end(wait=True)
    path = os.environ["TASKD_IN_MEMORY_CHECKPOINT"]
    with open(path, "r+b") as file:
        file.seek(_in_memory_checkpoint.HEAD.size + 500)
        file.write(b"?")
    try:
        next(slot for slot in _in_memory_checkpoint.slots() if slot.key).read()
        refusal = None
    except _in_memory_checkpoint.NoCopy as error:
        refusal = str(error)
    for _ in range(2000):
        with open(path, "wb") as file:
            head = bytearray(
                _in_memory_checkpoint.HEAD.pack(_in_memory_checkpoint.MARK, 1, 10, 4, 100, zlib.crc32(b"head"), 0)
                + bytes(104)
            )
            for _ in range(dice.randrange(1, 30)):
                head[dice.randrange(8 if dice.random() < 0.7 else 0, len(head))] = dice.randrange(256)
            file.write(head[: dice.randrange(len(head) + 1)])
        for slot in _in_memory_checkpoint.slots():
            if slot.key:
                try:
                    slot.read()
                except _in_memory_checkpoint.NoCopy:
                    pass
    return refusal


def no_room(directory):
    """A host with less memory than two copies take."""
    memory, sent = one(directory, "no-room")
    real, _in_memory_checkpoint.available = _in_memory_checkpoint.available, lambda: 1000
    try:
        memory.begin(10, buffer(1000))
    finally:
        _in_memory_checkpoint.available = real
    return {"logged": logged[-1], "whole": sent[-1]["whole"], "dropped": memory.dropped}


def room_for_both(directory):
    """A host with just enough memory for two copies: what the first has taken is not asked for again."""
    memory, sent = one(directory, "room-for-both")
    size, real = 10 << 20, _in_memory_checkpoint.available
    limit = 2 * size + (1 << 20)
    _in_memory_checkpoint.available = lambda: limit - os.stat(os.environ["TASKD_IN_MEMORY_CHECKPOINT"]).st_blocks * 512
    try:
        for step in (10, 20):
            memory.begin(step, buffer(size))
            memory.end(wait=True)
            memory.on_commit({"number": memory.number, "whole": sent[-1]["of"]})
    finally:
        _in_memory_checkpoint.available = real
    return [one["whole"] for one in sent]


def second_loop(directory):
    """Loops of one process: one whose steps have the numbers of the one before keeps none, and nothing of a loop stays
    open."""
    os.environ.update(
        TASKD_IN_MEMORY_CHECKPOINT=os.path.join(directory, "second-loop"), TASKD_IN_MEMORY_CHECKPOINT_EVERY="10"
    )
    _in_memory_checkpoint.newest = None
    session = types.SimpleNamespace(generation=1, link=types.SimpleNamespace(send=lambda _: None))
    before, kept = len(os.listdir("/proc/self/fd")), []
    for start in (0, 0, 20, 30):
        memory = _in_memory_checkpoint.opened(session, start)
        kept.append(memory is not None)
        if memory is not None:
            for step in (start + 10, start + 20):
                memory.begin(step, buffer(1000))
                memory.end(wait=True)
                memory.on_commit({"number": memory.number, "whole": None})
        memory = None
    return {
        "kept": kept,
        "logged": next(one for one in logged if "a loop before" in one),
        "left": len(os.listdir("/proc/self/fd")) - before,
    }


def fails(directory):
    """The size of the state cannot be determined, and a thread cannot be started: the program continues."""
    import _thread

    memory, sent = one(directory, "fails")
    memory.begin(10, lambda: 1 // 0)
    real, _thread.start_new_thread = _thread.start_new_thread, lambda *what: 1 // 0
    try:
        memory.begin(20, buffer(10))
    finally:
        _thread.start_new_thread = real
    memory.window_opens()
    return {"logged": logged[-2:], "whole": [one["whole"] for one in sent], "dropped": memory.dropped}


def grows(directory):
    """A state that is larger the next time."""
    memory, sent = one(directory, "grows")
    for step, size in ((10, 100), (20, 100_000), (30, 5_000_000)):
        memory.begin(step, buffer(size))
        memory.end(wait=True)
        memory.on_commit({"number": memory.number, "whole": sent[-1]["of"]})
    return sorted((slot.key[1], len(slot.read()[1])) for slot in _in_memory_checkpoint.slots() if slot.key)


def rate(size=256 << 20):
    """Gigabytes a second of a copy with its check sum, and of plain memory copies of as much, in turn."""
    import time

    held, plain = ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)
    ctypes.memset(held, 7, size)
    _in_memory_checkpoint.PIECE_BYTES = 4 << 20
    slot = _in_memory_checkpoint.Slot(open(os.memfd_create("copies"), "r+b", buffering=0), 0)
    found = {"copy": [], "plain": []}
    for step in range(5):
        before = time.perf_counter()
        slot.write((1, step + 1), b"", [(ctypes.addressof(held), size)], lambda: True)
        between = time.perf_counter()
        ctypes.memmove(plain, held, size)
        found["copy"].append(size / 1e9 / (between - before))
        found["plain"].append(size / 1e9 / (time.perf_counter() - between))
    return {name: [round(one, 2) for one in (sorted(of)[2], min(of), max(of))] for name, of in found.items()}


def main():
    directory, seeds = sys.argv[1], int(sys.argv[2])
    print(
        json.dumps(
            {
                "random": random_worlds(directory, seeds),
                "late": late(directory),
                "damaged": damaged(directory, random.Random(1)),
                "no_room": no_room(directory),
                "room_for_both": room_for_both(directory),
                "loops": second_loop(directory),
                "fails": fails(directory),
                "grows": grows(directory),
                "rate": rate(),
            }
        )
    )


main()
