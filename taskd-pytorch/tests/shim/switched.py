"""Trains for one step on each request, and reports its completion."""

import itertools
import sys

import torch

net = torch.nn.Sequential(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
batches = itertools.cycle(torch.utils.data.DataLoader(torch.ones(64, 2)))
for _ in sys.stdin:
    net(next(batches)).sum().backward()
    optimizer.step()
    torch.save(net.state_dict(), "/dev/null")
    print("trained", flush=True)
