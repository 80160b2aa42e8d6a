"""What the hook itself takes for a collective, in microseconds: the time of a call less that of the inner group's."""

import statistics
import time

import torch
import torch.distributed as dist

import ranks

CALLS = 500


class Timed:
    """An inner group that notes how long it takes."""

    def __init__(self, group):
        self.group = group
        self.nanos = 0

    def __getattr__(self, name):
        return getattr(self.group, name)

    def allreduce(self, *args):
        before = time.perf_counter_ns()
        work = self.group.allreduce(*args)
        self.nanos = time.perf_counter_ns() - before
        return work


def main(rank, world, native):
    native.begin_communication = lambda *values: 1  # the recorder's own time has a benchmark of its own
    native.end = lambda range_id: None
    group, tensor = dist.group.WORLD, torch.ones(1000)
    inner = group._inner = Timed(group._inner)

    def micros(call):
        """Of `call`, beside what the inner group takes, and without what the work takes to complete: the tenth part of
        calls that took least, which say more of the hook than of the load of the machine, and the median."""
        nanos = []
        for _ in range(CALLS):
            before = time.perf_counter_ns()
            work = call([tensor])
            nanos.append(time.perf_counter_ns() - before - inner.nanos)
            work.wait()
        return [statistics.quantiles(nanos, n=10)[at] / 1000 for at in (0, 4)]

    figures = {"itself": micros(inner.allreduce), "on": micros(group.allreduce)}
    native.on = False
    figures["off"] = micros(group.allreduce)
    return figures


if __name__ == "__main__":
    ranks.report(ranks.run(main, 2, ranks.ON))
