"""Second copies of in-memory checkpoints (`_in_memory_checkpoint`), on another host: a host is lost with all copies in
its memory.

Each rank has a *partner* on another host: the rank that the launcher has chosen (TASKD_COPY_TO), on a host of another
fault domain if there is one; otherwise the next rank on another host. The partner holds the copies in its own file,
behind its own two slots, with one slot there for each slot here. So the rule of the slots holds for second copies, too:
the slot with the declared copy is not overwritten, and the declared copy is complete on both hosts.

A copy is reported to the supervisor once the partner has it. If no partner can be reached, it is reported nevertheless,
and that is logged and counted: checkpoints go on, on one host. Training never waits for a second copy. While one is
sent, a copy that is due is skipped, as if the copy before had not been finished.

A rank that starts on another host copies its checkpoint from the rank that holds it (`taskd.load_checkpoint`). Ranks
listen as `_listener` describes: a connection that does not prove the job's secret is closed before anything is read.
"""

import array
import os
import struct
import time

from taskd import _auth, _codec, _copy, _in_memory_checkpoint, _link, _listener
from taskd._in_memory_checkpoint import HEAD, SLOT_AT, NoCopy, Slot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PURPOSE = b"copies"
PACKET = struct.Struct("<IIQQQQII")  # rank, slot, generation, step, bytes of head and rest, their checksums
WANTED, THERE, DONE, REFUSED = b"w", b"t", b"d", b"r"  # answers; after REFUSED, LENGTH and the reason
LENGTH = struct.Struct("<H")
REASON_BYTES_MAX = 1000
WHERE = "taskd/copies/%d"  # key of a rank's address in the store of a generation
RANKS_MAX = 1 << 20  # as `job::RANKS_MAX`
HELD_MAX = 64  # ranks of which one rank holds copies; further ones are refused, and log that
HELD_AT = 2 * SLOT_AT  # offset in the file: the rank of each pair of slots plus one, or 0; then the slots
HELD_BYTES_MAX = 1 << 38  # of one held copy; a larger one is refused
LOOK_SECONDS = 0.05  # interval between two looks in the store for another rank
LOOKS_MAX = 600  # a rank may start later than others
STILL_SECONDS = 30  # a peer that neither sends nor receives for this time is dropped


class NoPartner(Exception):
    """Raised if there is no rank that can hold a copy, with the reason in one sentence."""


# The file.


class Held:
    """The copies that a rank holds for other ranks."""

    def __init__(self, file):
        self.file, self.open = file, {}

    def ranks(self):
        """Returns the rank of each pair of slots plus one, or 0 for a pair that is free."""
        found = array.array("i", bytes(4 * HELD_MAX))
        os.preadv(self.file.fileno(), [found], HELD_AT)
        return found

    def of(self, rank):
        """Returns the two slots of a rank; None if nothing of it is held."""
        ranks = self.ranks()
        return self.pair(ranks.index(rank + 1)) if rank + 1 in ranks else None

    def begin(self, rank):
        """Returns two empty slots for a rank of which nothing is held; None if there are too many others."""
        ranks = self.ranks()
        if 0 not in ranks:
            return None
        at = ranks.index(0)
        pair = self.pair(at)
        for slot in pair:
            slot.forget()
        ranks[at] = rank + 1
        os.pwrite(self.file.fileno(), ranks, HELD_AT)
        return pair

    def end(self, rank):
        """Frees the slots of a rank, and their memory."""
        ranks = self.ranks()
        if rank + 1 not in ranks:
            return
        at = ranks.index(rank + 1)
        for slot in self.pair(at):
            slot.forget()
            slot.free()
        del self.open[at]
        ranks[at] = 0
        os.pwrite(self.file.fileno(), ranks, HELD_AT)

    def pair(self, at):
        if at not in self.open:
            begins = [HELD_AT + (2 * at + number + 1) * HELD_BYTES_MAX for number in (0, 1)]
            self.open[at] = [Slot(self.file, number, begin) for number, begin in enumerate(begins)]
        return self.open[at]

    def complete(self):
        """Returns `(rank, slot)` of each complete copy."""
        held = [(rank - 1, self.pair(at)) for at, rank in enumerate(self.ranks()) if rank]
        return [(rank, slot) for rank, pair in held for slot in pair if slot.key]


def held_here():
    """Returns `(rank, slot)` of each complete copy that this rank holds for another one."""
    own = _in_memory_checkpoint.slots()
    return Held(own[0].file).complete() if own else []


# On which ranks the copies are, when all ranks start.


def whereabouts(reported):
    """Returns the checkpoints of which every rank's copy is somewhere, each with `{rank: rank that holds its copy}` of
    the ranks that do not have their own. `reported` has the checkpoints of each rank and, as `(rank, checkpoint)`,
    those that it holds for others."""
    own, holders = [set(keys) for keys, _ in reported], {}
    for holder, (_, held) in enumerate(reported):
        for rank, key in held:
            if rank < len(own) and key not in own[rank]:
                holders.setdefault(key, {}).setdefault(rank, holder)
    found = {}
    for key in set().union(*own, holders):
        elsewhere = holders.get(key, {})
        if all(key in keys or rank in elsewhere for rank, keys in enumerate(own)):
            found[key] = elsewhere
    return found


class Loan:
    """The copies of one checkpoint that this rank holds, for the ranks `to` to read, until it is closed."""

    def __init__(self, key, to):
        slots = {rank: slot for rank, slot in held_here() if slot.key == key and rank in to}
        self.held = {rank: (slot, *slot.address()) for rank, slot in slots.items()}
        self.server = None
        if self.held:
            self.server = _copy.Server([(address, size) for _, address, size in self.held.values()])
            self.server.allow([None])

    def offers(self):
        """Returns what each rank has to know to read its copy, by rank."""
        where = self.server.where() if self.server is not None else None
        return {
            rank: (where, address, size, slot.number, slot.sizes, slot.sums)
            for rank, (slot, address, size) in self.held.items()
        }

    def close(self):
        if self.server is not None:
            self.server.close()


def fetch(key, offer):
    """Copies a checkpoint from the rank that holds it into this rank's own slot. Returns the slot.

    Raises NoCopy if it cannot be copied, or has changed on its way."""
    where, theirs, size, number, sizes, sums = offer
    own = _in_memory_checkpoint.slots()
    if not own:
        raise NoCopy("this launcher holds no memory for a copy of step %d" % key[1])

    def fill(here, length):
        _copy.read([(where, [(here, theirs + size - length, length)])], lambda: False)

    try:
        own[number].take(key, sizes, sums, fill)
    except (_copy.Unreadable, OSError, ValueError) as error:
        raise NoCopy("the copy of step %d on another host cannot be read: %s" % (key[1], error))
    return own[number]


# In a rank that trains.


class SecondCopies:
    """Sends this rank's copies to its partner, and holds copies of other ranks."""

    def __init__(self, file, first_meeting):
        """`file` is that of this rank's slots. `first_meeting()` returns the store of the generation that this process
        has started in, its rank, and all ranks; None: it has yet to join."""
        import _thread

        self.held = Held(file)
        self.lock = _thread.allocate_lock()  # of `held`, `busy` and `senders`
        self.busy = {}  # by rank: the lock of its slots here
        self.senders = {}  # by rank: the number of its connections
        self.refused = set()  # ranks whose copies are not held, since there are too many
        self.place = None  # of the newest generation: (store, rank, ranks)
        self.peer: Any = None  # the connection to the partner, of the newest generation
        self.logged = None  # the place of which a failure was logged last
        self.alone = 0  # number of copies that only this host has
        self.listener = _listener.Listener(_copy.own_host(), PURPOSE, self.serve)
        if first_meeting is not None:
            _thread.start_new_thread(self.begin, (first_meeting,))

    def begin(self, first_meeting):
        _copy.block_signals()
        try:
            met = first_meeting()
            if self.place is None:
                self.publish(*met[:2])
                self.place = self.place or met
        except Exception as error:
            _link.say("no rank on another host can hold copies of the state: %s: %s" % (type(error).__name__, error))

    def meet(self, store, rank, ranks):
        """Writes this rank's address to the store of a new generation, in which it may have another partner."""
        self.publish(store, rank)
        self.place = store, rank, ranks
        peer, self.peer = self.peer, None
        if peer is not None:
            shut(peer)  # what is being sent goes to a rank that may have ended

    def publish(self, store, rank):
        listener = self.listener
        where = {"node": node(), "host": _copy.own_host(), "port": listener.port(), "listener": listener.name}
        store.set(WHERE % rank, _codec.encode(where))

    # On the thread of a copy.

    def send(self, slot, older):
        """Sends a complete copy to the partner, and before it the `older` ones if the connection is new: the partner
        overwrites the slot of one of them. Returns true if the partner has it then. What fails is logged once in a
        generation, and counted."""
        place = None
        try:
            place = self.known_place()
            peer, slots = self.peer, [slot]
            if peer is None:
                peer, slots = self.connect(*place), [*older, slot]
                self.peer = peer
            if self.place is not place:
                raise NoPartner("the ranks have met again meanwhile")
            for one in slots:
                hand_over(peer, place[1], one)
            return True
        except Exception as error:
            peer, self.peer = self.peer, None
            if peer is not None:
                peer.close()
            self.alone += 1
            if self.logged is not place or place is None:
                why = error if isinstance(error, NoPartner) else "%s: %s" % (type(error).__name__, error)
                _link.say("the copy of step %d is on this rank's own host alone: %s" % (slot.key[1], why))
            self.logged = place
            return False

    def known_place(self):
        for _ in range(LOOKS_MAX):
            if self.place is not None:
                return self.place
            time.sleep(LOOK_SECONDS)
        raise NoPartner("this rank has not joined the other ranks")

    def connect(self, store, rank, ranks):
        import socket

        where = self.partner(store, rank, ranks)
        peer = _auth.dial((where["host"], where["port"]), where["listener"], PURPOSE, STILL_SECONDS)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return peer

    def partner(self, store, rank, ranks):
        """Returns the address of the rank that holds this rank's copies.

        Raises NoPartner if there is none on another host."""
        own, missing = node(), None
        for one in in_order(rank, ranks, os.environ.get("TASKD_COPY_TO")):
            where = self.where_is(store, one)
            if where is None:
                missing = one
            elif where["node"] != own:
                return where
        if missing is not None:
            raise NoPartner("rank %d has not written its address" % missing)
        raise NoPartner("all ranks are on this host")

    def where_is(self, store, rank):
        key = WHERE % rank
        for _ in range(LOOKS_MAX):
            if self.place is None or self.place[0] is not store:
                raise NoPartner("the ranks have met again meanwhile")
            if store.check([key]):
                return _codec.decode(store.get(key))
            time.sleep(LOOK_SECONDS)
        return None

    # On threads of the listener: receives the copies of other ranks.

    def serve(self, peer):
        import socket

        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a lost host does not close the connection
        known = set()
        try:
            while True:
                packet = PACKET.unpack(_auth.exactly(peer, PACKET.size))
                rank, number, (head, rest) = packet[0], packet[1], packet[4:6]
                if rank >= RANKS_MAX or number > 1 or HEAD.size + head + rest > HELD_BYTES_MAX:
                    return
                if rank not in known:
                    known.add(rank)
                    self.counts(rank, 1)
                peer.settimeout(STILL_SECONDS)
                self.receive(peer, rank, number, packet[2:4], (head, rest), packet[6:8])
                peer.settimeout(None)
        finally:
            for rank in known:
                self.counts(rank, -1)

    def counts(self, rank, more):
        with self.lock:
            self.senders[rank] = self.senders.get(rank, 0) + more

    def receive(self, peer, rank, number, key, sizes, sums):
        """Takes one copy, unless it is there already."""
        import _thread

        with self.lock:
            pair = self.held.of(rank) or self.held.begin(rank)
            busy = self.busy.setdefault(rank, _thread.allocate_lock())
        if pair is None:
            return refuse(peer, "its partner holds copies of %d other ranks, which is the limit" % HELD_MAX)
        slot = pair[number]
        with busy:
            if slot.key == key and (slot.sizes, slot.sums) == (sizes, sums):
                return peer.sendall(THERE)
            size, free = HEAD.size + sum(sizes), _in_memory_checkpoint.available()
            if free is not None and size - slot.taken() > free:
                why = "its partner's host has %.1f MiB of memory left, and it takes %.1f"
                return refuse(peer, why % (free / 2**20, size / 2**20))
            peer.sendall(WANTED)
            try:
                slot.take(key, sizes, sums, lambda here, length: fill_from(peer, here, length))
            except NoCopy as error:
                return refuse(peer, str(error))
            peer.sendall(DONE)

    def committed(self, key):
        """Frees copies of ranks that send theirs to another rank by now: all ranks have the checkpoint `key`."""
        with self.lock:
            held = {}
            for rank, slot in self.held.complete():
                held.setdefault(rank, []).append(slot.key)
            for rank, keys in held.items():
                if not self.senders.get(rank) and all(one < key for one in keys):
                    self.held.end(rank)


def in_order(rank, ranks, named):
    """Returns the other ranks in the order in which they are candidates for a partner: the named one, then the next
    ones."""
    at = ranks.index(rank)
    others = ranks[at + 1 :] + ranks[:at]
    first = int(named) if named and named.isdigit() else None
    return sorted(others, key=lambda one: one != first)  # stable


def hand_over(peer, rank, slot):
    """Sends a copy over a connection, unless the peer has it.

    Raises NoPartner if the peer refuses it."""
    (generation, step), (head, rest) = slot.key, slot.sizes
    peer.sendall(PACKET.pack(rank, slot.number, generation, step, head, rest, *slot.sums))
    answer = _auth.exactly(peer, 1)
    if answer == WANTED:
        with slot.content() as content:
            peer.sendall(content)
        answer = _auth.exactly(peer, 1)
    if answer == REFUSED:
        length = LENGTH.unpack(_auth.exactly(peer, LENGTH.size))[0]
        raise NoPartner(_auth.exactly(peer, length).decode(errors="replace"))
    if answer not in (THERE, DONE):
        raise NoPartner("its partner does not answer as a rank of this version")


def refuse(peer, why):
    why = why.encode()[:REASON_BYTES_MAX]
    peer.sendall(REFUSED + LENGTH.pack(len(why)) + why)


def fill_from(peer, here, length):
    """Receives this many bytes to an address."""
    import ctypes

    view = memoryview((ctypes.c_char * length).from_address(here)).cast("B")
    while len(view):
        got = peer.recv_into(view)
        if not got:
            raise EOFError
        view = view[got:]


def shut(peer):
    try:
        peer.shutdown(2)  # SHUT_RDWR: wakes up the thread that waits for it
    except OSError:
        pass  # it is closed


def node():
    """Returns a text that is equal for all ranks of a host, that is, of one guard."""
    return "%s %s" % (_copy.machine(), os.environ.get("TASKD_CONTROL"))


def are_wanted():
    """Returns true if the job has several hosts, and keeps checkpoints in memory."""
    return bool(os.environ.get("TASKD_REPLICATE") and os.environ.get("TASKD_IN_MEMORY_CHECKPOINT_EVERY"))


def opened(first_meeting):
    """Returns this rank's `SecondCopies`; None if there can be none, which is logged."""
    try:
        own = _in_memory_checkpoint.slots()
        return SecondCopies(own[0].file, first_meeting) if own else None
    except (OSError, RuntimeError, ValueError) as error:
        _link.say("copies of this rank's state are kept on its own host alone: %s" % error)
        return None
