"""The start of a process that is to take another's place: it dials nobody, and where torch would wait for peers, or unpickle
what one has sent, it goes on with what it has.
"""

import os
import sys

import torch.distributed as dist

FROM_ANOTHER = ("broadcast_object_list", "scatter_object_list", "recv_object_list")


def install(module, engine):
    """`module` is torch.distributed.distributed_c10d."""
    rendezvous = module.rendezvous

    def without_peers(url, rank=-1, world_size=-1, **kwargs):
        if not engine.is_newcomer():
            yield from rendezvous(url, rank, world_size, **kwargs)
            return
        own = int(os.environ["RANK"]) if rank == -1 else rank
        size = int(os.environ["WORLD_SIZE"]) if world_size == -1 else world_size
        yield dist.HashStore(), own, size

    module.rendezvous = without_peers
    package = sys.modules["torch.distributed"]  # which may be in the middle of its own import, and then takes them over
    for name in FROM_ANOTHER:
        stand_before(module, name, engine)
        if hasattr(package, name):
            setattr(package, name, getattr(module, name))


def stand_before(module, name, engine):
    import functools

    function = getattr(module, name, None)
    if function is None:
        return

    @functools.wraps(function)
    def alone(*args, **kwargs):
        return None if engine.alone else function(*args, **kwargs)

    setattr(module, name, alone)
