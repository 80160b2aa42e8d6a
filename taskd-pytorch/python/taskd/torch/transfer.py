"""Copy of a rank's state from peers: the state's description is sent over the generation's store, and tensors are
filled in place.

Everything is compared before anything is changed: a missing name or another shape is an error, and nothing was changed.
`taskd._copy` transfers the bytes. Each of several peers sends a part. The supervisor names several if that is faster:
between hosts, where each has its own link, and not on one host, where all share the memory's bandwidth.
"""

from __future__ import annotations

import time

import torch

from taskd import _codec, _copy, _link
from taskd._loop import BEFORE
from taskd._session import Cancelled, Refused
from taskd.torch import state as _state
from taskd.torch import state_dicts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Sequence

    from taskd._loop import Loop
    from taskd.torch.engine import Engine

POLL_SECONDS = 0.0005
PEER_SECONDS = 30  # limit for the description of a peer's state


class Transfer:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.server = None
        # what peers read: copies in host memory of other tensors, and values, which may have no other reference
        self.staged = []
        self.late = set()  # paths of buffers that are copied although they are each rank's own
        self.values = {}  # received values, by path

    def close(self) -> None:
        """Ends all reads of peers here."""
        if self.server is not None:
            self.server.close()
            self.server = None
        del self.staged[:]

    # The sending rank.

    def give(self, loop: Loop, order: Any) -> None:
        engine = self.engine
        self.close()
        entries = []
        for path, leaf in engine.state_.leaves().items():
            held = leaf
            if leaf.device.type != "cpu" or not leaf.is_contiguous():
                held = leaf.to("cpu").contiguous()
            self.staged.append(held)
            size = held.numel() * held.element_size()
            entries.append((path, tuple(leaf.shape), leaf.dtype, leaf.device.type, held.data_ptr(), size))
        self.server = _copy.Server([(entry[4], entry[5]) for entry in entries])
        self.server.allow([engine.members.get(rank) for rank in order["to"]])
        offer = {
            "entries": entries,
            "rest": engine.state_.rest(),
            "found": engine.state_.found_places(),
            "late": engine.late.notes(loop.number),
            "private": loop.private(with_buffers=False),  # buffers are among the entries; a store is for little
            "sharded": engine.state_.not_replicated(),
            "groups": engine.state_.groups(),
            "trained": {path: one.requires_grad for path, one in engine.state_.parameters().items()},
            "step": loop.number,
            "loop": engine.session.loops,
            "kinds": engine.kinds.seen,
            "where": self.server.where(),
        }
        engine.store.set("taskd/state/%d" % engine.rank, _codec.encode(offer))

    # The receiving rank.

    def take(self, loop: Loop, step: int, ranks: Sequence[int], cancelled: Callable[[], bool]) -> dict[int, int]:
        """Copies the state of these ranks. Returns the number of bytes from each of them."""
        offers = {rank: self.received_from(rank, cancelled) for rank in ranks}
        self.engine.state_.names_as(offers[ranks[0]]["found"])
        own = self.engine.session.loops
        for rank, one in offers.items():
            if one["step"] != step:
                raise Refused("rank %d has the state of step %s, not of step %s" % (rank, one["step"], step))
            if one["loop"] != own:
                numbers = (own, rank, one["loop"])
                raise Refused(
                    "this rank is in step loop %d of its program, and rank %d in loop %d; restart all ranks" % numbers
                )
            self.compare(rank, one)
        giver, first = ranks[0], offers[ranks[0]]  # `giver` sends all state that differs between replicas
        for rank in ranks[1:]:
            self.are_equal(giver, first, rank, offers[rank])
        self.began_alike(loop, giver, first)
        self.late, own = self.engine.late.taken(loop, giver, first["late"])
        loop.spoil()  # before the first change, which makes optimizer state that does not exist here yet
        self.trains(first["trained"])
        moves = self.moves(loop, [offers[rank] for rank in ranks])
        _copy.read([one for one in moves if one[1]], cancelled)
        for tensor, held in self.landed:
            tensor.copy_(held)
        self.engine.state_.take_rest(first["rest"], self.values)
        # its predecessor has left nothing; a rank at the loop's start needs nothing
        replacement = loop.recovery.replacement
        if replacement is not None and loop.snapshot.step is None:
            if step != loop.number:
                _link.say(
                    "no rank has this rank's random numbers and place in the data; it takes those of rank %d" % giver
                )
                loop.become(step, first["private"])
        elif replacement is not None and replacement.own_buffers:
            own_buffers = replacement.own_buffers.items()
            self.engine.fill_buffers({path: value for path, value in own_buffers if path not in self.late})
        elif loop.held_buffers() is not None:
            late = {id(one) for path, one in self.engine.state_.buffers() if path in self.late}
            self.engine.put_buffers([(one, copy) for one, copy in loop.held_buffers() if id(one) not in late])
        self.engine.late.fill(own)
        self.engine.kinds.take(first["kinds"])
        self.engine.spare = {}
        return {rank: sum(size for _, _, size in ranges) for rank, (_, ranges) in zip(ranks, moves)}

    def received_from(self, rank: int, cancelled: Callable[[], bool]) -> Any:
        key = "taskd/state/%d" % rank
        limit = time.monotonic() + PEER_SECONDS
        while not self.engine.store.check([key]):
            if cancelled():
                raise Cancelled
            if time.monotonic() > limit:
                raise Refused("rank %d did not say within %d s what state it has" % (rank, PEER_SECONDS))
            time.sleep(POLL_SECONDS)
        return _codec.decode(self.engine.store.get(key))

    def compare(self, rank: int, offer: Any) -> None:
        """Raises Refused unless all state can be copied."""
        own, state = self.engine.state_.in_place(), self.engine.state_
        sharded = set(offer["sharded"]) | set(state.not_replicated())
        if sharded:
            names = ", ".join(sorted(sharded))
            raise Refused(
                "%s is sharded: rank %s has no copy of what this rank holds; use a checkpoint" % (names, rank)
            )
        for name, here in state.groups().items():
            there = offer["groups"].get(name, here)
            if here != there:
                why = (
                    "%s has groups of %s parameters on rank %s and of %s here: one that was added "
                    "in the step loop has no place; restart all ranks"
                )
                raise Refused(why % (name, there, rank, here))
        theirs = {entry[0] for entry in offer["entries"]}
        for path in own:
            if path not in theirs and not state.may_lack(path):
                raise Refused(
                    "the state of rank %s has no %s, which this rank has; is it the same program?" % (rank, path)
                )
        for name in state.unknown(offer["rest"]):
            raise Refused("this rank has no %s, which rank %s has; is it the same program?" % (name, rank))
        for path, shape, dtype, _, _, _ in offer["entries"]:
            if state_dicts.is_value(path):
                continue  # an object that loads values checks them itself
            if path not in own:
                if not state.may_lack(path):
                    raise Refused("this rank has no %s, which rank %s has; is it the same program?" % (path, rank))
            elif tuple(own[path].shape) != shape or own[path].dtype != dtype:
                raise Refused(
                    "%s is %s %s on rank %s and %s %s here"
                    % (path, shape, dtype, rank, tuple(own[path].shape), own[path].dtype)
                )

    def are_equal(self, giver: Any, first: Any, rank: int, other: Any) -> None:
        """Raises Refused unless two states have the same layout: parts of different states do not form one state."""

        def replicated(one):
            return {entry[0]: entry[1:4] for entry in one["entries"] if not state_dicts.is_value(entry[0])}

        here, there = replicated(first), replicated(other)
        for path in sorted(set(here) | set(there)):
            if here.get(path) != there.get(path):
                has = tuple("%s %s on %s" % one if one else "missing" for one in (here.get(path), there.get(path)))
                raise Refused(
                    "%s is %s with rank %d and %s with rank %d: they "
                    "are no replicas" % (path, has[0], giver, has[1], rank)
                )

    def began_alike(self, loop: Loop, giver: Any, offer: Any) -> None:
        """Raises Refused if an epoch of a loader has begun with other results of collectives than on the peer. A step
        that this rank repeated alone answers its collectives itself, and the data depends on the answers."""
        other = loop.streams.begun_otherwise(_codec.decode(offer["private"])[1])
        if other is not None:
            why = (
                "an epoch of %s has begun here by operations of this rank alone, which gave other "
                "than those of rank %d; restart all ranks"
            )
            raise Refused(why % (other, giver))

    def trains(self, trained: Any) -> None:
        """Trains the same parameters as the peer, and no others: the program may have frozen or unfrozen some in its
        loop."""
        for path, parameter in self.engine.state_.parameters().items():
            if parameter.requires_grad != trained.get(path, parameter.requires_grad):
                parameter.requires_grad_(trained[path])

    def kept_here(self, loop: Loop) -> Any:
        """Returns the paths of buffers that are not copied: each rank has its own, as the step has left them."""
        is_own = loop.recovery.caught_up_from == BEFORE or loop.held_buffers() is not None
        return {path for path, _ in self.engine.state_.buffers() if path not in self.late} if is_own else set()

    def moves(self, loop: Loop, offers: Any) -> Any:
        """Returns `(where, [(address here, address there, bytes)])` for each peer. Each peer sends an equal part of the
        state that replicas have in common. The first peer sends all the rest, such as buffers: buffers assembled from
        several ranks would be those of no rank."""
        leaves, kept = self.engine.state_.in_place(), self.kept_here(loop)
        self.landed, self.values = [], {}
        own = self.engine.state_.own(leaves)
        places = [
            (entry[0], self.place_for(entry, leaves), entry[5])
            for entry in offers[0]["entries"]
            if entry[0] not in kept
        ]
        is_own = {path for path, _, _ in places if path in own or state_dicts.is_value(path)}
        total = sum(size for path, _, size in places if path not in is_own)
        ends = [total * (part + 1) // len(offers) for part in range(len(offers))]
        addresses = [{entry[0]: entry[4] for entry in one["entries"]} for one in offers]
        by_peer, part, done = [[] for _ in offers], 0, 0
        for path, here, size in places:
            if path in is_own:
                by_peer[0].append((here, addresses[0][path], size))
                continue
            at = 0
            while at < size:
                while done == ends[part]:
                    part += 1
                length = min(size - at, ends[part] - done)
                by_peer[part].append((here + at, addresses[part][path] + at, length))
                at, done = at + length, done + length
        return [(one["where"], ranges) for one, ranges in zip(offers, by_peer)]

    def place_for(self, entry: Any, leaves: Any) -> Any:
        """Returns the address to which a tensor's bytes are copied."""
        path, shape, dtype, device, _, _ = entry
        tensor = leaves.get(path)
        if state_dicts.is_value(path):
            tensor = self.values[path] = torch.empty(shape, dtype=dtype)
        elif tensor is None:
            name, _, rest = path.partition("/")
            optimizer = _state.inner_of(self.engine.state_.named[name])
            tensor = _state.make_room(optimizer, rest, (shape, dtype, device), getattr(self.engine, "spare", {}))
        if tensor.device.type == "cpu" and tensor.is_contiguous():
            return tensor.data_ptr()
        self.landed.append((tensor, torch.empty(shape, dtype=dtype)))
        return self.landed[-1][1].data_ptr()
