"""A program that knows of nothing: DDP on the ranks that its launcher started. Prints how many operations torch's
profiler saw, for each group."""

import json
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

rendezvous, rank, world = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=world)
with profile(activities=[ProfilerActivity.CPU]) as profiler:
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(32, 600), torch.nn.Linear(600, 600)), bucket_cap_mb=1
    )
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(4, 32)).sum().backward()
        optimizer.step()
    dist.broadcast(torch.ones(3, dtype=torch.bfloat16), 1)
print(json.dumps({"seen": sum(event.name.startswith("c10d::") for event in profiler.events())}))
dist.destroy_process_group()
