#!/usr/bin/env python3
"""Trains data-parallel until a file stops it: an ordinary DDP script for the diagnosis examples.

    torchrun --nproc-per-node 4 train_traced.py --dir out

A step is forward, backward with DDP's own all-reduce, optimizer, and one all-reduce of the loss. `Device` simulates an
accelerator: a step waits for it as for a real one, in many short pieces. Files in --dir cause faults of rank R:
`skip-R` leaves one all-reduce out, `mismatch-R` calls another collective in its place, `size-R` reduces more elements;
`slow-input-R` and `slow-checkpoint-R` simulate slow storage. `nan-R` (or `nan-all`) puts a NaN into one batch,
`spike-R` weighs the loss wrongly, `bitflip-R` flips one bit of one parameter. `slow-all` makes the devices of all ranks
slower, `stop` ends the training of all ranks.
"""

import argparse
import io
import pathlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

FEATURES, CLASSES, SAMPLES = 64, 10, 4096


SLOW_READ, SLOW_WRITE, SLOW_DEVICE = 0.02, 0.06, 20  # seconds, seconds, milliseconds
BATCH = 32
TOGETHER = 20  # steps, at multiples of which a fault of all ranks begins: in the same step on all


class Digits(Dataset):
    """Synthetic samples, the same for every run. Reading them takes longer while the file `slow` exists."""

    def __init__(self, slow):
        self.slow = slow
        source = torch.Generator().manual_seed(1)
        self.x = torch.randn(SAMPLES, FEATURES, generator=source)
        self.y = torch.randint(CLASSES, (SAMPLES,), generator=source)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, at):
        if self.slow.exists():
            time.sleep(SLOW_READ / BATCH)
        return self.x[at], self.y[at]


class Device(nn.Module):
    """Simulated accelerator: returns its input after some time, kernel after kernel.

    A kernel that is woken late is compensated, as by a queue of kernels; a stop of the process is not.
    """

    KERNEL = 0.001  # seconds

    def __init__(self, milliseconds, slow):
        super().__init__()
        self.kernels, self.slow = int(milliseconds), slow

    def forward(self, x):
        due = time.monotonic()
        for _ in range(self.kernels + (SLOW_DEVICE if self.slow.exists() else 0)):
            due = max(due, time.monotonic() - self.KERNEL) + self.KERNEL
            time.sleep(max(0.0, due - time.monotonic()))
        return x


class Damage:
    """Numerical faults of one rank, each ordered by a file."""

    def __init__(self, place, rank):
        self.nan, self.nan_all = place / f"nan-{rank}", place / "nan-all"
        self.spike, self.bitflip = place / f"spike-{rank}", place / f"bitflip-{rank}"
        self.knows_all = False

    def batch(self, step, x, y):
        is_of_all = step % TOGETHER == 0 and not self.knows_all and self.nan_all.exists()
        if is_of_all or self.nan.exists():
            self.nan.unlink(missing_ok=True)
            self.knows_all = is_of_all
            x[0, 0] = float("nan")
        return x, y

    def weight(self):
        return 4.0 if self.spike.exists() else 1.0

    def parameters(self, model):
        if self.bitflip.exists():
            self.bitflip.unlink()
            with torch.no_grad():  # bit 20 of the 32: a fraction of the value
                next(model.parameters()).view(torch.int32)[0, 0] ^= 1 << 20


def batches(loader):
    while True:
        yield from loader


class SlowFile(io.FileIO):
    """Storage that takes its time for the first bytes of a file."""

    def write(self, data):
        if self.tell() == 0:
            time.sleep(SLOW_WRITE)
        return super().write(data)


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
    parser.add_argument("--shards", action="store_true", help="all ranks write checkpoints, not rank 0 alone")
    return parser.parse_args()


def main():
    options = arguments()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    device = Device(options.device_ms, options.dir / "slow-all")
    network = nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), device, nn.Linear(256, CLASSES))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = batches(DataLoader(Digits(options.dir / f"slow-input-{rank}"), batch_size=BATCH, shuffle=True))
    names = (f"skip-{rank}", f"mismatch-{rank}", f"size-{rank}", f"slow-checkpoint-{rank}", "stop")
    skip, mismatch, size, slow_checkpoint, stop = (options.dir / name for name in names)
    damage = Damage(options.dir, rank)
    for step in range(1, options.steps + 1):
        x, y = damage.batch(step, *next(data))
        loss = nn.functional.cross_entropy(model(x), y) * damage.weight()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        damage.parameters(model)
        shared = torch.tensor([loss.item(), float(stop.exists())])
        if mismatch.exists():
            mismatch.unlink()
            dist.broadcast(shared, src=0)
        elif size.exists():
            size.unlink()
            dist.all_reduce(torch.zeros(3))
        elif skip.exists():
            skip.unlink()
        else:
            dist.all_reduce(shared)
        if rank == 0:
            print(f"step {step} loss {shared[0].item() / dist.get_world_size():.4f}", flush=True)
        is_writer = rank == 0 or options.shards
        if is_writer and options.checkpoint_every and step % options.checkpoint_every == 0:
            path = options.dir / f"checkpoint-{rank}.pt"
            with SlowFile(path, "w") if slow_checkpoint.exists() else open(path, "wb") as file:
                torch.save(model.module.state_dict(), file)
        if shared[1] > 0:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
