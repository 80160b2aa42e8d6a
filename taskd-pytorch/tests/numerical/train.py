"""A DDP training that reports nothing itself, with a numerical fault of one rank: `FAULT` is `KIND:RANK:STEP`, and rank
`all` is every rank."""

import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS, PAUSE = 60, 0.02

torch.set_num_threads(1)
dist.init_process_group("gloo")
kind, victim, at = (os.environ["FAULT"] + "::").split(":")[:3]
torch.manual_seed(7)
network = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
model = DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
source = torch.Generator().manual_seed(dist.get_rank())
for step in range(1, STEPS + 1):
    is_here = victim in ("all", str(dist.get_rank())) and at == str(step)
    x = torch.randn(16, 8, generator=source)
    if is_here and kind == "nan":
        x[0, 0] = float("nan")
    optimizer.zero_grad()
    (model(x) - 1).square().mean().backward()
    optimizer.step()
    if is_here and kind == "bitflip":
        with torch.no_grad():
            network[2].weight.view(torch.int32)[0, 3] ^= 1 << 12
    time.sleep(PAUSE)
dist.destroy_process_group()
