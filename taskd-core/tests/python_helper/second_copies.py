"""Second copies of in-memory checkpoints (`taskd._second_copies`) between processes on four hosts: `python
second_copies.py DIRECTORY`.

Each rank is a process. The hosts are names, the store is a directory, the supervisor is this program, and sockets and
memory are real. What was found is written as JSON.
"""

import ctypes
import json
import os
import subprocess
import sys
import types
import zlib

from taskd import _auth, _in_memory_checkpoint, _link, _second_copies

SIZE, EVERY = 3 << 20, 10
SECRET = "5a" * 32


_link.say = lambda text: print(json.dumps({"logged": text}), flush=True)


class Directory:
    """A store: a file for each key."""

    def __init__(self, path):
        self.path = path

    def of(self, key):
        return os.path.join(self.path, key.replace("/", "."))

    def set(self, key, value):
        with open(self.of(key) + ".new", "wb") as file:
            file.write(value)
        os.rename(self.of(key) + ".new", self.of(key))

    def get(self, key):
        with open(self.of(key), "rb") as file:
            return file.read()

    def check(self, keys):
        return all(os.path.exists(self.of(key)) for key in keys)


def state(rank, step):
    """A rank's state at a step: other bytes for every rank and step."""
    return (b"rank %d at %d; " % (rank, step) * SIZE)[:SIZE]


def memory_of(directory, rank, host):
    """Sets what the launcher sets for a rank, and returns its second copies and its memory."""
    os.environ.update(
        TASKD_SECRET=SECRET,
        TASKD_HOST="127.0.0.1",
        TASKD_REPLICATE="1",
        TASKD_STATE_TRANSFER="tcp",
        TASKD_CONTROL=os.path.join(directory, host),
        TASKD_IN_MEMORY_CHECKPOINT=path_of(directory, rank, host),
        TASKD_IN_MEMORY_CHECKPOINT_EVERY=str(EVERY),
    )
    store = _auth.Store(Directory(os.path.join(directory, "store")), _auth.key_of(b"store"), "test")
    second = _second_copies.opened(lambda: (store, rank, list(range(4))))
    link = types.SimpleNamespace(send=lambda message: print(json.dumps(message), flush=True))
    session = types.SimpleNamespace(generation=1, link=link)
    return second, _in_memory_checkpoint.Memory(session, EVERY, "wait", second)


def path_of(directory, rank, host):
    return os.path.join(directory, "%s.state-%d" % (host, rank))


def rank(directory, number, host):
    """Copies its state at each step that is read, and handles what the supervisor declares."""
    number = int(number)
    second, memory = memory_of(directory, number, host)
    for line in sys.stdin:
        order = json.loads(line)
        if "copy" in order:
            data = ctypes.create_string_buffer(state(number, order["copy"]), SIZE)
            address = ctypes.addressof(data)
            memory.begin(order["copy"], lambda: (b"head", [(address, SIZE)], data))
        elif "commit" in order:
            memory.on_commit({"number": memory.number, "whole": order["commit"]})
        elif "ask" in order:
            found = {"alone": second.alone, "held": held(path_of(directory, number, host))}
            print(json.dumps({"answer": found}), flush=True)


def held(path):
    with open(path, "rb+", buffering=0) as file:
        return sorted((rank, slot.key[1]) for rank, slot in _second_copies.Held(file).complete())


class Process:
    """A rank, on a host."""

    def __init__(self, directory, number, host, **env):
        self.number, self.host = number, host
        command = [sys.executable, __file__, "rank", directory, str(number), host]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=dict(os.environ, **env))

    def order(self, **what):
        self.process.stdin.write(json.dumps(what).encode() + b"\n")
        self.process.stdin.flush()

    def until(self, kind, is_it=lambda _: True):
        """Returns the first message of a kind that meets the condition."""
        while True:
            line = self.process.stdout.readline()
            assert line, "rank %d has ended" % self.number
            message = json.loads(line)
            if kind in message and is_it(message[kind]):
                return message[kind]

    def copied(self, step):
        return self.until("in-memory-checkpoint", lambda one: one["at"] == step)

    def kill(self):
        self.process.kill()
        self.process.wait()


def lost_host(directory):
    """Ranks 0 and 1 are on host a, 2 on host b, 3 on host c. Host a is lost with its memory."""
    os.mkdir(os.path.join(directory, "store"))
    partners = {0: "3", 1: "", 2: "0", 3: "1"}  # rank 1 is given none: the next rank on another host is its partner
    ranks = [Process(directory, one, host, TASKD_COPY_TO=partners[one]) for one, host in enumerate("aabc")]
    whole = []
    for step in (10, 20, 30):
        for one in ranks:
            one.order(copy=step)
        copies = [one.copied(step) for one in ranks]
        whole.append([one["whole"] for one in copies])
        if step < 30:  # that of step 30 is complete, and not declared
            for one in ranks:
                one.order(commit=copies[0]["of"])
    for one in ranks:
        one.order(ask=True)
    answers = [one.until("answer") for one in ranks]
    found = {"whole": whole, "answers": answers}
    for one in ranks:
        one.kill()
    for one in (0, 1):
        os.remove(path_of(directory, one, "a"))
    return dict(found, **resumed(directory))


def resumed(directory):
    """All ranks start again, those of host a on host d, which has nothing of them."""
    reported, hosts = [], "ddbc"
    for one, host in enumerate(hosts):
        os.environ["TASKD_IN_MEMORY_CHECKPOINT"] = path_of(directory, one, host)
        keys = [slot.key for slot in _in_memory_checkpoint.slots() if slot.key]
        reported.append((keys, [(rank, slot.key) for rank, slot in _second_copies.held_here()]))
    whereabouts = _second_copies.whereabouts(reported)
    key = max(whereabouts)
    same = []
    for one, holder in whereabouts[key].items():
        os.environ["TASKD_IN_MEMORY_CHECKPOINT"] = path_of(directory, holder, hosts[holder])
        loan = _second_copies.Loan(key, [one])
        offer = loan.offers()[one]
        os.environ["TASKD_IN_MEMORY_CHECKPOINT"] = path_of(directory, one, hosts[one])
        _second_copies.fetch(key, offer)
        loan.close()
        slot = next(slot for slot in _in_memory_checkpoint.slots() if slot.key == key)
        head, rest = slot.read()
        same.append((head, bytes(rest)) == (b"head", state(one, key[1])))
    return {"steps": sorted(step for _, step in whereabouts), "from": whereabouts[key], "same": same}


def alone(directory):
    """All ranks are on one host: copies are made, and it is logged once that they are there alone."""
    os.mkdir(os.path.join(directory, "store"))
    ranks = [Process(directory, one, "a") for one in range(4)]
    for step in (10, 20):
        for one in ranks:
            one.order(copy=step)
        whole = [one.copied(step) for one in ranks]
        for one in ranks:
            one.order(commit=whole[0]["of"])
    ranks[0].order(ask=True)
    found = ranks[0].until("answer")
    for one in ranks:
        one.kill()
    return {"whole": [one["whole"] for one in whole], "alone": found["alone"]}


def partner_lost(directory):
    """The partner of rank 0 is killed, and comes again on its host with the same memory."""
    os.mkdir(os.path.join(directory, "store"))
    ranks = [Process(directory, one, host, TASKD_COPY_TO=str((one + 2) % 4)) for one, host in enumerate("aabb")]
    whole, alone = [], []
    for step in (10, 20, 30):
        if step == 20:
            ranks[2].kill()
        if step == 30:
            ranks[2] = Process(directory, 2, "b", TASKD_COPY_TO="0")
            ranks[2].order(ask=True)
            ranks[2].until("answer")
        ranks[0].order(copy=step)
        one = ranks[0].copied(step)
        whole.append(one["whole"])
        ranks[0].order(commit=one["of"])
        ranks[0].order(ask=True)
        alone.append(ranks[0].until("answer")["alone"])
    found = held(path_of(directory, 2, "b"))
    for one in ranks:
        one.kill()
    return {"whole": whole, "alone": alone, "held": found}


def freed(directory):
    """A rank whose copies are held by another rank by now: their memory is free when a newer checkpoint is declared."""
    os.mkdir(os.path.join(directory, "store"))
    second, memory = memory_of(directory, 0, "a")
    file = memory.slots[0].file
    pair = second.held.begin(2)
    content = state(2, 10)
    data = ctypes.create_string_buffer(content, SIZE)

    def fill(here, length):
        ctypes.memmove(here, data, length)

    pair[0].take((1, 10), (4, SIZE - 4), (zlib.crc32(content[:4]), zlib.crc32(content[4:])), fill)
    before = os.fstat(file.fileno()).st_blocks * 512 >= SIZE
    second.committed((1, 10))
    kept = [rank for rank, _ in second.held.complete()]
    second.committed((1, 20))
    after = os.fstat(file.fileno()).st_blocks * 512 < SIZE
    wrong = "nothing"
    try:
        pair[1].take((1, 20), (4, 4), (1, 2), lambda here, length: None)
    except _in_memory_checkpoint.NoCopy as error:
        wrong = str(error)
    return {"before": before, "kept": kept, "left": second.held.complete(), "after": after, "wrong": wrong}


def loaded(directory):
    """All ranks have begun with a copy that was not declared: it is kept, although the one before it was declared."""
    os.mkdir(os.path.join(directory, "store"))
    _, memory = memory_of(directory, 0, "a")
    data = ctypes.create_string_buffer(state(0, 10), SIZE)
    for number, step in enumerate((10, 20)):
        memory.slots[number].write((1, step), b"head", [(ctypes.addressof(data), SIZE)], lambda: True)
    found, before = [], {"made_in": 1, "step": 10}
    for begun_with, whole in (
        (None, before),
        ((1, 20), before),
        ((1, 20), None),
        ((1, 10), {"made_in": 1, "step": 20}),
    ):
        _in_memory_checkpoint.loaded = begun_with
        memory.began_in = memory.session.generation = 2
        memory.on_commit({"number": memory.number, "whole": whole})
        found.append(memory.declared.key[1])
    _in_memory_checkpoint.loaded = None
    return found


def places(_):
    """Which checkpoints can be loaded, from what ranks have and hold."""
    cases = {
        "all have their own": [([(1, 10), (1, 20)], []), ([(1, 10)], [])],
        "one is held": [([(1, 10), (1, 20)], []), ([], [(0, (1, 10))]), ([], [])],
        "each holds the other's": [([], [(1, (1, 10))]), ([], [(0, (1, 10))])],
        "of a rank that is gone": [([(1, 10)], [(7, (1, 10))])],
        "two hold it": [([(1, 10)], [(1, (1, 10))]), ([], []), ([(1, 10)], [(1, (1, 10))])],
    }
    plain = {name: _second_copies.whereabouts(reported) for name, reported in cases.items()}
    order = [_second_copies.in_order(1, [0, 1, 2, 3], named) for named in (None, "", "0", "9", "x")]
    return {
        "cases": {
            name: sorted((key[1], elsewhere) for key, elsewhere in found.items()) for name, found in plain.items()
        },
        "order": order,
    }


def main():
    if sys.argv[1] == "rank":
        return rank(*sys.argv[2:])
    found = {}
    for scenario in (lost_host, partner_lost, alone, freed, loaded, places):
        directory = os.path.join(sys.argv[1], scenario.__name__)
        os.mkdir(directory)
        os.environ.update(TASKD_SECRET=SECRET, TASKD_HOST="127.0.0.1", TASKD_STATE_TRANSFER="tcp")
        found[scenario.__name__] = scenario(directory)
    print(json.dumps({"found": found}), flush=True)


main()
