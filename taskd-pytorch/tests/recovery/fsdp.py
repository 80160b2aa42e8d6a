"""Training programs with FSDP: some of which each rank has a part, and one that shards nothing. What befalls the
latter, and what became of it.
"""

import contextlib
import os

import torch
from programs import Cut, Losses, Once, begin, digest, has_no_memory, noise, steps
from stand_in import StandIn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard

CPU = torch.device("cpu")
AT, STEPS = 10, 30


def sharded(shard):
    """A model of which each rank has a part."""
    taskd, rank, size = begin()
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))
    model = shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(100 + rank)
    state = {} if os.environ.get("UNNAMED") else {"model": model, "optimizer": optimizer}
    for step in taskd.steps(state, until=steps()):
        with step:
            optimizer.zero_grad()
            model(noise()).square().mean().backward()
            optimizer.step()
    return {}


def one():
    return sharded(lambda model: FullyShardedDataParallel(model, device_id=CPU, use_orig_params=True))


def two():
    return sharded(lambda model: fully_shard(model) or model)


def whole(module, flat=False):
    """Each rank has all of it."""
    no_shard = ShardingStrategy.NO_SHARD
    return FullyShardedDataParallel(module, device_id=CPU, sharding_strategy=no_shard, use_orig_params=not flat)


def replicated():
    """FSDP that shards nothing, one module inside of another. Its middle layer fails at WHERE."""
    taskd, rank, size = begin()
    torch.manual_seed(7)
    flat = bool(os.environ.get("FLAT"))
    middle = whole(torch.nn.Linear(64, 64), flat)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 64), middle, torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 16)
    )
    model = whole(model, flat)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(100 + rank)
    losses, cut, short, now = Losses(), Cut(rank), Once("SHORT", rank, has_no_memory), [-1]
    if os.environ.get("WHERE") == "forward":
        middle.register_forward_hook(lambda *_: short(now[0]))
    else:
        middle.register_full_backward_hook(lambda *_: cut(now[0]) or short(now[0]))
    state = {} if os.environ.get("UNNAMED") else {"model": model, "optimizer": optimizer}
    for step in taskd.steps(state, until=steps()):
        with step:
            now[0] = -1 if step.warming else step.number
            optimizer.zero_grad()
            for last in (False, True) if os.environ.get("PARTS") else (True,):
                with contextlib.nullcontext() if last else model.no_sync():
                    loss = model(noise()).square().mean()
                    loss.backward()
            optimizer.step()
            losses.add(step, loss)
    return {"digest": digest(model, optimizer), "losses": losses}


def cases(undisturbed, verdict, compared, kill, retry):
    """Ranks are killed, steps are done again though no rank died, operations fail and passes end in their middle."""
    for settings in ({}, {"FLAT": "1"}, {"PARTS": "1"}):
        reference = undisturbed(replicated, STEPS, **settings)
        for name, befalls in (
            ("operation", {"INJECT": "1:%d" % AT}),
            ("backward", {"SHORT": "2:%d" % AT}),
            ("forward", {"SHORT": "3:%d" % AT, "WHERE": "forward"}),
        ):
            with StandIn(4, replicated, STEPS=str(STEPS), **settings, **befalls) as world:
                world.until_failed()
                phases = [world.recover()]
                yield "%s %s" % (name, settings), verdict(reference, world.finish(), phases, world)
    for settings in ({}, {"FLAT": "1"}, {"PARTS": "1"}, {"UNNAMED": "1"}):
        reference = undisturbed(replicated, 60, **settings)
        for fault in (kill, retry):
            found = compared(replicated, fault, steps=60, faults=1, reference=reference, **settings)
            yield "%s %s" % (fault.__name__, settings), found
