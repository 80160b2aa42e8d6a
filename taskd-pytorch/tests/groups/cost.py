"""How many functions the hook calls for a collective beyond those of the inner group: what it takes, on any machine.

Microseconds have a benchmark of their own, `bench_trace`: a machine that is busy, or half as fast, fails no test.
"""

import sys

import torch
import torch.distributed as dist

import ranks

CALLS = 50


class Inner:
    """An inner group that the count leaves out."""

    def __init__(self, group):
        self.group = group

    def __getattr__(self, name):
        return getattr(self.group, name)

    def allreduce(self, *args):
        profile = sys.getprofile()
        sys.setprofile(None)
        work = self.group.allreduce(*args)
        sys.setprofile(profile)
        return work


def main(rank, world, native):
    native.begin_communication = lambda *values: 1
    native.end = lambda range_id: None
    group, tensor = dist.group.WORLD, torch.ones(1000)
    group._inner = Inner(group._inner)

    def calls(allreduce):
        """The most functions, of Python and of C, that this thread called for one of these collectives."""
        counts = []
        for _ in range(CALLS):
            called = []
            sys.setprofile(lambda frame, event, what: called.append(event) if event in ("call", "c_call") else None)
            work = allreduce([tensor])
            sys.setprofile(None)
            work.wait()
            counts.append(len(called))
        return max(counts)

    on = calls(group.allreduce)
    native.on = False
    return {"on": on, "off": calls(group.allreduce)}


if __name__ == "__main__":
    ranks.report(ranks.run(main, 2, ranks.ON))
