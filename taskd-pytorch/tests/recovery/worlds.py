"""A world that is smaller for a while: the others go on without a rank, which comes back."""

import json
import os

import fsdp
import torch
import torch.distributed as dist
from programs import begin, steps
from stand_in import StandIn
from torch.nn.parallel import DistributedDataParallel

SAMPLES, BATCH = 400, 2
NAMES = ("stop", "clean", "rebuild", "repair", "rollback", "save", "exit")


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, at):
        return at


def noted(called, name):
    """A callback that keeps what it was called with; in a file as well, for a process that does not come to its end."""

    def note(*arguments):
        called.append([name, *arguments])
        with open(os.environ["RESULT"] + ".called", "a") as file:
            file.write(json.dumps(called[-1]) + "\n")

    return note


def calls(peer):
    """What a rank's callbacks were called with."""
    with open(peer.process.path + ".json.called") as file:
        return [json.loads(line) for line in file]


def sharing():
    """DDP over data that is shared out among the ranks. Each rank's gradient is the mean of its batch, and DDP's the
    mean of theirs. The same with FSDP that shards nothing."""
    taskd, rank, size = begin()
    torch.manual_seed(7)
    model = torch.nn.Linear(1, 1, bias=False)
    model = fsdp.whole(model) if os.environ.get("FSDP") else DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    data = Numbers()
    sampler = torch.utils.data.DistributedSampler(data, size, rank, seed=5)
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH, sampler=sampler)
    seen, called = {}, []
    callbacks = {name: noted(called, name) for name in NAMES}
    state = {"model": model, "optimizer": optimizer}
    for step in taskd.steps(state, data=loader, until=steps(), callbacks=callbacks):
        with step:
            batch = step.next()
            optimizer.zero_grad()
            model(batch.float().unsqueeze(1)).mean().backward()
            mean = batch.float().mean()
            dist.all_reduce(mean)
            mean /= dist.get_world_size()
            if not step.warming and abs(next(model.parameters()).grad.item() - mean.item()) > 1e-3:
                raise AssertionError("step %d: the gradient is no mean over the world that there is" % step.number)
            optimizer.step()
            if not step.warming:
                seen[step.number] = [dist.get_rank(), dist.get_world_size(), step.epoch(), batch.tolist()]
    weight = next(model.parameters()).item().hex()
    return {"seen": seen, "called": called, "weight": weight, "restarts": os.environ["TORCHELASTIC_RESTART_COUNT"]}


def smaller(**environment):
    """Rank 1 of 4 dies and is not replaced; some steps later it comes back."""
    with StandIn(4, sharing, STEPS="120", **environment) as world:
        world.until_step(10)
        world.world[1].process.kill()
        world.absent = {1}
        shrunk = world.recover()
        world.until_step(shrunk["step"] + 15)
        world.park(1)
        world.absent = set()
        grown = world.recover([1])
        found = world.finish()
    return {
        "shrunk": shrunk["step"],
        "grown": grown["step"],
        "places": [places(one["seen"], shrunk["step"], grown["step"]) for one in found],
        "epochs": [shares(found, 0), shares(found, 1)],
        "called": [one["called"] for one in found],
        "weights": [one["weight"] for one in found],
    }


def places(seen, shrunk, grown):
    """`(rank, size)` before, in between, and after, for all steps of each."""
    parts = [[], [], []]
    for number, (rank, size, _, _) in seen.items():
        part = parts[(int(number) >= shrunk) + (int(number) >= grown)]
        if [rank, size] not in part:
            part.append([rank, size])
    return parts


def shares(found, epoch):
    """Returns how many samples of an epoch were handed out twice, and how many no rank has reported."""
    taken = [at for one in found for _, _, of, batch in one["seen"].values() if of == epoch for at in batch]
    return {"twice": len(taken) - len(set(taken)), "never": SAMPLES - len(set(taken))}
