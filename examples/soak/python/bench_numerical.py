#!/usr/bin/env python3
"""Cost of the figures of `TASKD_NUMERICAL`: run by `bench_trace` as two ranks, rank 0 prints one line of JSON.

For a model of each size: the time of one norm of all gradients and of one checksum of a part of the parameters, and the
number of steps between two of them, which taskd has chosen. For the smallest model also the time in all hooks in steps
in which neither is due, and the processor time of steps with the figures on and off, in alternating blocks of one run.
All of it on processors: what an accelerator adds is not measured.
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

from taskd._native import native
from taskd.torch import numerical
from taskd.torch.numerical import checksums, watch

WIDTH = 1024  # a layer has 2**20 parameters
ON, OFF = 2**64 - 1, 0
BLOCK = 16  # steps: two checksums


def unreduced(_, bucket):
    """Reduces nothing: all ranks have the same gradients, as they have the same data."""
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


class Training:
    def __init__(self, layers):
        torch.manual_seed(0)
        network = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
        self.model = DistributedDataParallel(network, gradient_as_bucket_view=True)
        self.model.register_comm_hook(None, unreduced)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.x = torch.randn(8, WIDTH)

    def step(self):
        self.optimizer.zero_grad(set_to_none=False)
        self.model(self.x).square().mean().backward()
        self.optimizer.step()


def timed(function, rounds):
    """Returns the median time of a call in microseconds, and the longest."""
    function()
    taken = []
    for _ in range(rounds):
        begun = time.perf_counter_ns()
        function()
        taken.append((time.perf_counter_ns() - begun) / 1e3)
    return {"us": statistics.median(taken), "most_us": max(taken)}


def parts(training, rounds):
    """Measures one norm and one checksum."""
    for one in training.model.parameters():
        one.grad = torch.ones_like(one)
    [group] = checksums.Checksums().of([training.model])
    turn = [0]

    def checksum():
        turn[0] += 1
        sums = group.sums(turn[0] % len(group.parts))
        checksums.value_of(0, [one.item() for one in sums])

    def norm():
        return [one.item() for one in watch.norms_of(training.optimizer)]

    return {
        "parameters": sum(one.numel() for one in training.model.parameters()),
        "norm": dict(timed(norm, rounds), every=watch.norm_every(training.optimizer)),
        "checksum": dict(timed(checksum, 3 * rounds), every=checksums.EVERY_STEPS, parts=len(group.parts)),
    }


def hooks(training, steps):
    """Measures the time in all hooks in steps in which neither norm nor checksum is due, in microseconds."""
    current, taken = numerical.current, []
    current.every = 1 << 30
    for _ in range(steps):
        training.step()
        before = current.spent_ns
        training.step()
        taken.append((current.spent_ns - before) / 1e3)
    current.every = 0
    return statistics.median(taken)


def blocks(training, count):
    """Measures the processor time of a step with the figures on and off, in turns."""
    switches = ctypes.c_uint64.from_address(native.switches_address())
    taken = {ON: [], OFF: []}
    for block in range(count):
        state = (ON, OFF, OFF, ON)[block % 4]  # cancels a trend of the machine
        switches.value = state
        begun = time.thread_time_ns()
        for _ in range(BLOCK):
            training.step()
        taken[state].append((time.thread_time_ns() - begun) / 1e6 / BLOCK)
    switches.value = ON
    return {"on_ms": taken[ON], "off_ms": taken[OFF]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", required=True, help="of 2**20 parameters each")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--blocks", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    models, result = [], {}
    for layers in options.layers:
        training = Training(layers)
        models.append(parts(training, options.rounds))
        if not result:
            result = {"hooks_us": hooks(training, options.rounds), **blocks(training, options.blocks)}
        del training
    if dist.get_rank() == 0:
        print(json.dumps({"models": models, **result}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
