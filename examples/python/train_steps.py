#!/usr/bin/env python3
"""Trains a small network on random numbers, data-parallel over gloo, until the file --stop exists.

    torchrun --nproc-per-node 3 train_steps.py --stop stop

Every rank prints a line for each step. A rank that finds a bad sample fails, as in a real training.
"""

import argparse
import pathlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stop", type=pathlib.Path, required=True, help="all ranks stop once this file is there")
    parser.add_argument("--samples", type=pathlib.Path, required=True, help="directory with rank R's bad sample, bad-R")
    parser.add_argument("--pace-ms", type=float, default=0, help="pause in every step, to stand for a larger model")
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    bad = args.samples / f"bad-{rank}"
    stop = torch.zeros(())
    step = 0
    while not stop.item():
        if bad.exists():
            bad.unlink()
            raise ValueError(f"rank {rank}: the sample of step {step + 1} is not finite")
        loss = model(torch.randn(8, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        print(f"step {step} loss {loss.item():.4f}", flush=True)
        time.sleep(args.pace_ms / 1000)
        stop.fill_(float(rank == 0 and args.stop.exists()))
        dist.broadcast(stop, src=0)
    dist.barrier()  # a rank that ends while others are in a collective may abort theirs
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
