"""A program that calls its groups in many ways. What is recorded of it must not depend on whether native code or Python
records. Prints one line of JSON: what the program has seen, and the class of a group's method.

Arguments: the file of the rendezvous, the rank, the number of ranks.
"""

import gc
import json
import os
import sys
import threading
import weakref
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parallel import DistributedDataParallel

import taskd
from taskd import _step_recorder
from taskd.torch.process_group import abortable
from taskd.torch.process_group.record import Recorder

OPERATIONS_KEPT_ALIVE = 4


def ways(group, rank, world):
    """Calls with positional and named arguments, of all kinds of tensors, awaited in each way."""
    one, options = torch.ones(3), dist.AllreduceOptions()
    group.allreduce([one], options).wait()
    group.allreduce(tensors=[one], opts=options).wait()
    group.allreduce([one], opts=options).wait(timedelta(seconds=60))
    dist.all_reduce(torch.ones(5, dtype=torch.bfloat16), group=group)
    dist.all_reduce(torch.ones(2, dtype=torch.complex64), group=group)  # a type that the recorder does not number
    dist.all_reduce(torch.nn.Parameter(torch.ones(4)).detach(), group=group)
    group.allreduce([torch.nn.Parameter(torch.ones(4), requires_grad=False)], options).wait()
    dist.all_reduce(torch.ones(0), group=group)
    dist.all_reduce_coalesced([torch.ones(2), torch.ones(3)], group=group)
    dist.all_reduce(torch.ones(7), group=group, async_op=True).get_future().wait()
    dist.broadcast(torch.ones(6, dtype=torch.uint8), 1, group=group)
    dist.reduce(torch.ones(4), 1, group=group)
    each = [torch.zeros(4) for _ in range(world)]
    dist.all_gather(each, torch.ones(4), group=group)
    dist.all_gather_into_tensor(torch.zeros(4 * world), torch.ones(4), group=group)
    dist.gather(torch.ones(4), each if rank == 0 else None, 0, group=group)
    dist.scatter(torch.ones(4), each if rank == 0 else None, 0, group=group)
    dist.all_to_all_single(torch.zeros(world), torch.ones(world), group=group)
    dist.barrier(group=group)
    dist.monitored_barrier(group=group)
    if rank == 0:
        dist.send(torch.ones(3), 1, group=group)
    else:
        dist.recv(torch.ones(3), 0, group=group)


def refusals(group):
    """Calls that raise: what they raise."""
    raised = []
    for call in (
        lambda: group.allreduce(1, 2, 3),
        lambda: group.allreduce([torch.ones(1, device="meta")], dist.AllreduceOptions()),
        lambda: group.allreduce([], dist.AllreduceOptions()),
        lambda: group.broadcast([torch.ones(1)], tensor=1),
        lambda: type(group).allreduce(),
    ):
        try:
            call().wait()
            raised.append("nothing")
        except Exception as error:
            raised.append(type(error).__name__)
    return raised


def traced(group):
    """Calls that torch only traces, or that happen inside of a transform: they are no operations and have no number."""

    def call(tensor):
        group.allreduce([torch.ones(2)], dist.AllreduceOptions()).wait()
        return tensor * 2

    def with_fakes(tensor):
        with FakeTensorMode(allow_non_fake_inputs=True):
            call(tensor)

    class Module(torch.nn.Module):
        def forward(self, tensor):
            return call(tensor)

    for trace in (
        lambda: torch.fx.symbolic_trace(Module()),
        lambda: torch.jit.trace(call, torch.ones(2), check_trace=False),
        lambda: torch.func.vmap(call)(torch.ones(2, 2)),
        lambda: torch.func.grad(lambda tensor: call(tensor).sum())(torch.ones(2)),
        lambda: with_fakes(torch.ones(2)),
        lambda: call(torch.ones(2)),  # after all of them, an operation like any other
    ):
        try:
            trace()
        except RuntimeError:
            pass  # torch refuses some of them, with the hook as without


def in_thread(group):
    """An operation of another thread; and a thread that traces while this one does not."""
    inside, go_on = threading.Event(), threading.Event()

    class Module(torch.nn.Module):
        def forward(self, tensor):
            inside.set()
            go_on.wait()
            return tensor

    tracer = threading.Thread(target=torch.fx.symbolic_trace, args=(Module(),))
    tracer.start()
    inside.wait()
    other = threading.Thread(target=lambda: dist.all_reduce(torch.ones(9), group=group))
    other.start()
    other.join()
    go_on.set()
    tracer.join()


def dropped(group):
    """Returns true if a work and its tensor have ended once the program has dropped them and has made a few calls."""
    tensor = torch.ones(8)
    work = dist.all_reduce(tensor, group=group, async_op=True)
    work.wait()
    ended = [weakref.ref(what) for what in (tensor, work)]
    del tensor, work
    for _ in range(OPERATIONS_KEPT_ALIVE):
        dist.all_reduce(torch.ones(1), group=group)
    gc.collect()
    return [reference() is None for reference in ended]


def forked(group):
    """Returns true if a child that drops an operation of its parent records nothing of it."""
    work = dist.all_reduce(torch.ones(8), group=group, async_op=True)
    child = os.fork()
    if child == 0:
        del work
        os._exit(0)
    work.wait()
    return os.waitpid(child, 0)[1] == 0


class Inside:
    """torch's own group, inside of the wrapper. Notes from which place in C++ each call comes."""

    def __init__(self, group):
        self.group, self.places = group, []

    def __getattr__(self, name):
        return getattr(self.group, name)

    def allreduce(self, *args):
        self.places.append(abortable.caller())
        return self.group.allreduce(*args)

    def broadcast(self, *args):
        self.places.append(abortable.caller())
        return self.group.broadcast(*args)


class HalfDone:
    """A work of gloo for a moment: its future is done, and it has not completed yet. The watching thread is late."""

    def is_completed(self):
        return False

    def get_future(self):
        return self

    def done(self):
        return threading.current_thread() is threading.main_thread()


def half_done():
    """Returns whether the ranges of two such works are open when the next operation begins: only the latest may have
    completed its future before itself."""
    sweeps = (sweep.__self__ for sweep in _step_recorder.at_begin if isinstance(sweep.__self__, Recorder))
    ends = next(sweeps).ends
    works = [HalfDone(), HalfDone()]
    for work in works:
        ends.expect(work, taskd.range_start("half done"), True)
    ends.sweep()
    native = ends.functions
    return [id(work) in ends.open if native is None else native.is_open(work) for work in works]


def places(group):
    """Returns the place of each collective of a training with buffers: a step is undone by other means in each."""
    network = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    module = DistributedDataParallel(network, process_group=group)
    inner = group._inner
    inside = group._inner = Inside(inner)
    for _ in range(3):
        module(torch.ones(2, 8)).sum().backward()
        dist.all_reduce(torch.ones(1), group=group)
    group._inner = inner
    return inside.places


def main():
    rendezvous, rank, world = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=world)
    group, other = dist.group.WORLD, dist.new_group(list(range(world)))
    ways(group, rank, world)
    ways(other, rank, world)
    seen = {"refusals": refusals(other), "dropped": dropped(group), "forked": forked(group)}
    seen["half done"] = half_done()
    seen["places"] = places(other)
    traced(group)
    in_thread(other)
    module = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 300), torch.nn.Linear(300, 300)))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        module(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    seen["parameters"] = [parameter.sum().item() for parameter in module.parameters()]
    dist.destroy_process_group(other)
    dist.barrier()
    print(json.dumps({"seen": seen, "method": type(type(group).allreduce).__name__}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
