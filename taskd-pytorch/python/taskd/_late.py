"""Buffers that change late in a step: after its last backward pass and operation, when the others need nothing more of a rank.

A rank that is lost there has left what they were before, and a rank that does the step by itself, with no optimizer that steps, comes to
others where they depend on parameters (an average of the weights). Such a buffer is taken from another rank, if the two had the same
when the step began; what was each rank's own is lost, and all start again.

It also looks whether optimizers take random numbers in their own step, which a step that is done alone leaves out.
"""

import hashlib
import os

import torch

from taskd import _link
from taskd._loop import CATCHING_UP
from taskd._session import Refused

LOOKS = 4  # steps of each optimizer in which it is looked whether it takes random numbers


class Late:
    def __init__(self, engine):
        self.engine = engine
        self.step, self.before = None, {}  # of the newest step that was completed: its late buffers, as they were when it began
        self.told = set()
        self.looked = {}  # id of an optimizer: how often
        self.random = []  # ahead of each optimizer's step that is under way, one of which may be inside of another
        self.left_out = None  # what a step that is done alone lacks, in a sentence
        self.is_installed = False

    def install(self):
        """All of torch is there by now."""
        if not self.is_installed:
            self.is_installed = True
            from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

            register_optimizer_step_pre_hook(hook(self.begins))
            register_optimizer_step_post_hook(hook(self.ends))

    # Of the buffers.

    def look(self):
        """A step is over, and no other was begun."""
        loop, noter = self.engine.loop, self.engine.noter
        if loop.note is None or loop.noted is None or loop.noted != loop.committed or loop.noted == self.step:
            return
        found = noter.changes_late()
        for path in [one for one in found if one.endswith("num_batches_tracked")]:  # beside which torch's kernels change others, unseen
            found.update(path[: -len("num_batches_tracked")] + name for name in noter.UNSEEN)
        copies = {path: copy for path, (_, copy) in zip(noter.paths, loop.note.buffers) if path in found}
        self.step, self.before = loop.noted, copies
        new = sorted(set(copies) - self.told)
        if new:
            self.told.update(new)
            unseen = ", as far as can be seen" if noter.unseen.intersection(new) else ""
            how = "changed behind a step's last backward pass%s" % unseen
            why = "%s: %s; a rank that is lost there takes it from another that had the same ahead of the step, and where none had "
            _link.say((why + "all ranks start again") % (", ".join(new[:8]), how))

    def notes(self, step):
        """Of the step ahead of this one: what its late buffers were when it began, as digests by path, and which others they are copies of
        by now; and what a rank that does it alone leaves out."""
        if self.engine.loop.number == step:
            self.look()
        late = self.before if self.step == step - 1 else {}
        digests = {path: one if isinstance(one, str) else digest_of(bytes_of(one)) for path, one in late.items()}
        return {"digests": digests, "copies": self.copies(digests), "left_out": self.left_out}

    def copies(self, late):
        """`{path: paths}` of late buffers that have the values of others, which are of the same name in another module (an average has
        BatchNorm's of what it averages)."""
        buffers, found = dict(self.engine.state_.buffers()), {}
        for path in late:
            one, same = buffers.get(path), []
            for other, value in buffers.items() if one is not None else ():
                if other not in late and value.shape == one.shape and value.dtype == one.dtype:
                    length = len(os.path.commonprefix([path[::-1], other[::-1]]).rpartition(".")[0])
                    if length and torch.equal(value, one):
                        same.append((length, other))
            if same:
                found[path] = [other for length, other in same if length == max(same)[0]]
        return found

    def taken(self, loop, rank, notes):
        """Which buffers a rank that has done a step by itself takes from another, of what that has told; and the values of those which
        it has itself, by path.

        Raises Refused: one of them was each rank's own, or that step lacked something."""
        if loop.start_buffers is not None:
            began = {path: data for path, (_, _, data) in loop.start_buffers.items()}
            own = {path: data for path, (_, _, data) in (loop.own_buffers or {}).items()}
        elif loop.caught_up is not None:
            began = {path: bytes_of(copy) for path, (_, copy) in zip(self.engine.noter.paths, loop.note.buffers)}
            ids = {id(one): path for path, one in self.engine.state_.buffers()}
            own = {ids.get(id(one)): bytes_of(copy) for one, copy in loop.held_buffers() or ()}
        else:
            return set(), {}
        left_out = notes["left_out"] or self.left_out
        if left_out is not None:
            raise Refused("%s, which this rank has not done in a step that the others have completed; restart all ranks" % left_out)
        digests, copied = notes["digests"], {}
        others = sorted(path for path, digest in digests.items() if path in began and digest_of(began[path]) != digest)
        for path in others:
            values = {own.get(other) for other in notes["copies"].get(path, ())}
            if len(values) != 1 or None in values:
                why = "%s is this rank's own, and was changed at the end of a step that rank %d has completed; restart all ranks"
                raise Refused(why % (path, rank))
            copied[path] = values.pop()
        self.step, self.before = loop.number - 1, {path: digest_of(began[path]) for path in digests if path in began}
        return set(digests), copied

    def fill(self, copied):
        """Puts the values in place that this rank has itself."""
        with torch.no_grad():
            for path, one in self.engine.state_.buffers():
                if path in copied:
                    data = torch.frombuffer(bytearray(copied[path]), dtype=torch.uint8)
                    one.copy_(data.view(one.dtype).reshape(one.shape))

    # Of random numbers.

    def begins(self, optimizer, args, kwargs):
        loop, ahead = self.engine.loop, None
        if loop is not None and loop.in_step and loop.kind != CATCHING_UP and self.engine.is_main():
            seen = self.looked.get(id(optimizer), 0)
            if seen < LOOKS:
                self.looked[id(optimizer)] = seen + 1
                ahead = self.engine.copier.seed(), loop.forwards
        self.random.append(ahead)

    def ends(self, optimizer, args, kwargs):
        loop, ahead = self.engine.loop, self.random.pop() if self.random else None
        if ahead is None or loop is None or ahead[1] != loop.forwards or ahead[0] == self.engine.copier.seed():
            return
        self.looked[id(optimizer)] = LOOKS
        self.left_out = "%s takes random numbers in its step" % type(optimizer).__name__
        _link.say("%s: where a rank is lost after that, and the others complete the step, all start again" % self.left_out)


def hook(function):
    def called(*args):
        function(*args)

    called._torchdynamo_disable = True  # torch.compile leaves it out of its graphs without a warning
    return called


def bytes_of(tensor):
    return tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def digest_of(data):
    return hashlib.sha256(data).hexdigest()
