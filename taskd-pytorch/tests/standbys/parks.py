"""A training with `taskd.steps` that is held in its step HELD until the file `go` is there, so that a rank can be lost
in between.

Its argument names how it divides its data: each rank draws its own once it knows which it is (`late`), a sampler
finds out by itself (`sampler`), or the script asks for its rank and makes the sampler before there is a model
(`early`).
"""

import os
import sys

open("begun-%d" % os.getpid(), "w").close()

import hashlib
import json
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import taskd

HELD, STEPS = 6, 24
shares = sys.argv[1]
dist.init_process_group("gloo")
torch.manual_seed(7)
data = TensorDataset(torch.randn(120, 8))
sampler = rank = None
if shares == "early":
    rank = dist.get_rank()
    sampler = DistributedSampler(data, num_replicas=dist.get_world_size(), rank=rank, seed=3)
elif shares == "sampler":
    sampler = DistributedSampler(data, seed=3)
loader = DataLoader(data, batch_size=8, sampler=sampler, shuffle=sampler is None)
net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 4))
model = DistributedDataParallel(net, bucket_cap_mb=0.001)
optimizer = torch.optim.Adam(model.parameters())
losses, computed = {}, None


def with_rank():
    global rank
    rank = dist.get_rank()
    torch.manual_seed(100 + rank)


def note(committed):
    """The loss of a step counts once all have done it."""
    if computed and computed[0] == committed:
        losses[committed] = computed[1]


def hold():
    with open("held-%d" % os.getpid(), "w"):
        pass
    while not os.path.exists("go"):
        time.sleep(0.001)


for step in taskd.steps({"model": model, "optimizer": optimizer}, data=loader, until=STEPS, with_rank=with_rank):
    note(step.committed)
    with step:
        if step.number == HELD and not step.warming:
            hold()
        optimizer.zero_grad()
        loss = model(step.next()[0]).square().mean()
        loss.backward()
        optimizer.step()
        computed = None if step.warming else (step.number, loss.item().hex())
note(step.committed)
state = hashlib.sha256(torch.get_rng_state().numpy())
for one in list(net.state_dict().values()) + [value for held in optimizer.state.values() for value in held.values()]:
    state.update(one.numpy().tobytes())
with open("result-%d" % rank, "w") as file:
    json.dump(dict(pid=os.getpid(), rank=rank, losses=losses, state=state.hexdigest()), file)
dist.destroy_process_group()
