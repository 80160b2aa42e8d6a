"""Trains on random numbers, data-parallel over gloo: `train.py STEPS`."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import taskd

dist.init_process_group("gloo")
torch.manual_seed(7)
model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
training = {"model": model, "optimizer": optimizer}
print(f"process {os.getpid()}", flush=True)

start = taskd.load_checkpoint(training) or 0
for step in taskd.steps(training, start=start, until=int(sys.argv[1])):
    with step:
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.02)  # a larger model
dist.destroy_process_group()
