"""When the ranges of asynchronous work end, and that a process with work in flight ends as it would without the
hook."""

import atexit
import gc
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ranks

LATE_SECONDS = 0.3
PATIENCE_SECONDS = 20


def until(condition):
    """Waits until it holds, for other threads to do something; whether it does."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    return condition()


def main(rank, world, native):
    return {
        "unwaited": unwaited(rank, native),
        "waited": waited(rank, native),
        "overtaken": overtaken(rank, native),
        "between two": between_two(rank, native),
        "dropped": dropped(rank, native),
        "in backward": in_backward(rank, native),
        "foreign": foreign(rank, native),
        "failing": failing(rank, native),
    }


def span(record):
    """From when to when, on the clock that the ranks share."""
    return record["begin"], record["end"]


def late(rank):
    """Rank 1 comes late: what rank 0 begins cannot complete before."""
    dist.barrier()
    if rank == 1:
        time.sleep(LATE_SECONDS)


def unwaited(rank, native):
    """No thread waits: the range ends when the work is complete, not when it was queued."""
    late(rank)
    work = dist.all_reduce(torch.ones(10), async_op=True)
    record = native.records[-1]
    ended_early = record["end"] is not None and not work.is_completed()
    return {"ends": until(lambda: record["end"] is not None), "early": ended_early, "span": span(record)}


def waited(rank, native):
    late(rank)
    began = time.monotonic_ns()
    dist.all_reduce(torch.ones(10))
    return {"span": span(native.records[-1]), "around": (began, time.monotonic_ns())}


def overtaken(rank, native):
    """A group's operation that does not complete hides no end of another group's."""
    slow, fast = dist.new_group([0, 1]), dist.new_group([0, 1])
    dist.barrier()
    held = dist.all_reduce(torch.ones(1), group=slow, async_op=True) if rank == 0 else None
    dist.all_reduce(torch.ones(1), group=fast, async_op=True)
    record = native.records[-1]
    ended = until(lambda: record["end"] is not None)
    open_still = held is None or native.records[-2]["end"] is None
    dist.barrier()
    if rank == 1:
        dist.all_reduce(torch.ones(1), group=slow)
    else:
        held.wait()
    return {"ended": ended, "open still": open_still}


def between_two(rank, native):
    """gloo completes a receive in its wait and nowhere else."""
    late(rank)
    tensor = torch.ones(10)
    if rank == 1:
        dist.send(tensor, 0)
        return {"span": span(native.records[-1])}
    work = dist.irecv(tensor, 1)
    record = native.records[-1]
    before = record["end"]
    work.wait()
    return {"span": span(record), "before": before, "peer": record["peer"], "number": record["sequence"]}


def dropped(rank, native):
    """A send that no thread waits for ends with its work object."""
    tensor = torch.ones(10)
    if rank == 1:
        dist.recv(tensor, 0)
        dist.barrier()
        return {"ends": True}
    work = dist.isend(tensor, 1)
    record = native.records[-1]
    dist.barrier()  # gloo drops what it has not sent yet with the work
    open_still = record["end"] is None
    del work
    gc.collect()
    return {"ends": open_still and record["end"] is not None}


def in_backward(rank, native):
    """What DDP calls for from C++, and what only C++ waits for."""
    module = DistributedDataParallel(torch.nn.Linear(100, 100))
    before = len(native.records)
    loss = module(torch.ones(4, 100)).sum()
    late(rank)
    loss.backward()
    records = [record for record in native.records[before:] if record["name"] == "allreduce"]
    return {"ends": until(lambda: all(record["end"] is not None for record in records)), "span": span(records[-1])}


class Foreign(dist.ProcessGroup):
    """A process group of the program's own."""

    def allreduce(self, tensors, options):
        self.called = True
        return dist.group.WORLD.allreduce(tensors, options)


def foreign(rank, native):
    """A group that is not torch's is not wrapped, and that is reported."""
    dist.Backend.register_backend("foreign", lambda store, rank, size, timeout: Foreign(rank, size), devices=["cpu"])
    group = dist.new_group([0, 1], backend="foreign")
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=group)
    return {
        "class": type(group).__name__,
        "sum": tensor.item(),
        "called": group.called,
        "reported": native.exceptions.get(5),
    }


def failing(rank, native):
    """The hook itself fails: the program does not notice, and from then on nothing is recorded."""

    def fail(*values):
        raise KeyError("of the hook")

    begin, native.begin_communication = native.begin_communication, fail
    tensor, before = torch.ones(1), len(native.records)
    dist.all_reduce(tensor)
    native.begin_communication = begin
    dist.all_reduce(tensor)
    return {"sum": tensor.item(), "recorded": len(native.records) - before, "reported": native.exceptions[5]}


def exits_in_flight(rank, world, native):
    """Ends in Python, with an operation that never completes and one that fails when the peer is gone."""
    dist.barrier()
    if rank == 0:
        dist.all_reduce(torch.ones(10), async_op=True)
        dist.barrier(async_op=True)
    sys.exit(7)


def destroys_in_flight(rank, world, native):
    """The group goes while an operation of its is in flight."""
    group = dist.new_group([0, 1])
    dist.barrier()
    if rank == 1:
        time.sleep(LATE_SECONDS)
    dist.all_reduce(torch.ones(10), group=group, async_op=True)
    dist.destroy_process_group(group)
    del group
    gc.collect()
    dist.barrier()
    sys.exit(7)


def forks(rank, world, native):
    """A child that does what is to be done at the end of a process, while the parent has an operation in flight."""
    dist.barrier()
    work = dist.all_reduce(torch.ones(10), async_op=True) if rank == 0 else None
    child = os.fork()
    if child == 0:
        atexit._run_exitfuncs()
        os._exit(7)
    code = ranks.code(os.waitpid(child, 0)[1])
    work.wait() if work else dist.all_reduce(torch.ones(10))
    sys.exit(code)


def programs():
    """An older torch (seen with 2.1 and 2.4) ends some of these in its own way, without the hook as with it. It waits
    for a group's threads with the interpreter's lock in its hands, and they wait for that: it hangs where a group goes
    that has work in flight. And where a peer has ended, a thread of its own now and then aborts the process on its way
    out."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    return (exits_in_flight,) + ((destroys_in_flight, forks) if version >= (2, 9) else ())


if __name__ == "__main__":
    exits = {
        main.__name__: {hook: ranks.exit_codes(main, 2, hook) for hook in (ranks.OFF, ranks.ON)} for main in programs()
    }
    ranks.report({"ends": ranks.run(main, 2, ranks.ON), "exits": exits})
