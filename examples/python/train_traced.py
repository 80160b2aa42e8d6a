#!/usr/bin/env python3
"""Trains data-parallel until a file stops it: an ordinary DDP script for the diagnosis examples.

    torchrun --nproc-per-node 4 train_traced.py --dir out

A step is forward, backward with DDP's own all-reduce, optimizer, and one all-reduce of the loss. `Device` simulates an
accelerator: a step waits for it as for a real one, in many short pieces. Files in --dir cause faults of rank R:
`skip-R` leaves one all-reduce out, `mismatch-R` calls another collective in its place. `stop` ends the training of all
ranks.
"""

import argparse
import pathlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

FEATURES, CLASSES, SAMPLES = 64, 10, 4096


class Digits(Dataset):
    """Synthetic samples, the same for every run."""

    def __init__(self):
        source = torch.Generator().manual_seed(1)
        self.x = torch.randn(SAMPLES, FEATURES, generator=source)
        self.y = torch.randint(CLASSES, (SAMPLES,), generator=source)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, at):
        return self.x[at], self.y[at]


class Device(nn.Module):
    """Simulated accelerator: returns its input after some time, kernel after kernel.

    A kernel that is woken late is compensated, as by a queue of kernels; a stop of the process is not.
    """

    KERNEL = 0.001  # seconds

    def __init__(self, milliseconds):
        super().__init__()
        self.kernels = int(milliseconds)

    def forward(self, x):
        due = time.monotonic()
        for _ in range(self.kernels):
            due = max(due, time.monotonic() - self.KERNEL) + self.KERNEL
            time.sleep(max(0.0, due - time.monotonic()))
        return x


def batches(loader):
    while True:
        yield from loader


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--dir", type=pathlib.Path, required=True, help="checkpoints, and files that make ranks go wrong"
    )
    parser.add_argument("--steps", type=int, default=1_000_000, help="training steps at most")
    parser.add_argument(
        "--device-ms", type=float, default=40, help="how long the accelerator's stand-in takes for a step"
    )
    parser.add_argument(
        "--checkpoint-every", type=int, default=0, metavar="N", help="steps between checkpoints; 0 for none"
    )
    return parser.parse_args()


def main():
    options = arguments()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), Device(options.device_ms), nn.Linear(256, CLASSES))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = batches(DataLoader(Digits(), batch_size=32, shuffle=True))
    skip, mismatch, stop = (options.dir / name for name in (f"skip-{rank}", f"mismatch-{rank}", "stop"))
    for step in range(1, options.steps + 1):
        x, y = next(data)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shared = torch.tensor([loss.item(), float(stop.exists())])
        if mismatch.exists():
            mismatch.unlink()
            dist.broadcast(shared, src=0)
        elif skip.exists():
            skip.unlink()
        else:
            dist.all_reduce(shared)
        if rank == 0:
            print(f"step {step} loss {shared[0].item() / dist.get_world_size():.4f}", flush=True)
            if options.checkpoint_every and step % options.checkpoint_every == 0:
                torch.save(model.module.state_dict(), options.dir / "checkpoint.pt")
        if shared[1] > 0:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
