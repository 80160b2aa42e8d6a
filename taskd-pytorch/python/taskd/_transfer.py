"""The state of a rank from a peer that has it: what is there is told over the generation's store, tensors are filled in place.

Everything is compared before anything is changed: a missing name or another shape is a sentence, and nothing was touched.
The bytes themselves carry `taskd._copy`.
"""

import os
import pickle
import time

import torch

from taskd import _copy, _link, _state, _values
from taskd._session import Cancelled, Refused

POLL_SECONDS = 0.0005
PEER_SECONDS = 30  # within which a peer says what it has
PARTS_MIN_BYTES = 64 << 20  # of state that is read from several peers where there are several


class Transfer:
    def __init__(self, engine):
        self.engine = engine
        self.server = None
        self.staged = []  # what peers read: copies in host memory of tensors that are elsewhere, and values, which nobody else may hold
        self.values = {}  # what is taken of values, by path

    def close(self):
        """No peer reads here any more."""
        if self.server is not None:
            self.server.close()
            self.server = None
        del self.staged[:]

    # Of the rank that gives.

    def give(self, loop, order):
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
        told = {
            "entries": entries,
            "rest": engine.state_.rest(),
            "private": loop.private(),
            "sharded": engine.state_.not_replicated(),
            "step": loop.number,
            "loop": engine.session.loops,
            "where": self.server.where(),
        }
        engine.store.set("taskd/state/%d" % engine.rank, pickle.dumps(told, 4))

    # Of the rank that takes.

    def take(self, loop, order, cancelled):
        peers = order["from"] if isinstance(order["from"], list) else [order["from"]]
        told = [self.told_by(int(peer["rank"]), cancelled) for peer in peers]
        first = told[0]
        if first["step"] != order["step"]:
            raise Refused("rank %s has the state of step %s, not of step %s" % (peers[0]["rank"], first["step"], order["step"]))
        own = self.engine.session.loops
        if first["loop"] != own:
            numbers = (own, peers[0]["rank"], first["loop"])
            raise Refused("this rank is in step loop %d of its program, and rank %s in loop %d; restart all ranks" % numbers)
        self.compare(peers[0]["rank"], first)
        moves = self.moves(loop, told)
        total = _copy.read(moves, cancelled)
        for tensor, held in self.landed:
            tensor.copy_(held)
        self.engine.state_.take_rest(first["rest"], self.values)
        if loop.is_new and loop.noted is None:  # its predecessor has left nothing; who is at the loop's begin needs nothing
            if order["step"] != loop.number:
                _link.say("nobody has this rank's random numbers and place in the data; it takes those of rank %s" % peers[0]["rank"])
                loop.become(order["step"], first["private"])
        elif loop.is_new and loop.own_buffers:
            self.engine.fill_buffers(loop.own_buffers)
        elif loop.held_buffers() is not None:
            self.engine.put_buffers(loop.held_buffers())
        self.engine.spare = {}
        return total

    def told_by(self, rank, cancelled):
        key = "taskd/state/%d" % rank
        limit = time.monotonic() + PEER_SECONDS
        while not self.engine.store.check([key]):
            if cancelled():
                raise Cancelled
            if time.monotonic() > limit:
                raise Refused("rank %d did not say within %d s what state it has" % (rank, PEER_SECONDS))
            time.sleep(POLL_SECONDS)
        return pickle.loads(self.engine.store.get(key))

    def compare(self, rank, told):
        """That all can be copied."""
        own, state = self.engine.state_.in_place(), self.engine.state_
        sharded = set(told["sharded"]) | set(state.not_replicated())
        if sharded:
            names = ", ".join(sorted(sharded))
            raise Refused("%s is sharded: rank %s has no copy of what this rank holds; use a checkpoint" % (names, rank))
        theirs = {entry[0] for entry in told["entries"]}
        optimizers = {name for name, what in state.named.items() if isinstance(_state.inner_of(what), torch.optim.Optimizer)}
        for path in own:
            if path not in theirs and path.partition("/")[0] not in optimizers:
                raise Refused("the state of rank %s has no %s, which this rank has; is it the same program?" % (rank, path))
        for name in state.unknown(told["rest"]):
            raise Refused("this rank has no %s, which rank %s has; is it the same program?" % (name, rank))
        for path, shape, dtype, _, _, _ in told["entries"]:
            if _values.is_value(path):
                continue  # whoever loads them knows what fits
            if path not in own:
                if path.partition("/")[0] not in optimizers:
                    raise Refused("this rank has no %s, which rank %s has; is it the same program?" % (path, rank))
            elif tuple(own[path].shape) != shape or own[path].dtype != dtype:
                raise Refused(
                    "%s is %s %s on rank %s and %s %s here"
                    % (path, shape, dtype, rank, tuple(own[path].shape), own[path].dtype)
                )

    def kept_here(self, loop):
        """Buffers are each rank's own, and those that the step has left here are right."""
        is_own = loop.caught_up == "before" or loop.held_buffers() is not None
        return {path for path, _ in self.engine.state_.buffers()} if is_own else set()

    def moves(self, loop, told):
        """`(where, [(address here, address there, bytes)])` for each peer."""
        own = self.engine.state_.in_place()
        kept = self.kept_here(loop)
        self.landed, self.values = [], {}
        total = sum(entry[5] for entry in told[0]["entries"])
        parts = len(told) if total > PARTS_MIN_BYTES else 1
        by_peer, done = [[] for _ in range(parts)], 0
        addresses = [{entry[0]: entry[4] for entry in one["entries"]} for one in told]
        for path, shape, dtype, device, _, size in told[0]["entries"]:
            tensor = own.get(path)
            if path in kept:
                continue
            if _values.is_value(path):
                tensor = self.values[path] = torch.empty(shape, dtype=dtype)
            elif tensor is None:
                name, _, rest = path.partition("/")
                optimizer = _state.inner_of(self.engine.state_.named[name])
                tensor = _state.make_room(optimizer, rest, (shape, dtype, device), getattr(self.engine, "spare", {}))
            held = tensor
            if tensor.device.type != "cpu" or not tensor.is_contiguous():
                held = torch.empty(shape, dtype=dtype)
                self.landed.append((tensor, held))
            part = 0 if _values.is_value(path) else min(done * parts // max(total, 1), parts - 1)  # those are of the rest of the first
            by_peer[part].append((held.data_ptr(), addresses[part][path], size))
            done += size
        return [(one["where"], ranges) for one, ranges in zip(told, by_peer) if ranges]
