"""A thread of gloo's that is late to let go of what it has worked at: how processes end whose group is gone
meanwhile."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import _taskd_standby_framework
import ranks

TENSORS = 2000  # each of them asks for the interpreter's lock again, where Python is not the last that has it
LATE_SECONDS = 0.2


def join():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    sys.setswitchinterval(1000)  # this thread keeps the interpreter's lock, as one that no thread preempts


def work_late(group):
    """An operation that is over while its thread is not done with it."""
    group.allreduce_coalesced([torch.ones(1) for _ in range(TENSORS)])
    until = time.monotonic() + LATE_SECONDS
    while time.monotonic() < until:
        pass


def outlives():
    """A program whose DDP outlives its group, as in every main() that ends with destroy_process_group()."""
    join()
    ddp = DistributedDataParallel(torch.nn.Linear(2, 2))
    dist.destroy_process_group()
    work_late(ddp.process_group)


def imported_early():
    # else they would keep the group, as the default of an argument
    for name in _taskd_standby_framework.BEFORE_A_GROUP:
        __import__(name)
    outlives()


def warmed():
    """As in a standby that has no hook."""
    _taskd_standby_framework.warm()
    outlives()
    time.sleep(LATE_SECONDS)  # all that could help torch at the interpreter's own end


def left_open():
    join()
    work_late(dist.group.WORLD)


def exit_code(program, hook):
    pid = os.fork()
    if pid:
        return ranks.code(ranks.ended(pid, time.monotonic() + ranks.PATIENCE_SECONDS))
    if hook != ranks.OFF:
        import stand_in

        stand_in.install(on=False)
    program()
    sys.exit(7)


if __name__ == "__main__":
    ranks.report(
        {
            "outlives, hooked": exit_code(imported_early, ranks.QUIET),
            "outlives, warmed": exit_code(warmed, ranks.OFF),
            "left open, hooked": exit_code(left_open, ranks.QUIET),
        }
    )
