"""`taskd.load_checkpoint`: loads the newest complete checkpoint into a program that starts: an emergency checkpoint, or
the in-memory checkpoint of all ranks. A rank that has started on another host copies its part of the latter from the
rank that holds a second copy.

All of it is verified and compared before anything is changed, and all ranks load the same one.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from taskd import (
    _codec,
    _emergency_checkpoint,
    _handoff,
    _in_memory_checkpoint,
    _link,
    _loop,
    _second_copies,
    _session,
)
from taskd._emergency_checkpoint import NoDump
from taskd.torch import accelerate, in_memory_checkpoint, late_buffers, rng, state_dicts
from taskd.torch import buffers as _buffers
from taskd.torch import state as _state
from taskd.torch.data import loader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Plain(loader.Copier):
    """Copier of a loop without a supervisor, which continues in the middle of an epoch."""

    keeps = False


class LeftOff:
    """The point at which a loop continues: its step, random numbers and data position."""

    opener, copier, restore_random = staticmethod(loader.open_at), Plain, staticmethod(rng.restore)

    def __init__(self, step: int, random: Any, positions: Any) -> None:
        self.step, self.random, self.positions = step, random, positions


def load(state: Any, directory: str, newer_than: int | None) -> Any:
    root = directory or os.environ.get("TASKD_CHECKPOINT_DIR")
    session = _session.current
    if session is not None and session.wait_for_mode() == _session.JOIN:
        return None  # a joining rank copies its state from its peers
    if not root and not os.environ.get("TASKD_IN_MEMORY_CHECKPOINT_EVERY"):
        return None
    slots, held = slots_here(), held_here()
    on_disk = _emergency_checkpoint.candidates(root) if root else []
    own = [slot.key for slot in slots], [(rank, slot.key) for rank, slot in held]
    reported = from_all_ranks((on_disk, own))
    in_memory = _second_copies.whereabouts([of for _, of in reported])
    for step, name in candidates(reported[0][0], in_memory):
        if newer_than is not None and step <= newer_than:
            continue
        loan, whole = None, None
        try:
            if isinstance(name, tuple):
                elsewhere = in_memory[name]
                loan, offered = lent(name, elsewhere)
                whole, why = InMemory(slot_of(name, elsewhere, offered, slots), state), None
            else:
                whole, why = Whole(os.path.join(root, name), state), None  # pyright: ignore[reportArgumentType, reportCallIssue]
        except (NoDump, _in_memory_checkpoint.NoCopy) as error:
            why = "rank %d: %s" % (rank_here(), error)
        whys = [one for one in from_all_ranks(why) if one]
        if loan is not None:
            loan.close()
        if not whys:
            whole.fill()  # pyright: ignore[reportOptionalMemberAccess]
            if isinstance(name, tuple):
                _in_memory_checkpoint.loaded = name
            return step
        what = "of step %d in memory" % step if isinstance(name, tuple) else name
        _link.say(
            "the checkpoint %s is not used, and the one before it is looked for: %s" % (what, "; ".join(whys[:3]))
        )
    return None


def slots_here() -> Any:
    """Returns the complete in-memory checkpoints of this rank."""
    try:
        return [slot for slot in _in_memory_checkpoint.slots() if slot.key]
    except OSError as error:
        _link.say("what is in this rank's memory cannot be read: %s" % error)
        return []


def held_here() -> Any:
    """Returns the complete copies that this rank holds for others, each with its rank. Without a group of all ranks it
    returns none."""
    if size_here() != _session.number(os.environ.get("WORLD_SIZE"), 1):
        return []
    try:
        return _second_copies.held_here()
    except OSError as error:
        _link.say("what this rank's memory holds of other ranks cannot be read: %s" % error)
        return []


def lent(key: Any, elsewhere: Any) -> Any:
    """Returns this rank's loan of a checkpoint, to be closed once all ranks have read it, and what all ranks offer. The
    ranks in `elsewhere` read their copies from the ranks that hold them. All ranks call this, or none."""
    if not elsewhere:
        return None, []
    rank, loan, offers, why = rank_here(), None, {}, None
    try:
        loan = _second_copies.Loan(key, [one for one, holder in elsewhere.items() if holder == rank])
        offers = loan.offers()
    except (OSError, RuntimeError, ValueError) as error:
        why = "rank %d cannot give the copies that it holds: %s" % (rank, error)
    return loan, from_all_ranks((offers, why))


def slot_of(key: Any, elsewhere: Any, offered: Any, slots: Any) -> Any:
    """Returns the slot with this rank's copy of a checkpoint, copied from another rank if it is elsewhere.

    Raises NoCopy if it cannot be copied."""
    rank = rank_here()
    if rank not in elsewhere:
        return next(slot for slot in slots if slot.key == key)
    offers, why = offered[elsewhere[rank]]
    if rank not in offers:
        raise _in_memory_checkpoint.NoCopy(why or "rank %d does not have its copy any more" % elsewhere[rank])
    slot = _second_copies.fetch(key, offers[rank])
    size = sum(slot.sizes) / 2**20
    _link.say("rank %d has copied its state of step %d from rank %d: %.1f MiB" % (rank, key[1], elsewhere[rank], size))
    return slot


def candidates(on_disk: Any, in_memory: Any) -> list[tuple[Any, Any]]:
    """Returns `(step, name)`, newest first, of the checkpoints on disk, and of those in memory, as `(world, step)`, of
    which every rank's part is there. A step of an older world does not count if a newer world has an earlier one: that
    world went back to before it."""
    found = [(step, 0, name) for step, name in on_disk]
    newest = None
    for key in sorted(in_memory, reverse=True):
        if newest is None or key[1] <= newest:
            newest = key[1]
            found.append((newest, 1, key))
    return [(step, name) for step, _, name in sorted(found, key=lambda one: one[:2], reverse=True)]


def from_all_ranks(what: Any) -> Any:
    """Returns the values of all ranks, by rank; without a process group, only this rank's."""
    if not (dist.is_available() and dist.is_initialized()):
        return [what]
    own = _codec.encode(what)
    lengths = [int(one) for one in gathered(torch.tensor([len(own)]))]
    padded = torch.frombuffer(bytearray(own.ljust(max(lengths), b"\0")), dtype=torch.uint8)
    return [_codec.decode(bytes(one.cpu().numpy())[:length]) for one, length in zip(gathered(padded), lengths)]


def gathered(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Returns a tensor of every rank, all of one shape. (torch's `all_gather_object` would unpickle data of peers.)"""
    tensor = tensor.to(dist.distributed_c10d._get_pg_default_device())
    found = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(found, tensor)
    return found


def rank_here() -> int:
    return (
        dist.get_rank() if dist.is_available() and dist.is_initialized() else _session.number(os.environ.get("RANK"), 0)
    )


def size_here() -> int:
    met = dist.is_available() and dist.is_initialized()
    return dist.get_world_size() if met else _session.number(os.environ.get("WORLD_SIZE"), 1)


class Whole:
    """A checkpoint that fits this rank's state."""

    def __init__(self, directory: str, state: Any) -> None:
        self.rank = rank_here()
        manifest = _emergency_checkpoint.read(directory)
        self.step, self.parts = manifest["step"], manifest["parts"]
        self.same_size = manifest["size"] == size_here()
        if not self.same_size and len(manifest["sets"]) > 1:
            raise NoDump(
                "it is of %d ranks with different states, and this job has %d ranks" % (manifest["size"], size_here())
            )
        sets = [ranks for ranks in manifest["sets"] if self.rank in ranks or not self.same_size]
        if not sets:
            raise NoDump("it has no state of rank %d" % self.rank)
        self.loaded = {rank: self.part(directory, rank) for rank in sorted(sets[0]) if rank in self.parts}
        self.match(state)

    def match(self, state: Any) -> None:
        """Checks that all of the checkpoint fits, before anything is changed."""
        self.state = _state.State()
        self.state.register(state)
        self.leaves, self.devices = self.all_leaves()
        self.rest = next((one["rest"] for one in self.loaded.values() if one["part"] == 0), None)
        self.saved_rest = _codec.decode(self.rest)  # pyright: ignore[reportArgumentType]
        self.names = set(self.saved_rest)
        if accelerate.NAME in self.names:  # no program uses this name; a loop keeps it if there are Accelerators
            self.state.named.setdefault(accelerate.NAME, accelerate.Counters())
        self.compare()

    def part(self, directory: str, rank: int) -> Any:
        try:
            part = torch.load(os.path.join(directory, self.parts[rank]), map_location="cpu", weights_only=False)
            if part["step"] != self.step:
                raise NoDump(
                    "the part of rank %d is of step %s, and the manifest of step %d" % (rank, part["step"], self.step)
                )
            return part
        except NoDump:
            raise
        except Exception as error:
            raise NoDump("the part of rank %d cannot be read: %s: %s" % (rank, type(error).__name__, error))

    def all_leaves(self) -> Any:
        """Returns the tensors of all parts, and their devices. Raises NoDump unless the parts form one whole state."""
        parts = list(self.loaded.values())
        missing = set(range(parts[0]["of"])) - {one["part"] for one in parts}
        if missing or any(one["of"] != parts[0]["of"] for one in parts):
            raise NoDump(
                "its manifest lacks a shard: part %s of %d" % (", ".join(map(str, sorted(missing))), parts[0]["of"])
            )
        leaves, devices = {}, {}
        for one in parts:
            leaves.update(one["leaves"])
            devices.update(one["devices"])
        paths = parts[0]["paths"]  # in the order of an optimizer's state
        if set(paths) != set(leaves) or any(one["layout"] != self.state.layout(leaves) for one in parts):
            raise NoDump("its parts are not of one state")
        return {path: leaves[path] for path in paths}, devices

    def compare(self) -> None:
        """Raises NoDump unless all state can be copied, to the last name."""
        state, own = self.state, self.state.in_place()
        # an object that loads values checks them itself
        in_place = {path for path in self.leaves if not state_dicts.is_value(path)}
        for name in sorted(self.names - set(state.named)):
            raise NoDump("it has %s, which is not in the state that is to be loaded; name all that was saved" % name)
        for name in sorted(set(state.named) - self.names):
            raise NoDump("it has no %s" % name)
        for name, groups in sorted(state.groups().items()):
            saved = self.saved_rest[name][0]
            if len(saved) != len(groups):
                numbers = name, len(saved), len(groups)
                raise NoDump(
                    "%s has %d groups of parameters in it and %d in this program; add those "
                    "that the loop adds ahead of it" % numbers
                )
        for path in sorted(set(own) ^ in_place):
            if not state.may_lack(path):
                raise NoDump("%s is %s" % (path, "not in it" if path in own else "in it and not in this program"))
        for path in sorted(set(own) & in_place):
            there, here = self.leaves[path], own[path]
            if there.shape != here.shape or there.dtype != here.dtype:
                theirs, ours = (tuple(there.shape), there.dtype), (tuple(here.shape), here.dtype)
                raise NoDump("%s is %s %s in it and %s %s in this program" % ((path,) + theirs + ours))

    def fill(self) -> None:
        """Copies the checkpoint into the state. Nothing was changed before."""
        own = self.state.in_place()
        with torch.no_grad():
            for path, leaf in self.leaves.items():
                tensor = own.get(path)
                if state_dicts.is_value(path):
                    continue
                if tensor is None:
                    name, _, rest = path.partition("/")
                    like = (tuple(leaf.shape), leaf.dtype, self.devices[path])
                    tensor = _state.make_room(_state.inner_of(self.state.named[name]), rest, like, {})
                tensor.copy_(leaf)
        self.state.take_rest(self.rest, self.leaves)
        random, positions, buffers = self.private()
        _buffers.fill(self.state.buffers(), buffers)
        _loop.left_off = LeftOff(self.step, random, positions)

    def private(self) -> Any:
        """Returns this rank's own state: from its part; for a lost rank, from memory; otherwise a peer's."""
        if self.same_size and self.rank in self.loaded:
            return _codec.decode(self.loaded[self.rank]["private"])
        kept = self.left(self.step, _handoff.START)
        if kept is not None:
            return _codec.decode(kept)
        peer = min(self.loaded)
        random, positions, buffers = _codec.decode(self.loaded[peer]["private"])
        before, after = (self.left(self.step - 1, kind) for kind in (_handoff.START, _handoff.FORWARD))
        if before is None:
            ranks = (self.rank, peer)
            _link.say(
                "rank %d goes on with the random numbers of rank %d and its place in the data: its own are lost" % ranks
            )
            return random, positions, buffers
        random, own, started = _codec.decode(before)
        if after is None:
            _link.say(
                "rank %d was lost in the step before: it goes on with the random numbers with "
                "which that began" % self.rank
            )
        else:  # it was lost in that step or at its end: numbers drawn after its last forward pass are unknown
            own_buffers, random = _codec.decode(after)[:2]
            buffers = self.without_late(own_buffers, started, peer) or buffers
        return random, [own_seed(*both) for both in zip(positions, own)] + positions[len(own) :], buffers

    def without_late(self, buffers: Any, started: Any, peer: Any) -> dict[Any, Any]:
        """Returns the buffers that the rank has left in the middle of a step, without those that change at its end:
        these are a peer's, if both ranks had the same values at the start of the step. Otherwise the loss is logged."""
        notes = self.loaded[peer].get("late", {"digests": {}})
        late = notes["digests"]
        others = [
            path
            for path, digest in late.items()
            if path in started and late_buffers.digest_of(started[path][2]) != digest
        ]
        kept = {path: value for path, value in buffers.items() if path not in late or path in others}
        for path in others:
            values = [buffers.get(other) for other in notes["copies"].get(path, ())]
            if values and all(one == values[0] for one in values):
                kept[path] = values[0]
            else:
                _link.say(
                    "rank %d goes on with %s of before the end of its last step: what "
                    "it became is lost" % (self.rank, path)
                )
        return kept

    def left(self, *of: Any) -> Any:
        """Returns what a lost rank left of a step, by step and kind: from other ranks' parts or this host's memory."""
        if not self.same_size:
            return None
        for part in self.loaded.values():
            if of in part.get("left", {}).get(self.rank, ()):
                return part["left"][self.rank][of]
        keep = _handoff.opened()
        return keep.read(*of) if keep is not None else None


class InMemory(Whole):
    """An in-memory checkpoint of this rank, with no data of another rank."""

    def __init__(self, slot: Any, state: Any) -> None:
        self.rank, self.same_size = rank_here(), True
        self.step = slot.key[1]
        self.loaded = {self.rank: in_memory_checkpoint.read(slot)}
        self.match(state)


def own_seed(there: Any, own: Any) -> Any:
    """Returns a peer's data position, in the order in which this rank reads the data."""
    return there[:2] + own[2:4] + (None, None) + own[6:7] if there[0] == own[0] and own[2] is not None else there
