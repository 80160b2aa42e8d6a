"""`init_process_group` of a standby: it connects to no peer. Where torch would wait for peers, or unpickle an object of
a peer, it continues with its own.

A standby that runs ahead of its rank counts as rank 0 for torch itself; a program that requests the rank waits there
until the rank is known.
"""

from __future__ import annotations

import os
import sys
import weakref

import torch.distributed as dist

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from taskd.torch.engine import Engine

WITH_OBJECTS = ("all_gather_object", "gather_object")
FROM_ANOTHER = ("broadcast_object_list", "scatter_object_list", "recv_object_list")
SAMPLERS = "torch.utils.data.distributed"
LOADERS = "torch.utils.data.dataloader"
# Modules of torch that do not depend on the rank while there are no peers, and one whose objects get the rank later.
NEUTRAL = ("torch.distributed.distributed_c10d", "torch.nn.parallel.distributed", "torch._utils_internal", SAMPLERS)
samplers = []  # weak references to samplers made before the rank was known


def install(module: Any, engine: Engine) -> None:
    """Installs the functions of a standby in `module`, torch.distributed.distributed_c10d."""
    rendezvous = module.rendezvous

    def without_peers(url, rank=-1, world_size=-1, **kwargs):
        if not engine.is_replacement():
            yield from rendezvous(url, rank, world_size, **kwargs)
            return
        own = rank if rank != -1 else 0 if has_no_rank_yet() else int(os.environ["RANK"])
        size = int(os.environ["WORLD_SIZE"]) if world_size == -1 else world_size
        yield dist.HashStore(), own, size

    module.rendezvous = without_peers
    wait_for_rank(module)
    for name in (*FROM_ANOTHER, *WITH_OBJECTS):
        stand_before(module, name, engine)
    package = sys.modules["torch.distributed"]  # may still be importing: it then copies the names
    for name in (*FROM_ANOTHER, *WITH_OBJECTS, "get_rank"):
        if hasattr(package, name):
            setattr(package, name, getattr(module, name))


def stand_before(module: Any, name: str, engine: Engine) -> None:
    import functools

    function = getattr(module, name, None)
    if function is None:
        return

    @functools.wraps(function)
    def alone(*args, **kwargs):
        if engine.alone and name in FROM_ANOTHER:
            return None
        loop = engine.loop
        if loop is None or loop.attempt.body_completed is None or not engine.is_main():
            return function(*args, **kwargs)
        try:  # after the `with` of a step: an aborted operation has delivered no objects
            return None if loop.attempt.body_completed is False else function(*args, **kwargs)
        except Exception:
            if not loop.attempt.fails_after:
                raise

    setattr(module, name, alone)


def has_no_rank_yet() -> bool:
    return getattr(sys.modules.get("_taskd_standby_prepare"), "current", None) is not None


def wait_for_rank(module: Any) -> None:
    """Makes `get_rank` wait for the rank in a standby that runs ahead."""
    import functools

    get_rank = module.get_rank

    @functools.wraps(get_rank)
    def known(group=None):
        if has_no_rank_yet():
            asks = sys._getframe(1)
            if asks.f_globals.get("__name__") not in NEUTRAL and not is_plain_loader(asks):
                sys.modules["_taskd_standby_prepare"].park("asks for its rank")
            elif asks.f_globals["__name__"] == SAMPLERS and "self" in asks.f_locals:
                samplers.append(weakref.ref(asks.f_locals["self"]))
        return get_rank(group)

    module.get_rank = known


def is_plain_loader(asks: Any) -> bool:
    """Returns true if the caller is a DataLoader that will not use the rank: it uses the rank for datapipes that it
    shards, and its workers, which it forks next, may request it themselves."""
    if asks.f_globals.get("__name__") != LOADERS:
        return False
    data = sys.modules["torch.utils.data"]
    batches = asks.f_back.f_locals.get("self")
    is_pipe = isinstance(getattr(batches, "_dataset", None), (data.IterDataPipe, data.MapDataPipe))
    return getattr(batches, "_num_workers", None) == 0 and not is_pipe


def seat_samplers() -> None:
    """Gives the samplers their rank's part of the data."""
    for sampler in (one() for one in samplers):
        if sampler is not None:
            sampler.rank = dist.get_rank()
    del samplers[:]
