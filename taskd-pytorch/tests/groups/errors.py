"""Errors that a program gets when an operation fails: the same, with the hook and without."""

import os
import re
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ranks

VICTIM = 1


def error_of(ask):
    """The exception as text, without what differs from run to run: addresses, and how gloo saw its peer go."""
    try:
        ask()
    except BaseException as error:
        text = re.sub(r"pair.cc:\d+\] (Read error .* reset by|Connection closed by) peer.*", "peer gone", str(error))
        return [type(error).__module__, type(error).__name__, text.splitlines()[0]]
    return "no error"


def wrong_calls(rank, world, native):
    """Refused at once, or by the work."""
    each = [torch.zeros(4) for _ in range(world)]
    asked = [
        lambda: dist.all_gather(each, torch.zeros(3)),
        lambda: dist.all_gather(each, torch.zeros(4, dtype=torch.int64)),
        lambda: dist.broadcast(torch.zeros(1), 99),
        lambda: dist.all_reduce(torch.zeros(2, dtype=torch.complex64), op=dist.ReduceOp.MAX),
        lambda: dist.all_reduce(torch.zeros(2), op=dist.ReduceOp.BAND),
        lambda: dist.all_reduce_coalesced([torch.zeros(1), torch.zeros(1, dtype=torch.int64)]),
    ]
    return [error_of(ask) for ask in asked] + [error_of(lambda: different_sizes(rank))]


def different_sizes(rank):
    """One rank gives more than the other: DDP checks that in its constructor, from C++."""
    DistributedDataParallel(torch.nn.Linear(4, 4 + rank))


def peer_dies(ask):
    def main(rank, world, native):
        dist.barrier()
        if rank == VICTIM:
            os.kill(os.getpid(), signal.SIGKILL)
        return error_of(ask(rank))

    return main


def all_reduce(rank):
    return lambda: [dist.all_reduce(torch.ones(100000)) for _ in range(100)]


def asynchronous(rank):
    return lambda: [dist.all_reduce(torch.ones(100000), async_op=True).wait() for _ in range(100)]


def receive(rank):
    return lambda: dist.recv(torch.ones(1), VICTIM)


def train(rank):
    def run():
        module = DistributedDataParallel(torch.nn.Linear(1000, 1000))
        for _ in range(100):
            module(torch.ones(4, 1000)).sum().backward()

    return run


if __name__ == "__main__":
    programs = [wrong_calls] + [peer_dies(ask) for ask in (all_reduce, asynchronous, receive, train)]
    ranks.report({hook: [ranks.run(main, 2, hook) for main in programs] for hook in (ranks.OFF, ranks.ON)})
