"""Programs whose ranks are replicas, and one whose ranks are not though all that they have looks alike: which checksums
they report."""

import os

import torch
import torch.distributed as dist
from programs import begin, noise, steps
from stand_in import StandIn
from torch.nn.parallel import DistributedDataParallel

STEPS = 14  # the last checksum is of step 8: what a process reports as it ends may be lost


def replicas():
    """DDP with BatchNorm, whose buffers are each rank's own where BROADCAST is unset."""
    taskd, rank, size = begin()
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 16))
    model = DistributedDataParallel(model, broadcast_buffers=bool(os.environ.get("BROADCAST")))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(100 + rank)
    state = {} if os.environ.get("UNNAMED") else {"model": model, "optimizer": optimizer}
    for step in taskd.steps(state, until=steps()):
        with step:
            optimizer.zero_grad()
            model(noise()).square().mean().backward()
            optimizer.step()
    return {}


def by_hand():
    """Replicas that no group of the framework shows as such: gradients are averaged by hand."""
    taskd, rank, size = begin()
    torch.manual_seed(7)
    model = torch.nn.Linear(32, 16)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(100 + rank)
    for step in taskd.steps({"model": model, "optimizer": optimizer}, until=steps()):
        with step:
            optimizer.zero_grad()
            model(noise()).square().mean().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
    return {}


def stages():
    """A pipeline whose stages have one shape, and the same parameters when they begin."""
    taskd, rank, size = begin()
    torch.manual_seed(7)
    model = torch.nn.Linear(32, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for step in taskd.steps({"model": model, "optimizer": optimizer}, until=steps()):
        with step:
            optimizer.zero_grad()
            given = torch.ones(8, 32)
            if rank > 0:
                dist.recv(given, rank - 1)
                given.requires_grad_(True)
            made = model(given)
            if rank + 1 < size:
                dist.send(made.detach(), rank + 1)
                grad = torch.empty_like(made)
                dist.recv(grad, rank + 1)
                made.backward(grad)
            else:
                made.square().mean().backward()
            if rank > 0:
                dist.send(given.grad, rank - 1)
            optimizer.step()
    return {}


def reported(program, ranks=2, **environment):
    """By step: how many checksums the ranks have reported, how many different ones, and of how many groups."""
    with StandIn(ranks, program, STEPS=str(STEPS), **environment) as world:
        world.are_replicas = False
        world.finish()
        rounds = {}
        for (_, step), by_rank in sorted(world.digests.items()):
            digests = list(by_rank.values())
            groups = {one["group"] for one in digests}
            different = len({one["digest"] for one in digests})
            rounds[str(step)] = [len(digests), different, len(groups - {None})]
        return rounds


def all_programs():
    return {
        "ddp": reported(replicas),
        "ddp with broadcast": reported(replicas, BROADCAST="1"),
        "ddp, found": reported(replicas, UNNAMED="1"),
        "by hand": reported(by_hand),
        "stages": reported(stages),
    }


def pipelined():
    """torch's own pipeline of as many stages as ranks."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    taskd, rank, size = begin()
    torch.manual_seed(7)
    module = torch.nn.Linear(32, 32)
    stage = PipelineStage(module, rank, size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=size, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-2)
    for step in taskd.steps({"model": module, "optimizer": optimizer}, until=steps()):
        with step:
            optimizer.zero_grad()
            if rank == 0:
                schedule.step(torch.ones(8, 32))
            else:
                schedule.step(target=torch.zeros(8, 32))
            optimizer.step()
    return {}
