"""The random numbers of a DataLoader's persistent workers: what they are when an epoch begins, and to be that again.

Such workers go on from epoch to epoch with what the one before has left, which no other process knows. torch sends each of them a
message when an epoch begins, and each sends it back: ours is one of its kind that takes the worker's random numbers along as it is
read there, or has it go on with others. It reaches a worker after all that was asked of it before, so nothing is under way then.

It never draws any, and a worker that cannot tell has none.
"""

import os
import random
import sys
import zlib

import torch
from torch.utils.data._utils import worker

from taskd import _codec, _random

plain = worker._ResumeIteration
came = None  # (message's number, random numbers) of those that come back, while an epoch begins of which they are taken
given = []  # what the next messages bring to the workers, in their order


class Resume(plain):
    """The message. What it was made with it keeps."""

    sent = 0

    def __init__(self, *args, **kwargs):
        plain.__init__(self, *args, **kwargs)
        Resume.sent += 1
        brings = given.pop(0) if given else None
        object.__setattr__(self, "taskd", (os.getpid(), Resume.sent, brings))

    def __getstate__(self):
        return dict(self.__dict__)

    def __setstate__(self, state):
        self.__dict__.update(state)
        try:
            pid, number, brings = self.taskd
            if pid == os.getpid():
                if came is not None:
                    came.append((number, brings))
                return
            if brings is not None:
                restore(brings)
            object.__setattr__(self, "taskd", (pid, number, state_here()))
        except Exception as error:
            sys.stderr.write("taskd: the random numbers of a DataLoader's worker are not known: %s\n" % error)


def state_here():
    numpy = sys.modules.get("numpy")
    of_numpy = _random.ask_numpy() if numpy and hasattr(numpy, "random") else None
    return zlib.compress(_codec.encode((_random.ask_python(), of_numpy, torch.get_rng_state().numpy().tobytes())), 1)


def restore(data):
    of_python, of_numpy, of_torch = _codec.decode(zlib.decompress(data))
    _random.give_python(of_python)
    _random.give_numpy(of_numpy)
    torch.set_rng_state(_random.tensor(of_torch))


def install():
    if worker._ResumeIteration is plain:
        worker._ResumeIteration = Resume


def persist(loader):
    """Whether a DataLoader's workers outlive an epoch."""
    return bool(getattr(loader, "num_workers", 0) and getattr(loader, "persistent_workers", False))


def end(loader):
    """Has it make others when it is used next."""
    iterator = loader._iterator
    if iterator is not None:
        object.__setattr__(loader, "_iterator", None)
        iterator._shutdown_workers()


def begin(loader):
    """Has it make its workers, and no batch."""
    if loader._iterator is not None:
        return
    name = "batch_sampler" if loader._auto_collation else "sampler"
    real = getattr(loader, name)
    object.__setattr__(loader, name, ())  # its own way refuses that
    try:
        iterator = loader._get_iterator()
    finally:
        object.__setattr__(loader, name, real)
    iterator._index_sampler = loader._index_sampler
    object.__setattr__(loader, "_iterator", iterator)
