"""The start of a process that is to take another's place: it dials nobody, and where torch would wait for peers, or unpickle
what one has sent, it goes on with what it has.

One that runs ahead of its rank counts as rank 0 for torch itself; a program that asks waits there until the rank is known.
"""

import os
import sys
import weakref

import torch.distributed as dist

WITH_OBJECTS = ("all_gather_object", "gather_object")
FROM_ANOTHER = ("broadcast_object_list", "scatter_object_list", "recv_object_list")
SAMPLERS = "torch.utils.data.distributed"
LOADERS = "torch.utils.data.dataloader"
# Modules of torch's to which the rank makes no difference while there are no peers, and one whose objects get it later.
NEUTRAL = ("torch.distributed.distributed_c10d", "torch.nn.parallel.distributed", "torch._utils_internal", SAMPLERS)
samplers = []  # weak references to those that were made before the rank was known


def install(module, engine):
    """`module` is torch.distributed.distributed_c10d."""
    rendezvous = module.rendezvous

    def without_peers(url, rank=-1, world_size=-1, **kwargs):
        if not engine.is_newcomer():
            yield from rendezvous(url, rank, world_size, **kwargs)
            return
        own = rank if rank != -1 else 0 if runs_ahead() else int(os.environ["RANK"])
        size = int(os.environ["WORLD_SIZE"]) if world_size == -1 else world_size
        yield dist.HashStore(), own, size

    module.rendezvous = without_peers
    wait_for_rank(module)
    for name in (*FROM_ANOTHER, *WITH_OBJECTS):
        stand_before(module, name, engine)
    package = sys.modules["torch.distributed"]  # which may be in the middle of its own import, and then takes them over
    for name in (*FROM_ANOTHER, *WITH_OBJECTS, "get_rank"):
        if hasattr(package, name):
            setattr(package, name, getattr(module, name))


def stand_before(module, name, engine):
    import functools

    function = getattr(module, name, None)
    if function is None:
        return

    @functools.wraps(function)
    def alone(*args, **kwargs):
        if engine.alone and name in FROM_ANOTHER:
            return None
        loop = engine.loop
        if loop is None or loop.after is None or not engine.is_main():
            return function(*args, **kwargs)
        try:  # behind the `with` of a step: what was given up has brought no objects
            return None if loop.after is False else function(*args, **kwargs)
        except Exception:
            if not loop.fails_after:
                raise

    setattr(module, name, alone)


def runs_ahead():
    return getattr(sys.modules.get("_taskd_ahead"), "current", None) is not None


def wait_for_rank(module):
    """Who runs ahead and asks `get_rank` waits for it."""
    import functools

    get_rank = module.get_rank

    @functools.wraps(get_rank)
    def known(group=None):
        if runs_ahead():
            asks = sys._getframe(1)
            if asks.f_globals.get("__name__") not in NEUTRAL and not is_plain_loader(asks):
                sys.modules["_taskd_ahead"].park("asks for its rank")
            elif asks.f_globals["__name__"] == SAMPLERS and "self" in asks.f_locals:
                samplers.append(weakref.ref(asks.f_locals["self"]))
        return get_rank(group)

    module.get_rank = known


def is_plain_loader(asks):
    """Whether a DataLoader asks that will not use the answer: it has the rank for pipes that it shards, and workers, which it forks
    next, may ask themselves."""
    if asks.f_globals.get("__name__") != LOADERS:
        return False
    data = sys.modules["torch.utils.data"]
    batches = asks.f_back.f_locals.get("self")
    is_pipe = isinstance(getattr(batches, "_dataset", None), (data.IterDataPipe, data.MapDataPipe))
    return getattr(batches, "_num_workers", None) == 0 and not is_pipe


def seat_samplers():
    """Samplers have their rank's part of the data from now on."""
    for sampler in (one() for one in samplers):
        if sampler is not None:
            sampler.rank = dist.get_rank()
    del samplers[:]
