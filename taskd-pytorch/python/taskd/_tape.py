"""What operations of all ranks have given where an epoch of a loader begins: noted, and given again to a rank that begins it once more.

Loaders of frameworks have such operations: accelerate's take rank 0's random numbers, so that all shuffle alike. A rank that goes on in
the middle of an epoch begins it by itself, and the others do not take part a second time.

It never makes an operation, and what is noted of one is no more than it has given.
"""

import torch

from taskd._session import Refused

BYTES_MAX = 256 << 10  # of what operations give at the beginning of one epoch
GIVES_NOTHING = ("send", "barrier", "monitored_barrier")


class Tape:
    def __init__(self):
        self.calls = []  # [operation, its tensors, what they were when it was over]

    def add(self, name, args):
        self.calls.append([name, [] if name in GIVES_NOTHING or not args else list(tensors_in(args[0])), None])
        return self.calls[-1]

    def notes(self):
        """`[(operation, [bytes])]`; None where it is too much."""
        for call in self.calls:
            ends(call)
        size = sum(len(data) for _, _, given in self.calls for data in given)
        return [(name, given) for name, _, given in self.calls] if size <= BYTES_MAX else None


def ends(call):
    """An operation is over."""
    if call[2] is None:
        call[2] = [bytes_of(one) for one in call[1]]


class Again:
    """The operations of a tape, each answered as it was."""

    def __init__(self, notes):
        self.left = list(notes or ())

    def answer(self, name, args):
        if not self.left:
            raise Refused("the loader calls for %s as its epoch begins again, which it has not done before; restart all ranks" % name)
        noted, given = self.left.pop(0)
        here = [] if name in GIVES_NOTHING or not args else list(tensors_in(args[0]))
        if noted != name or [len(data) for data in given] != [one.numel() * one.element_size() for one in here]:
            raise Refused("the loader calls for another %s as its epoch begins again; restart all ranks" % name)
        with torch.no_grad():
            for one, data in zip(here, given):
                if data:
                    one.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8).view(one.dtype).reshape(one.shape))


def tensors_in(what):
    if isinstance(what, torch.Tensor):
        yield what
    elif isinstance(what, (list, tuple)):
        for one in what:
            yield from tensors_in(one)


def bytes_of(tensor):
    return tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
