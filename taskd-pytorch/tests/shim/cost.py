"""What marks and hooks cost, in nanoseconds: the best of many short runs, so that other programs count as little as can
be.

With the recorder it prints what each costs switched on and off; with TASKD_HOOKS=0 what the same takes without.
"""

import ctypes
import json
import sys
from time import perf_counter_ns

import taskd
from taskd._native import Nothing, native

CALLS, RUNS = 1000, 300


def best(function, calls=CALLS, runs=RUNS):
    least = None
    for _ in range(runs):
        began = perf_counter_ns()
        function(calls)
        took = perf_counter_ns() - began
        least = took if least is None else min(least, took)
    return least / calls


def empty(calls):
    for _ in range(calls):
        pass


def pair(calls):
    start, end = taskd.range_start, taskd.range_end
    for _ in range(calls):
        end(start("mine"))


def native_pair(calls):
    begin, end = native.begin, native.end
    for _ in range(calls):
        end(begin(16))


def context_manager(calls):
    for _ in range(calls):
        with taskd.range("mine"):
            pass


def mark(calls):
    for _ in range(calls):
        taskd.mark("mine")


def step_pair(calls):
    for n in range(calls):
        taskd.range_end(taskd.range_start("step 7"))


def marks():
    figures = {"range_start and range_end": pair, "with range": context_manager, "mark": mark, "step": step_pair}
    if not isinstance(native, Nothing):
        figures["begin and end of the library"] = native_pair
    return {name: best(function) - best(empty) for name, function in figures.items()}


def hooks():
    import torch

    class Through(torch.nn.Module):
        def forward(self, given):
            return given

    class Around(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Through()

        def forward(self, calls):
            inner = self.inner
            for _ in range(calls):
                inner(None)

    through, around = Through(), Around()
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)

    class Batches(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(range(10**9))

    batches = iter(torch.utils.data.DataLoader(Batches(), batch_size=None))

    def outermost(calls):
        for _ in range(calls):
            through(None)

    def loader(calls):
        for _ in range(calls):
            next(batches)

    def step(calls):
        for _ in range(calls):
            optimizer.step()

    def save(calls):
        for _ in range(calls):
            torch.save(None, "/dev/null")

    return {
        "call of the outermost module": best(outermost),
        "call of a module inside": best(around),
        "next batch": best(loader, 100),
        "optimizer.step": best(step, 100),
        "torch.save": best(save, 10),
    }


def switched(to, what):
    if not isinstance(native, Nothing):
        ctypes.c_uint64.from_address(native.switches_address()).value = to
    return what()


what = {"marks": marks, "hooks": hooks}[sys.argv[1]]
print(json.dumps([switched(2**64 - 1, what), switched(0, what)]))
