"""What only a rank has (`_keep`), kept by two other ranks as well: where a host is lost, what was kept there is lost with it.

Each rank of a job of several hosts listens, and sends what it keeps to the next ranks on other hosts, each on another one if there are
so many; where there are none, to the next ranks. Who they are stands in the store of a generation, and so does what was kept of
others, once the next one is joined: whoever comes in the place of a lost rank finds it there, and before that in their memory, if it
comes on the host of one of them.

Nobody waits for it: what a connection does not take at once a thread sends, the newest of it. A rank that is lost together with both of
those that have it starts with the numbers of a peer.
"""

import os
import struct
import time

from taskd import _auth, _codec, _copy, _keep, _link, _listener

PURPOSE = b"kept"
HEAD = struct.Struct("<IqII")  # rank, step, what, bytes
KEPT = "taskd/kept/%d/%d/%d"  # rank, step, what
COPIES = 2  # ranks that have what a rank keeps: it may be lost together with one of them
LOOK_SECONDS = 0.05  # between two looks for another rank
LOOKS_MAX = 600  # a rank may start later than others
SEND_SECONDS = 5  # a neighbour that takes nothing for so long is left
AGAIN_SECONDS = 1  # between two tries to reach one


class Away:
    def __init__(self, keep, first_meeting):
        """`keep` has room for what is held of others. `first_meeting()` tells the store of the generation that this process has started
        in, its rank there, and all ranks; None: it has yet to join."""
        import _queue
        import _thread

        self.lock = _thread.allocate_lock()  # of kept, and of what is new for the peers
        self.holding = _thread.allocate_lock()  # of held
        self.sending = _thread.allocate_lock()  # of peers, and what is on its way to them
        self.peers = []  # who has what this rank keeps
        self.lacks = True  # one of them is missing
        self.keep, self.held = keep, keep.held
        self.kept = {}  # of this rank: what `Keep` has, by kind and by whether the step is odd: (step, what, bytes)
        self.news = _queue.SimpleQueue()  # of a generation, or None: there is something to send
        self.newest = None  # the store of the newest generation
        self.refused = set()  # ranks of which nothing is held, since there are too many
        self.listener = _listener.Listener(_copy.own_host(), PURPOSE, self.take)
        _thread.start_new_thread(self.send_all, (first_meeting,))

    def write(self, step, what, data):
        """Something that is kept from now on. It is on its way then, unless the connection is full, or is being made."""
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
                pass  # the thread will see it
            finally:
                self.sending.release()
        if not is_sent and not self.news.qsize():
            self.news.put(None)

    def send(self, peer, some):
        """Whether all is sent to it. `some(bytes)` sends what it can of them, and says how many these were. Needs the lock `sending`."""
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
        """A new generation: tells where this rank is, and what it holds of others. Who has joined finds what all have told before."""
        self.tell(store, rank)
        with self.lock:
            self.newest = store
        for of, step, what, data in self.held.everything():
            if what in _keep.KINDS:  # each by itself: a store takes no value that is much longer than one of them
                store.set(KEPT % (of, step, what), data)
        self.news.put((store, rank, ranks))

    def tell(self, store, rank):
        listener = self.listener
        where = {"node": node(), "host": _copy.own_host(), "port": listener.port(), "listener": listener.name}
        store.set("taskd/away/%d" % rank, _codec.encode(where))

    # On a thread of its own: sends.

    def send_all(self, first_meeting):
        _copy.block_signals()
        place = said = None
        tried = 0
        self.news.put(first_meeting)
        while True:
            met = self.news.get()
            try:
                if callable(met):
                    met = self.has_met(*met())
                if met is not None:
                    self.goes_to([])
                    place, tried = met, 0
                if self.lacks and place is not None and time.monotonic() - tried > AGAIN_SECONDS:
                    tried = time.monotonic()
                    self.look_for_others(*place)
            except Exception as error:
                if said is not self.newest:
                    _link.say("what only this rank has is kept on its own host alone: %s: %s" % (type(error).__name__, error))
                said = self.newest
            for peer in self.peers:
                try:
                    with self.sending:
                        self.send(peer, peer.all)
                except OSError:  # it may have died: there will be a new generation then
                    self.goes_to([one for one in self.peers if one is not peer])

    def goes_to(self, peers):
        """From here on these have what this rank keeps."""
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
        """The first generation; None where a newer one is known by now."""
        with self.lock:
            is_newest = self.newest is None
            self.newest = self.newest or store
        if not is_newest:
            return None
        self.tell(store, rank)
        return store, rank, ranks

    def look_for_others(self, store, rank, ranks):
        """Has those have what this rank keeps who can be reached.

        Raises OSError for those who cannot."""
        self.goes_to([])
        failed = None
        for where in self.neighbours(store, rank, ranks):
            try:
                self.goes_to(self.peers + [Peer(where, rank)])
            except OSError as error:
                failed = error
        if failed is not None:
            raise failed
        self.lacks = self.newest is not store  # where there are fewer, no more are to be had

    def neighbours(self, store, rank, ranks):
        """Where the next ranks are that are each on a host of its own and on others than this one; where there are too few such hosts,
        others. Nobody where there is a newer generation."""
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
            others.sort(key=lambda where: where["node"] == node())  # in their order, those on other hosts first
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

    # On threads of the listener's: takes what others send.

    def take(self, peer):
        import socket

        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a host that is gone says no more
        while True:
            rank, step, what, length = HEAD.unpack(_auth.exactly(peer, HEAD.size))
            if length > _keep.SLOT_BYTES or what not in _keep.KINDS + (_keep.OPENED,):
                return
            self.hold(rank, step, what, _auth.exactly(peer, length))

    def hold(self, rank, *of):
        with self.holding:
            self.keep.keeps(self.put, rank, *of)

    def put(self, rank, step, what, data):
        area = self.held.of(rank) or self.held.begin(rank)
        if area is None:
            if rank not in self.refused:
                _link.say("what only rank %d has is not held here: there are %d others" % (rank, _keep.HELD_MAX))
            self.refused.add(rank)
        elif what == _keep.OPENED:
            area.opens(step, 0)
        else:
            area.write(step, what, data)


class Peer:
    """A connection to who has what this rank keeps."""

    def __init__(self, where, rank):
        import socket

        self.rank = rank
        self.rest = b""  # of what was begun to be sent to it
        self.unsent = set()  # slots of what it does not have yet
        self.slow = _auth.dial((where["host"], where["port"]), where["listener"], PURPOSE, SEND_SECONDS)
        self.slow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.quick, self.flags = self.slow.dup(), socket.MSG_NOSIGNAL
        self.quick.setblocking(False)

    def at_once(self, data):
        """As many as there is room for."""
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
    """What is the same for all ranks of a host: of one guard."""
    return "%s %s" % (_copy.machine(), os.environ.get("TASKD_CONTROL"))


def kept_of(store, rank):
    """Who tells what others have kept of a rank's step: `(step, what)` to bytes, or to None."""
    def find(step, what):
        key = KEPT % (rank, step, what)
        return store.get(key) if store.check([key]) else None

    return find
