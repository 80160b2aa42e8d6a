#!/usr/bin/env python3
"""Cost of recording in a DDP training: run by `bench_trace` as two ranks, rank 0 prints one line of JSON.

`--what hooks`: time in taskd's hooks for each call, once with native code for collectives and once with the Python code
that it replaces, in alternating blocks of one run; duration of the steps, and number of collectives as the group itself
counts them. `--what blocks`: duration of the steps with all kinds on and with all kinds off, in alternating
blocks of one run. `--what halves`: duration of the first half of the steps, from the first step on, and of the second.
"""

import argparse
import ctypes
import json
import statistics
import time
from _thread import get_ident
from collections import Counter

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

from taskd import _hooks, _step_recorder
from taskd._kinds import STEP
from taskd._native import native
from taskd.torch.process_group import record, wrapper

ON, OFF = 2**64 - 1, 0
BLOCK = 20  # steps
WARM = 20  # steps

HOOK_BLOCK, SETTLE = 10, 2  # steps of one way, and those at its beginning that are not counted
NATIVE, PYTHON, CLOCKS = "native", "python", "clocks"  # ways to record a collective; the last only reads the clocks

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

    begin_step, end = (staticmethod(timed(function, "step")) for function in (native.begin_step, native.end))


class Inside:
    """torch's own group, which taskd's group contains, with some methods replaced."""

    def __init__(self, group, **others):
        self.group = group
        self.__dict__.update(others)

    def __getattr__(self, name):
        return getattr(self.group, name)


class Collectives:
    """Records the time that the main thread spends in taskd's part of an all-reduce and of `Work.wait`: the call less
    that of torch's own function. The time between both clocks counts as taskd's; the way CLOCKS measures only that."""

    def __init__(self):
        group, self.work_class, self.inside = dist.group.WORLD, dist.distributed_c10d.Work, 0
        self.unseen = 0
        self.group_class, self.main = type(group), get_ident()
        native_recorder = next(one.__self__ for one in _step_recorder.at_begin if hasattr(one, "__self__"))
        if native_recorder.functions is None:
            raise SystemExit("native code does not record collectives in this process")
        group._inner = Inside(group._inner, allreduce=self.torchs(group._inner.allreduce))
        bare = native_recorder.ends.wait = self.torchs(native_recorder.ends.wait)
        native_recorder.prepare_native()
        native_wait, self.work_class.wait = self.work_class.wait, bare
        python_recorder = record.Recorder(dist.distributed_c10d, native)
        python_way = wrapper.recorded("allreduce", python_recorder), self.work_class.wait, python_recorder.sweep
        others = [one for one in _step_recorder.at_begin if getattr(one, "__name__", "") != "sweep"]
        self.ways = {
            NATIVE: (self.group_class.allreduce, native_wait, native_recorder.sweep),
            PYTHON: python_way,
            CLOCKS: (self.clocks, bare, lambda: None),
        }
        self.at_begin = [timed(other, "step") for other in others]

    def clocks(self, group, *args):
        self.unseen += 1
        next(group._numbers.collectives)  # the hook's counter stays torch's
        return group._inner.allreduce(*args)

    def torchs(self, function):
        def called(*args):
            if get_ident() != self.main:  # the thread that waits beside the program
                return function(*args)
            begun = time.perf_counter_ns()
            result = function(*args)
            self.inside = time.perf_counter_ns() - begun
            return result

        return called

    def use(self, way):
        """Records in this way from now on."""
        call, wait, sweep = self.ways[way]
        kinds = {True: "call in backward", False: "call"}

        def allreduce(group, *args):
            begun = time.perf_counter_ns()
            work = call(group, *args)
            spent.append((kinds[getattr(args[-1], "asyncOp", True)], time.perf_counter_ns() - begun - self.inside))
            return work

        def wait_for(work, *args):
            if get_ident() != self.main:
                return wait(work, *args)
            begun = time.perf_counter_ns()
            result = wait(work, *args)
            spent.append(("wait", time.perf_counter_ns() - begun - self.inside))
            return result

        self.group_class.allreduce, self.work_class.wait = allreduce, wait_for
        _step_recorder.at_begin[:] = [*self.at_begin, timed(sweep, "step")]


def time_hooks():
    for name in ("begin", "end"):
        setattr(_hooks.Hook, name, timed(getattr(_hooks.Hook, name), "other"))
    _hooks.hooks[STEP].native = TimedLibrary()
    _step_recorder.at_end[:] = [timed(function, "step") for function in _step_recorder.at_end]
    return Collectives()


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
    """Measures the time in taskd's hooks, by collective and by step, for each way to record a collective."""
    collectives = time_hooks()
    for way in collectives.ways:
        collectives.use(way)
        for _ in range(WARM):
            training.step()
    calls, lengths = {way: [] for way in collectives.ways}, {way: [] for way in collectives.ways}
    while len(lengths[NATIVE]) < steps:
        for way in (PYTHON, NATIVE, CLOCKS, CLOCKS, NATIVE, PYTHON):  # cancels a trend of the machine
            collectives.use(way)
            for _ in range(SETTLE):
                training.step()
            spent.clear()
            lengths[way] += [training.step() for _ in range(HOOK_BLOCK)]
            calls[way] += spent
    clocks = medians(calls[CLOCKS])
    return {
        "ways": {way: figures(calls[way], lengths[way], clocks) for way in (NATIVE, PYTHON)},
        "issued": dist.group.WORLD._get_sequence_number_for_group(),
        "unseen": collectives.unseen,
    }


def medians(calls):
    return {name: statistics.median(ns for of, ns in calls if of == name) for name in {name for name, _ in calls}}


def figures(calls, lengths, clocks):
    """Returns the figures of one way. The time of reading the clocks is subtracted from medians, not from sums."""
    parts, counts = medians(calls), Counter(name for name, _ in calls)
    of_collectives = ("call in backward", "call", "wait")
    for name in of_collectives:
        parts[name] = max(parts.get(name, 0) - clocks.get(name, 0), 0)
    issued = counts["call in backward"] + counts["call"]
    step = statistics.median(lengths)
    return {
        "collectives_a_step": issued / len(lengths),
        "hook_us": sum(parts[name] * counts[name] for name in of_collectives) / issued / 1e3,
        "hook_percent": 100 * sum(ns for _, ns in calls) / sum(lengths),
        "hook_percent_p50": 100 * sum(parts[name] * counts[name] for name in counts) / len(lengths) / step,
        "parts_us": {name: ns / 1e3 for name, ns in parts.items()},
        "step_ms": step / 1e6,
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
