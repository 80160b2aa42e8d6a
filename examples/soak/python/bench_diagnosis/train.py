#!/usr/bin/env python3
"""Trains until it is stopped: replicas with DDP, or two pipeline stages of replicas, without any use of taskd.

A step reads a batch from disk, computes on the host, waits for a simulated accelerator, communicates, and writes a
checkpoint every other step. The accelerator is a timed wait in short pieces, because several ranks share few cores: it
stops with the process, but needs no core. The work on the host is real, so that a limit of CPU time acts. Batches are
read, and checkpoints written, without the page cache, so that a limit of the storage acts.

Files in --dir are orders that only a program can carry out: `skip-R` lets rank R leave one all-reduce out, `size-R`
reduces more elements, `slower` makes the script slower on all ranks.
"""

import argparse
import io
import itertools
import mmap
import os
import pathlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

FEATURES, HIDDEN, CLASSES, BATCH = 64, 256, 10, 8
SAMPLES, SAMPLE_BYTES = 64, 4096
CHECKPOINT_BYTES, CHECKPOINT_EVERY = 1 << 17, 2  # room for a model; steps
HOST_SECONDS = 0.004  # of CPU time
MICRO_BATCHES, ROWS = 2, 64  # of the pipeline


def direct(path, flags):
    return os.open(path, flags | os.O_DIRECT, 0o644)


class Samples(Dataset):
    """Samples on disk, one block each."""

    def __init__(self, path):
        path.write_bytes(os.urandom(SAMPLES * SAMPLE_BYTES))
        self.file, self.block = direct(path, os.O_RDONLY), mmap.mmap(-1, SAMPLE_BYTES)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, at):
        os.preadv(self.file, [self.block], at * SAMPLE_BYTES)
        sample = torch.frombuffer(bytearray(self.block[:FEATURES]), dtype=torch.uint8)
        return sample.float() / 255, sample[0].long() % CLASSES


class Shard(io.BytesIO):
    """A checkpoint file of fixed length: written by `flush`, with which torch.save ends."""

    def __init__(self, path):
        super().__init__()
        self.file, self.block = direct(path, os.O_WRONLY | os.O_CREAT), mmap.mmap(-1, CHECKPOINT_BYTES)

    def flush(self):
        data = self.getvalue()
        self.block[: len(data)] = data
        os.pwrite(self.file, self.block, 0)
        self.seek(0)
        self.truncate()


class Device:
    """The simulated accelerator: kernel after kernel. One that is woken late is made up for, as by a queue of kernels;
    a stop of the process is not."""

    KERNEL = 0.002  # seconds

    def __init__(self, slower):
        self.slower = slower

    def run(self, milliseconds):
        if self.slower.exists():
            milliseconds *= 1.5
        due = time.monotonic()
        for _ in range(round(milliseconds / 1000 / self.KERNEL)):
            due = max(due, time.monotonic() - self.KERNEL) + self.KERNEL
            time.sleep(max(0.0, due - time.monotonic()))


def work_on_host():
    until = time.thread_time() + HOST_SECONDS
    while time.thread_time() < until:
        sum(range(500))


class Replicas:
    """Data parallel."""

    def __init__(self, options, device):
        self.device, self.milliseconds = device, options.device_ms
        network = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
        self.model = DistributedDataParallel(network)

    def step(self, x, y):
        output = self.model(x)
        self.device.run(self.milliseconds)
        loss = nn.functional.cross_entropy(output, y)
        loss.backward()
        return loss.item()


class Pipeline:
    """Two stages of replicas. Rank = stage * replicas + replica. Gradients are reduced in a group for each stage."""

    def __init__(self, options, device):
        self.device, self.milliseconds = device, options.device_ms / MICRO_BATCHES / 2
        rank, self.replicas = dist.get_rank(), dist.get_world_size() // 2
        self.stage = rank // self.replicas
        self.peer = (rank + self.replicas) % (2 * self.replicas)
        stages = [list(range(at * self.replicas, (at + 1) * self.replicas)) for at in range(2)]
        self.group = [dist.new_group(ranks) for ranks in stages][self.stage]
        size = FEATURES if self.stage == 0 else HIDDEN
        outputs = HIDDEN if self.stage == 0 else CLASSES
        self.model = nn.Sequential(nn.Linear(size, outputs), nn.Tanh())

    def step(self, x, y):
        parts = [self.first, self.last][self.stage](x, y)
        gradients = torch.cat([p.grad.flatten() for p in self.model.parameters()])
        dist.all_reduce(gradients, group=self.group)
        return sum(parts)

    def first(self, x, _):
        sent = []
        for _ in range(MICRO_BATCHES):
            self.device.run(self.milliseconds)
            sent.append(self.model(x.repeat(ROWS // BATCH, 1)))
            dist.send(sent[-1].detach(), self.peer)
        for output in sent:
            gradient = torch.empty_like(output)
            dist.recv(gradient, self.peer)
            self.device.run(self.milliseconds)
            output.backward(gradient)
        return [0.0]

    def last(self, _, y):
        losses = []
        received = self.receive()
        for at in range(MICRO_BATCHES):
            self.device.run(2 * self.milliseconds)
            loss = nn.functional.cross_entropy(self.model(received), y.repeat(ROWS // BATCH))
            loss.backward()
            gradient = received.grad
            if at + 1 < MICRO_BATCHES:
                received = self.receive()  # the first stage sends it before it receives a gradient
            dist.send(gradient, self.peer)
            losses.append(loss.item())
        return losses

    def receive(self):
        received = torch.empty(ROWS, HIDDEN)
        dist.recv(received, self.peer)
        return received.requires_grad_(True)


def batches(loader):
    while True:
        yield from loader


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=pathlib.Path, required=True, help="data, checkpoints and orders")
    parser.add_argument("--device-ms", type=float, required=True, help="time of a step on the simulated accelerator")
    parser.add_argument("--pipeline", action="store_true", help="two stages instead of replicas alone")
    return parser.parse_args()


def main():
    options = arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    trainer = (Pipeline if options.pipeline else Replicas)(options, Device(options.dir / "slower"))
    optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.01)
    data = batches(DataLoader(Samples(options.dir / f"samples-{rank}"), batch_size=BATCH, shuffle=True))
    shard = Shard(options.dir / f"checkpoint-{rank}")
    skip, size = (options.dir / f"{order}-{rank}" for order in ("skip", "size"))
    for step in itertools.count(1):
        x, y = next(data)
        work_on_host()
        optimizer.zero_grad()
        loss = torch.tensor([trainer.step(x, y)])
        if size.exists():
            size.unlink()
            dist.all_reduce(torch.zeros(3))
        elif skip.exists():
            skip.unlink()
        else:
            dist.all_reduce(loss)
        optimizer.step()
        if rank == 0:
            print(f"step {step} at {time.monotonic():.6f}", flush=True)
        if step % CHECKPOINT_EVERY == 0:
            torch.save(trainer.model.state_dict(), shard)


if __name__ == "__main__":
    main()
