"""Keeps copies of a rank's handoff state (`_handoff`) in the memory of two other ranks: the state on its own host is
lost with the host.

Each rank of a job with several hosts listens, and sends its state to the next ranks on other hosts, each on a different
host if there are enough; if there are none, to the next ranks. Each rank writes its address to the store of a
generation. When a rank joins the next generation, it writes there the states of other ranks that it holds. The
replacement of a lost rank reads its state from the store, or before that from memory, if it runs on a host with a copy.

No rank waits for a copy: a thread sends what a connection does not take at once, the newest state only. If a rank is
lost together with both of its copies, its replacement starts with the random numbers of a peer.
"""

import os
import struct
import time

from taskd import _auth, _codec, _copy, _handoff, _link, _listener

PURPOSE = b"kept"
HEAD = struct.Struct("<IqII")  # rank, step, what, bytes
KEPT = "taskd/kept/%d/%d/%d"  # rank, step, what
RANKS_MAX = 1 << 20  # as `job::RANKS_MAX`
COPIES = 2  # ranks that hold a rank's state: the rank may be lost together with one of them
LOOK_SECONDS = 0.05  # interval between two looks in the store for another rank
LOOKS_MAX = 600  # a rank may start later than others
SEND_SECONDS = 5  # a neighbour that takes no data for this time is dropped
AGAIN_SECONDS = 1  # between two attempts to reach neighbours


class HandoffPeers:
    def __init__(self, keep, first_meeting):
        """`keep` is this rank's `Keep`, with room for other ranks' states. `first_meeting()` returns the store of the
        generation that this process has started in, its rank, and all ranks; None: it has yet to join."""
        import _queue
        import _thread

        self.lock = _thread.allocate_lock()  # of `kept`, and of the peers' `unsent`
        self.holding = _thread.allocate_lock()  # of `held`
        self.sending = _thread.allocate_lock()  # of `peers`, and of the bytes being sent to them
        self.peers = []  # connections to the ranks that hold this rank's state
        self.lacks = True  # true if a peer is missing
        self.keep, self.held = keep, keep.held
        self.kept = {}  # this rank's state as in `Keep`, by kind and parity of the step: (step, what, bytes)
        self.news = _queue.SimpleQueue()  # a new generation, or None: there is state to send
        self.newest = None  # the store of the newest generation
        self.refused = set()  # ranks whose state is not held, since there are too many
        self.listener = _listener.Listener(_copy.own_host(), PURPOSE, self.take)
        _thread.start_new_thread(self.send_all, (first_meeting,))

    def write(self, step, what, data):
        """Keeps a new part of this rank's state, and sends it at once unless a connection is full or not open yet."""
        slot = what, step % 2
        with self.lock:
            self.kept[slot] = step, what, data
            for peer in self.peers:
                peer.unsent.add(slot)
        is_sent = False
        if self.sending.acquire(False):
            try:
                is_sent = all([self.send(peer, peer.at_once) for peer in self.peers]) and not self.lacks
            except OSError:
                pass  # the thread will get the same error
            finally:
                self.sending.release()
        if not is_sent and not self.news.qsize():
            self.news.put(None)

    def send(self, peer, some):
        """Sends a peer its unsent state. `some(bytes)` sends as many bytes as it can and returns their number. Returns
        true if all is sent. The caller holds the lock `sending`."""
        while True:
            if not peer.rest:
                with self.lock:
                    unsent, peer.unsent = sorted(self.kept[slot] for slot in peer.unsent), set()
                heads = (HEAD.pack(peer.rank, step, what, len(data)) + data for step, what, data in unsent)
                peer.rest = b"".join(heads)
            if not peer.rest:
                return True
            sent = some(peer.rest)
            if not sent:
                return False
            peer.rest = peer.rest[sent:]

    def meet(self, store, rank, ranks):
        """Writes this rank's address and the states that it holds to the store of a new generation. A rank that has
        joined finds there what all ranks have written before."""
        self.publish(store, rank)
        with self.lock:
            self.newest = store
        for of, step, what, data in self.held.everything():
            if what in _handoff.KINDS:  # one key each: a store takes no value much longer than that
                store.set(KEPT % (of, step, what), data)
        self.news.put((store, rank, ranks))

    def publish(self, store, rank):
        listener = self.listener
        where = {"node": node(), "host": _copy.own_host(), "port": listener.port(), "listener": listener.name}
        store.set("taskd/away/%d" % rank, _codec.encode(where))

    # On the sending thread.

    def send_all(self, first_meeting):
        _copy.block_signals()
        place = reported = None
        tried = 0
        self.news.put(first_meeting)
        while True:
            met = self.news.get()
            try:
                if callable(met):
                    met = self.has_met(*met())  # pyright: ignore[reportGeneralTypeIssues]
                if met is not None:
                    self.goes_to([])
                    place, tried = met, 0
                if self.lacks and place is not None and time.monotonic() - tried > AGAIN_SECONDS:
                    tried = time.monotonic()
                    self.look_for_others(*place)
            except Exception as error:
                if reported is not self.newest:
                    _link.say(
                        "what only this rank has is kept on its own host alone: %s: %s" % (type(error).__name__, error)
                    )
                reported = self.newest
            for peer in self.peers:
                try:
                    with self.sending:
                        self.send(peer, peer.all)
                except OSError:  # if the peer has died, there will be a new generation
                    self.goes_to([one for one in self.peers if one is not peer])

    def goes_to(self, peers):
        """Makes these the peers that receive this rank's state."""
        with self.sending:
            for gone in self.peers:
                if gone not in peers:
                    gone.close()
            with self.lock:
                for new in peers:
                    if new not in self.peers:
                        new.unsent.update(self.kept)
                self.peers, self.lacks = peers, True

    def has_met(self, store, rank, ranks):
        """Handles the first generation. Returns its arguments; None if a newer generation is known by now."""
        with self.lock:
            is_newest = self.newest is None
            self.newest = self.newest or store
        if not is_newest:
            return None
        self.publish(store, rank)
        return store, rank, ranks

    def look_for_others(self, store, rank, ranks):
        """Makes all reachable neighbours peers.

        Raises OSError if a neighbour cannot be reached."""
        self.goes_to([])
        failed = None
        for where in self.neighbours(store, rank, ranks):
            try:
                self.goes_to(self.peers + [Peer(where, rank)])
            except OSError as error:
                failed = error
        if failed is not None:
            raise failed
        self.lacks = self.newest is not store  # if there are fewer than COPIES, there are no more ranks

    def neighbours(self, store, rank, ranks):
        """Yields the addresses of the next ranks, each on a different host and not on this one; if there are too few
        hosts, other ranks. Yields none if there is a newer generation."""
        at, found, hosts, others = ranks.index(rank), 0, {node()}, []
        for one in ranks[at + 1 :] + ranks[:at]:
            where = self.where_is(store, one)
            if where is None:
                continue
            if where["node"] in hosts:
                others.append(where)
                continue
            hosts.add(where["node"])
            found += 1
            yield where
            if found == COPIES:
                return
        if self.newest is store:
            others.sort(key=lambda where: where["node"] == node())  # stable: those on other hosts first
            yield from others[: COPIES - found]

    def where_is(self, store, rank):
        key = "taskd/away/%d" % rank
        for _ in range(LOOKS_MAX):
            if self.newest is not store:
                return None
            if store.check([key]):
                return _codec.decode(store.get(key))
            time.sleep(LOOK_SECONDS)
        return None

    # On threads of the listener: receives the states of other ranks.

    def take(self, peer):
        import socket

        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a lost host does not close the connection
        while True:
            rank, step, what, length = HEAD.unpack(_auth.exactly(peer, HEAD.size))
            if rank >= RANKS_MAX or length > _handoff.ROOM or what not in _handoff.KINDS + (_handoff.OPENED,):
                return
            self.hold(rank, step, what, _auth.exactly(peer, length))

    def hold(self, rank, *of):
        with self.holding:
            self.keep.keeps(self.put, rank, *of)

    def put(self, rank, step, what, data):
        area = self.held.of(rank) or self.held.begin(rank)
        if area is None:
            if rank not in self.refused:
                _link.say("what only rank %d has is not held here: there are %d others" % (rank, _handoff.HELD_MAX))
            self.refused.add(rank)
        elif what == _handoff.OPENED:
            area.opens(step, 0)
        else:
            area.write(step, what, data)


class Peer:
    """A connection to a rank that holds this rank's state."""

    def __init__(self, where, rank):
        import socket

        self.rank = rank
        self.rest = b""  # the unsent rest of the last packets
        self.unsent = set()  # slots that the peer does not have yet
        self.slow = _auth.dial((where["host"], where["port"]), where["listener"], PURPOSE, SEND_SECONDS)
        self.slow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.quick, self.flags = self.slow.dup(), socket.MSG_NOSIGNAL
        self.quick.setblocking(False)

    def at_once(self, data):
        """Sends as many bytes as there is room for. Returns their number."""
        try:
            return self.quick.send(data, self.flags)
        except BlockingIOError:
            return 0

    def all(self, data):
        self.slow.sendall(data, self.flags)
        return len(data)

    def close(self):
        self.quick.close()
        self.slow.close()


def node():
    """Returns a text that is equal for all ranks of a host, that is, of one guard."""
    return "%s %s" % (_copy.machine(), os.environ.get("TASKD_CONTROL"))


def kept_of(store, rank):
    """Returns a function that reads a rank's state from the store: `(step, what)` to bytes, or to None."""

    def find(step, what):
        key = KEPT % (rank, step, what)
        return store.get(key) if store.check([key]) else None

    return find
