#!/usr/bin/env python3
"""What recording costs a DDP training: run by `bench_trace` as two ranks, rank 0 prints one line of JSON.

Two figures. The time inside of our hooks, counted call by call, beside the length of the steps. And the length of steps with
all kinds on beside that of steps with all of them off, in blocks that take turns within the run.
"""

import argparse
import ctypes
import json
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from taskd import _group_ends, _group_recorder
from taskd._native import native

ON, OFF = 2**64 - 1, 0
BLOCK = 20  # steps
WARM = 20  # steps

spent = []  # nanoseconds in our hooks, by call


def timed(owner, name):
    """Counts what a method takes."""
    method = getattr(owner, name)

    def counting(*args, **kwargs):
        begun = time.perf_counter_ns()
        try:
            return method(*args, **kwargs)
        finally:
            spent.append((name, time.perf_counter_ns() - begun))

    setattr(owner, name, counting)


class Device(nn.Module):
    """Stands for an accelerator: takes a while."""

    def __init__(self, milliseconds):
        super().__init__()
        self.seconds = milliseconds / 1000

    def forward(self, x):
        time.sleep(self.seconds)
        return x


class Training:
    def __init__(self, device_ms, extra):
        network = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), Device(device_ms), nn.Linear(256, 10))
        self.model = DistributedDataParallel(network)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.x, self.y = torch.randn(32, 64), torch.randint(10, (32,))
        self.extra = extra

    def step(self):
        begun = time.perf_counter_ns()
        loss = nn.functional.cross_entropy(self.model(self.x), self.y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        for _ in range(self.extra):
            dist.all_reduce(loss.detach())
        return time.perf_counter_ns() - begun


def hooks(training, steps):
    """Time in our hooks, by collective and by step."""
    for owner, name in ((_group_recorder.Recorder, "begin"), (_group_recorder.Recorder, "end_with"), (_group_ends.Ends, "finish")):
        timed(owner, name)
    for _ in range(WARM):
        training.step()
    spent.clear()
    lengths = [training.step() for _ in range(steps)]
    parts = {name: [ns for of, ns in spent if of == name] for name in ("begin", "end_with", "finish")}
    each = sum(statistics.median(ns) for ns in parts.values() if ns)
    return {
        "collectives": len(parts["begin"]),
        "hook_us_p50": each / 1e3,
        "hook_us_mean": sum(ns for _, ns in spent) / max(len(parts["begin"]), 1) / 1e3,
        "hook_percent": 100 * sum(ns for _, ns in spent) / sum(lengths),
        "step_ms": statistics.median(lengths) / 1e6,
    }


def blocks(training, steps):
    """The steps' lengths with all kinds on and off, in turns."""
    switches = ctypes.c_uint64.from_address(native.switches_address())
    lengths = {ON: [], OFF: []}
    for block in range(steps // BLOCK):
        state = (ON, OFF)[block % 2]
        switches.value = state
        took = [training.step() for _ in range(BLOCK)]
        if block > 1:
            lengths[state].append(statistics.median(took) / 1e6)
    switches.value = ON
    return {"on_ms": lengths[ON], "off_ms": lengths[OFF]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device-ms", type=float, required=True)
    parser.add_argument("--extra", type=int, default=1, help="all-reduces a step besides DDP's own")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--what", choices=["hooks", "blocks"], required=True)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    training = Training(options.device_ms, options.extra)
    result = (hooks if options.what == "hooks" else blocks)(training, options.steps)
    if dist.get_rank() == 0:
        print(json.dumps(result), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
