"""What a forward and backward pass changes, noted when a step begins and put back when it is done again: random numbers,
buffers (BatchNorm's), gradient scalers, gradients, and what a program registers besides (`_noted`). Parameters and optimizers it
never touches: they change in the commit window.

A buffer that did not change since the last note is not copied again.
"""

import torch

from taskd import _noted, _random, _state
from taskd._loop import TRAIN

LOOKS, LOOKED_AT_EVERY = 8, 61  # steps, the first and of the later ones, in which all gradients are looked at; no program has this period


class Noter:
    UNSEEN = "running_mean", "running_var"  # of BatchNorm: torch's kernels change them without giving them another version

    def __init__(self, state):
        self.state = state
        self.copies = {}  # id of a buffer: (the buffer, its version, its copy)
        self.zeroed = False  # gradients were zeroed in this step before any backward pass
        self.zeroes = False  # the program does that, as was seen in the step before
        self.backward = False
        self.paths, self.found, self.versions = [], [], []  # of the buffers that there were when the step began
        self.others = _noted.Others(state)

    def note(self):
        self.zeroes, self.zeroed, self.backward = self.zeroed, False, False
        return Note(self)

    def changed(self):
        """Whether buffers have changed since this was asked last, or since the step began."""
        versions = [one._version for one in self.found]
        was, self.versions = self.versions, versions
        return was != versions

    def carries(self, loop):
        """Whether there are gradients as the step's first backward pass begins. To look at those of a device makes the program wait for it,
        and to look at all takes long where all are zero: that is done in few steps. One of them may be zero where others are not."""
        if loop.kind != TRAIN or loop.note is None or loop.noted != loop.number:
            return False
        held = [one.grad for one, copy in loop.note.grads if copy is not None and one.grad is not None]
        if loop.number - loop.first >= LOOKS and loop.number % LOOKED_AT_EVERY:
            held = [one for one in held[:1] if one.device.type == "cpu"]
        return any(bool(_state.local(one).any()) for one in held)

    def saw_zero_grad(self):
        if not self.backward:
            self.zeroed = True

    def copy_of(self, path, buffer):
        entry = self.copies.get(id(buffer))
        if entry is None or entry[0] is not buffer or entry[1] != buffer._version or path.endswith(self.UNSEEN):
            entry = self.copies[id(buffer)] = (buffer, buffer._version, buffer.detach().clone())
        return entry[2]


class Note:
    def __init__(self, noter):
        self.noter = noter
        self.random = _random.state()
        noter.paths, noter.found, self.buffers = [], [], []
        self.scalers = []
        self.scalers_are_found()
        self.others = noter.others.note()
        self.grads = []
        for optimizer in noter.state.optimizers():
            for group in optimizer.param_groups:
                self.note_grads(group["params"])
        self.modules_are_found(not self.grads)

    def note_grads(self, parameters):
        for parameter in parameters:
            grad = parameter.grad
            if grad is None:
                self.grads.append((parameter, None))
            elif not self.noter.zeroes:
                self.grads.append((parameter, grad.detach().clone()))

    def scalers_are_found(self):
        """Notes those that are known by now. The program's first use of one comes ahead of what changes its scale."""
        known = {id(one.scaler) for one in self.scalers}
        found = [one for one in self.noter.state.named.values() if _noted.is_scaler(one) and id(one) not in known]
        self.scalers += [Scaler(one) for one in found]

    def modules_are_found(self, with_grads):
        """Notes what is known by now and was not before: the program uses it for the first time."""
        noter = self.noter
        known = {id(one) for one in noter.found}
        for path, one in noter.state.buffers():
            if id(one) not in known:
                noter.paths.append(path)
                noter.found.append(one)
                self.buffers.append((one, noter.copy_of(path, one)))
        noter.versions = [one._version for one in noter.found]
        self.ddp = [(one, one.require_forward_param_sync) for one in noter.state.modules() if is_ddp(one)]
        if with_grads:
            known = {id(one) for one, _ in self.grads}
            for module in noter.state.modules():
                self.note_grads(one for one in module.parameters() if id(one) not in known)

    def put_back(self):
        for other in self.others:  # before anything is changed
            other.check()
        for other in self.others:
            other.put_back()
        _random.restore(self.random)
        with torch.no_grad():
            for buffer, copy in self.buffers:
                buffer.copy_(copy)
            for parameter, grad in self.grads:
                if grad is None or parameter.grad is None:
                    parameter.grad = grad
                else:
                    parameter.grad.copy_(grad)
        for scaler in self.scalers:
            scaler.put_back()
        for model, syncs in self.ddp:  # whether its next forward pass copies buffers, which is an operation of all ranks
            model.require_forward_param_sync = syncs


def packed(buffers):
    """Buffers in host memory as bytes, by path. To copy those of a device would make the program wait for it."""
    return {
        path: (one.dtype, tuple(one.shape), one.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
        for path, one in buffers
        if one.device.type == "cpu" and one.numel()
    }


def fill(buffers, values):
    with torch.no_grad():
        for path, one in buffers:
            dtype, shape, data = values.get(path, (None, None, None))
            if dtype == one.dtype and shape == tuple(one.shape):
                one.copy_(torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape))


def is_ddp(what):
    return hasattr(what, "require_forward_param_sync")


class Scaler:
    """A gradient scaler's state, without a look at its values: that would make the program wait for its device."""

    TENSORS = ("_scale", "_growth_tracker")

    def __init__(self, scaler):
        self.scaler = scaler
        self.copies = {name: one.clone() for name in self.TENSORS for one in [getattr(scaler, name)] if one is not None}

    def put_back(self):
        for name, copy in self.copies.items():
            getattr(self.scaler, name).copy_(copy)
        self.scaler._per_optimizer_states.clear()
