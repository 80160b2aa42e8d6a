"""Random numbers of a DataLoader's persistent workers: saved when an epoch begins, and restored.

Such workers continue from epoch to epoch with the state that the previous epoch has left, which no other process knows.
torch sends each of them a message when an epoch begins, and each sends it back. Ours is a message of this kind that
takes the worker's random numbers when the worker reads it, or sets others. It reaches a worker after all earlier
requests, so nothing is in progress then.

The module never draws random numbers, and a worker that cannot report its own has none.
"""

from __future__ import annotations

import os
import sys
import zlib

import torch
from torch.utils.data._utils import worker

from taskd import _codec
from taskd.torch import rng

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

plain = worker._ResumeIteration
came = None  # (message number, random numbers) of returned messages, while an epoch begins that is recorded
given = []  # random numbers that the next messages set, in the order of the workers


class Resume(plain):
    """The message. It keeps the arguments that it was made with."""

    sent = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        plain.__init__(self, *args, **kwargs)
        Resume.sent += 1
        brings = given.pop(0) if given else None
        object.__setattr__(self, "taskd", (os.getpid(), Resume.sent, brings))

    def __getstate__(self):
        return dict(self.__dict__)

    def __setstate__(self, state):
        self.__dict__.update(state)
        try:
            pid, number, brings = self.taskd  # pyright: ignore[reportAttributeAccessIssue]
            if pid == os.getpid():
                if came is not None:
                    came.append((number, brings))
                return
            if brings is not None:
                restore(brings)
            object.__setattr__(self, "taskd", (pid, number, state_here()))
        except Exception as error:
            sys.stderr.write("taskd: the random numbers of a DataLoader's worker are not known: %s\n" % error)


def state_here() -> bytes:
    numpy = sys.modules.get("numpy")
    of_numpy = rng.ask_numpy() if numpy and hasattr(numpy, "random") else None
    return zlib.compress(_codec.encode((rng.ask_python(), of_numpy, torch.get_rng_state().numpy().tobytes())), 1)


def restore(data: Any) -> None:
    of_python, of_numpy, of_torch = _codec.decode(zlib.decompress(data))
    rng.give_python(of_python)
    rng.give_numpy(of_numpy)
    torch.set_rng_state(rng.tensor(of_torch))


def install() -> None:
    if worker._ResumeIteration is plain:
        worker._ResumeIteration = Resume


def persist(loader: Any) -> bool:
    """Returns true if a DataLoader's workers outlive an epoch."""
    return bool(getattr(loader, "num_workers", 0) and getattr(loader, "persistent_workers", False))


def end(loader: Any) -> None:
    """Ends the workers of a loader, which makes new ones at its next use."""
    iterator = loader._iterator
    if iterator is not None:
        object.__setattr__(loader, "_iterator", None)
        iterator._shutdown_workers()


def begin(loader: Any) -> None:
    """Makes the workers of a loader, and no batch."""
    if loader._iterator is not None:
        return
    name = "batch_sampler" if loader._auto_collation else "sampler"
    real = getattr(loader, name)
    object.__setattr__(loader, name, ())  # its own __setattr__ refuses that
    try:
        iterator = loader._get_iterator()
    finally:
        object.__setattr__(loader, name, real)
    iterator._index_sampler = loader._index_sampler
    object.__setattr__(loader, "_iterator", iterator)
