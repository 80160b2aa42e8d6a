"""Buffers that change late in a step: after its last backward pass and collective, when the other ranks need nothing
more from this one.

A rank that is lost there has left their earlier values, and a rank that repeats the step alone, without an optimizer
step, computes other values if they depend on parameters (an average of the weights). Such a buffer is copied from
another rank, if both had the same values at the start of the step. Otherwise it is lost, and all ranks restart.

This module also detects optimizers that draw random numbers in their own step, which a step repeated alone leaves out.
"""

from __future__ import annotations

import hashlib
import os

import torch

from taskd import _link
from taskd._loop import CATCHING_UP
from taskd._session import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from taskd._loop import Loop
    from taskd.torch.engine import Engine

LOOKS = 4  # number of steps in which each optimizer is checked for random numbers


class LateBuffers:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        # the newest completed step, and its late buffers as of its start
        self.step, self.before = None, {}
        self.reported = set()
        self.looked = {}  # id of an optimizer: number of checks
        self.random = []  # state before each optimizer step under way; one may be inside another
        self.left_out = None  # what a step repeated alone lacks, as a sentence
        self.is_installed = False

    def install(self) -> None:
        """Called when torch is completely imported."""
        if not self.is_installed:
            self.is_installed = True
            from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

            register_optimizer_step_pre_hook(hook(self.begins))
            register_optimizer_step_post_hook(hook(self.ends))

    # Buffers.

    def look(self) -> None:
        """Called after a step, before the next one begins."""
        loop, noter = self.engine.loop, self.engine.noter
        step, note = loop.snapshot.step, loop.snapshot.taken
        if note is None or step is None or step != loop.committed or step == self.step:
            return
        found = noter.changes_late()
        # together with this counter torch's kernels change others, without a new version
        for path in [one for one in found if one.endswith("num_batches_tracked")]:
            found.update(path[: -len("num_batches_tracked")] + name for name in noter.UNSEEN)
        copies = {path: copy for path, (_, copy) in zip(noter.paths, note.buffers) if path in found}
        self.step, self.before = step, copies
        new = sorted(set(copies) - self.reported)
        if new:
            self.reported.update(new)
            unseen = ", as far as can be seen" if noter.unseen.intersection(new) else ""
            how = "changed behind a step's last backward pass%s" % unseen
            why = (
                "%s: %s; a rank that is lost there takes it from another that had the same ahead "
                "of the step, and where none had "
            )
            _link.say((why + "all ranks start again") % (", ".join(new[:8]), how))

    def notes(self, step: int) -> Any:
        """Returns notes on the step before this one: digests of its late buffers at its start, by path; the buffers of
        which they are copies now; and what a rank that repeats the step alone leaves out."""
        if self.engine.loop.number == step:
            self.look()
        late = self.before if self.step == step - 1 else {}
        digests = {path: one if isinstance(one, str) else digest_of(bytes_of(one)) for path, one in late.items()}
        return {"digests": digests, "copies": self.copies(digests), "left_out": self.left_out}

    def copies(self, late: Any) -> Any:
        """Returns `{path: paths}` of late buffers that have the values of buffers of the same name in another module
        (an average of the weights has copies of BatchNorm's buffers)."""
        buffers, found = dict(self.engine.state_.buffers()), {}
        for path in late:
            one, same = buffers.get(path), []
            for other, value in buffers.items() if one is not None else ():
                if other not in late and value.shape == one.shape and value.dtype == one.dtype:
                    length = len(os.path.commonprefix([path[::-1], other[::-1]]).rpartition(".")[0])
                    if length and torch.equal(value, one):  # pyright: ignore[reportArgumentType]
                        same.append((length, other))
            if same:
                found[path] = [other for length, other in same if length == max(same)[0]]
        return found

    def taken(self, loop: Loop, rank: int, notes: Any) -> Any:
        """Returns the paths of the buffers that a rank, after it has repeated a step alone, takes from another rank,
        according to that rank's notes; and by path the values that it has itself.

        Raises Refused if a buffer was each rank's own, or if that step left something out."""
        replacement = loop.recovery.replacement
        if replacement is not None and replacement.start_buffers is not None:
            began = {path: data for path, (_, _, data) in replacement.start_buffers.items()}
            own = {path: data for path, (_, _, data) in (replacement.own_buffers or {}).items()}
        elif loop.recovery.caught_up_from is not None:
            copies = zip(self.engine.noter.paths, loop.snapshot.taken.buffers)
            began = {path: bytes_of(copy) for path, (_, copy) in copies}
            ids = {id(one): path for path, one in self.engine.state_.buffers()}
            own = {ids.get(id(one)): bytes_of(copy) for one, copy in loop.held_buffers() or ()}
        else:
            return set(), {}
        left_out = notes["left_out"] or self.left_out
        if left_out is not None:
            raise Refused(
                "%s, which this rank has not done in a step that the others have "
                "completed; restart all ranks" % left_out
            )
        digests, copied = notes["digests"], {}
        others = sorted(path for path, digest in digests.items() if path in began and digest_of(began[path]) != digest)
        for path in others:
            values = {own.get(other) for other in notes["copies"].get(path, ())}
            if len(values) != 1 or None in values:
                why = (
                    "%s is this rank's own, and was changed at the end of a step that rank %d has "
                    "completed; restart all ranks"
                )
                raise Refused(why % (path, rank))
            copied[path] = values.pop()
        self.step, self.before = loop.number - 1, {path: digest_of(began[path]) for path in digests if path in began}
        return set(digests), copied

    def fill(self, copied: Any) -> None:
        """Writes the values that this rank has itself into its buffers."""
        with torch.no_grad():
            for path, one in self.engine.state_.buffers():
                if path in copied:
                    data = torch.frombuffer(bytearray(copied[path]), dtype=torch.uint8)
                    one.copy_(data.view(one.dtype).reshape(one.shape))

    # Random numbers.

    def begins(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        loop, ahead = self.engine.loop, None
        if loop is not None and loop.in_step and loop.phase is not CATCHING_UP and self.engine.is_main():
            seen = self.looked.get(id(optimizer), 0)
            if seen < LOOKS:
                self.looked[id(optimizer)] = seen + 1
                ahead = self.engine.copier.seed(), loop.attempt.forwards
        self.random.append(ahead)

    def ends(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        loop, ahead = self.engine.loop, self.random.pop() if self.random else None
        if ahead is None or loop is None or ahead[1] != loop.attempt.forwards or ahead[0] == self.engine.copier.seed():
            return
        self.looked[id(optimizer)] = LOOKS
        self.left_out = "%s takes random numbers in its step" % type(optimizer).__name__
        _link.say(
            "%s: where a rank is lost after that, and the others complete the step, all start again" % self.left_out
        )


def hook(function: Callable[..., Any]) -> Any:
    def called(*args):
        function(*args)

    called._torchdynamo_disable = True  # torch.compile leaves it out of its graphs without a warning
    return called


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def digest_of(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()
