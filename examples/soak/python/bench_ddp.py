#!/usr/bin/env python3
"""Cost of recording in a DDP training: run by `bench_trace` as two ranks, rank 0 prints one line of JSON.

`--what hooks`: time in taskd's hooks for each call, duration of the steps, and number of collectives as the group
itself counts them. `--what blocks`: duration of the steps with all kinds on and with all kinds off, in alternating
blocks of one run. `--what halves`: duration of the first half of the steps, from the first step on, and of the second.
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
from torch.utils.data import DataLoader, IterableDataset

from taskd import _hooks, _step_recorder
from taskd._kinds import STEP
from taskd._native import native
from taskd.torch.process_group import record_end

ON, OFF = 2**64 - 1, 0
BLOCK = 20  # steps
WARM = 20  # steps

spent = []  # calls of taskd's hooks: name, nanoseconds


def timed(what, name):
    """Returns a wrapper of a function that records its time."""

    def counting(*args, **kwargs):
        begun = time.perf_counter_ns()
        try:
            return what(*args, **kwargs)
        finally:
            spent.append((name, time.perf_counter_ns() - begun))

    return counting


class TimedLibrary:
    """Records the time of the functions that the hook of the steps calls."""

    begin_step, end = timed(native.begin_step, "step"), timed(native.end, "step")


class Inside:
    """torch's own group, which taskd's group contains, with some methods replaced."""

    def __init__(self, group, **others):
        self.group = group
        self.__dict__.update(others)

    def __getattr__(self, name):
        return getattr(self.group, name)


def time_collectives():
    """Records the time of a call of taskd's group, less that of the inner group. The time between both clocks counts
    as taskd's."""
    group, now, inside = dist.group.WORLD, time.perf_counter_ns, 0
    passed_on, method = group._inner.allreduce, type(group).allreduce

    def inner(*args):
        nonlocal inside
        begun = now()
        work = passed_on(*args)
        inside = now() - begun
        return work

    def outer(self, *args):
        begun = now()
        work = method(self, *args)
        spent.append(("call", now() - begun - inside))
        return work

    group._inner = Inside(group._inner, allreduce=inner)
    type(group).allreduce = outer


def time_hooks():
    time_collectives()
    for owner, name, label in (
        (record_end.Ends, "finish", "end"),
        (_hooks.Hook, "begin", "other"),
        (_hooks.Hook, "end", "other"),
    ):
        setattr(owner, name, timed(getattr(owner, name), label))
    _hooks.hooks[STEP].native = TimedLibrary()
    for functions in (_step_recorder.at_begin, _step_recorder.at_end):
        functions[:] = [timed(function, "step") for function in functions]


class Layers(nn.Module):
    """The main work of a model, without parameters: multiplies a given number of times, or for a given number of
    milliseconds."""

    WIDTH = 512

    def __init__(self, milliseconds, multiplications):
        super().__init__()
        self.weights = torch.randn(self.WIDTH, self.WIDTH) / self.WIDTH**0.5
        self.times = torch.tensor([multiplications or 100])
        if multiplications:
            return
        self.work()
        begun = time.perf_counter()
        self.work()
        self.times = (self.times * milliseconds / 1e3 / (time.perf_counter() - begun)).long()
        dist.broadcast(self.times, src=0)  # the same work for every rank

    def work(self):
        state = torch.randn(64, self.WIDTH)
        for _ in range(int(self.times)):
            state = torch.tanh(state @ self.weights)

    def forward(self, x):
        self.work()
        return x


class Samples(IterableDataset):
    """Yields the same batch repeatedly."""

    def __iter__(self):
        batch = torch.randn(32, 64), torch.randint(10, (32,))
        while True:
            yield batch


class Training:
    def __init__(self, step_ms, multiplications, extra):
        network = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), Layers(step_ms, multiplications), nn.Linear(256, 10))
        self.model = DistributedDataParallel(network)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.data = iter(DataLoader(Samples(), batch_size=None))
        self.extra = extra

    def step(self):
        begun = time.perf_counter_ns()
        x, y = next(self.data)
        loss = nn.functional.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        for _ in range(self.extra):
            dist.all_reduce(loss.detach())
        return time.perf_counter_ns() - begun


def hooks(training, steps):
    """Measures the time in taskd's hooks, by collective and by step."""
    time_hooks()
    for _ in range(WARM):
        training.step()
    spent.clear()
    lengths = [training.step() for _ in range(steps)]
    parts = {name: [ns for of, ns in spent if of == name] for name in ("call", "end")}
    return {
        "collectives_a_step": len(parts["call"]) / steps,
        "hook_us": sum(statistics.median(ns) for ns in parts.values()) / 1e3,
        "hook_percent": 100 * sum(ns for _, ns in spent) / sum(lengths),
        "parts_us": {name: statistics.median(ns for of, ns in spent if of == name) / 1e3 for name, _ in spent},
        "step_ms": statistics.median(lengths) / 1e6,
        "issued": dist.group.WORLD._get_sequence_number_for_group(),
    }


def blocks(training, steps):
    """Measures the duration of steps with all kinds on and off, in turns."""
    switches = ctypes.c_uint64.from_address(native.switches_address())
    lengths = {ON: [], OFF: []}
    for block in range(steps // BLOCK):
        state = (ON, OFF, OFF, ON)[block % 4]  # cancels a trend of the machine
        switches.value = state
        took = [training.step() for _ in range(BLOCK)]
        lengths[state].append(statistics.median(took) / 1e6)
    switches.value = ON
    return {"on_ms": lengths[ON], "off_ms": lengths[OFF]}


def halves(training, steps):
    """Measures the duration of the first half of the steps, and of the second."""
    took = []
    for _ in range(2):
        begun = time.perf_counter()
        for _ in range(steps // 2):
            training.step()
        took.append(time.perf_counter() - begun)
    return dict(zip(("first_s", "later_s"), took))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    work = parser.add_mutually_exclusive_group(required=True)
    work.add_argument("--step-ms", type=float, help="a step's length")
    work.add_argument("--multiplications", type=int, help="a step's work, which is the same in every run")
    parser.add_argument("--extra", type=int, default=1, help="all-reduces a step besides DDP's own")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--what", choices=["hooks", "blocks", "halves"], required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    training = Training(options.step_ms, options.multiplications, options.extra)
    result = {"hooks": hooks, "blocks": blocks, "halves": halves}[options.what](training, options.steps)
    if dist.get_rank() == 0:
        print(json.dumps(result), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
