"""Results of collectives that all ranks call at the start of a loader's epoch: recorded, and replayed to a rank that
begins the epoch again.

Loaders of frameworks have such operations: accelerate's copy rank 0's random numbers, so that all ranks shuffle alike.
A rank that resumes in the middle of an epoch begins the epoch by itself, and the others do not take part a second time.

The module never makes an operation, and records no more of one than its result.
"""

from __future__ import annotations

import torch

from taskd._session import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BYTES_MAX = 256 << 10  # limit for the results of operations at the start of one epoch
GIVES_NOTHING = ("send", "barrier", "monitored_barrier")


class Tape:
    def __init__(self) -> None:
        self.calls = []  # [operation, its tensors, their bytes when it completed]

    def add(self, name: str, args: tuple[Any, ...]) -> Any:
        self.calls.append([name, [] if name in GIVES_NOTHING or not args else list(tensors_in(args[0])), None])
        return self.calls[-1]

    def notes(self) -> Any:
        """Returns `[(operation, [bytes])]`; None if that is too large."""
        for call in self.calls:
            ends(call)
        size = sum(len(data) for _, _, given in self.calls for data in given)
        return [(name, given) for name, _, given in self.calls] if size <= BYTES_MAX else None


def ends(call: Any) -> None:
    """Saves the result of a completed operation."""
    if call[2] is None:
        call[2] = [bytes_of(one) for one in call[1]]


class Replayed:
    """The operations of a tape, each answered with its recorded result."""

    def __init__(self, notes: Any) -> None:
        self.left = list(notes or ())

    def answer(self, name: str, args: tuple[Any, ...]) -> Any:
        if not self.left:
            raise Refused(
                "the loader calls for %s as its epoch begins again, which it has not done "
                "before; restart all ranks" % name
            )
        noted, given = self.left.pop(0)  # pyright: ignore[reportGeneralTypeIssues]
        here = [] if name in GIVES_NOTHING or not args else list(tensors_in(args[0]))
        if noted != name or [len(data) for data in given] != [one.numel() * one.element_size() for one in here]:
            raise Refused("the loader calls for another %s as its epoch begins again; restart all ranks" % name)
        with torch.no_grad():
            for one, data in zip(here, given):
                if data:
                    one.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8).view(one.dtype).reshape(one.shape))


def tensors_in(what: Any) -> Any:
    if isinstance(what, torch.Tensor):
        yield what
    elif isinstance(what, (list, tuple)):
        for one in what:
            yield from tensors_in(one)


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
