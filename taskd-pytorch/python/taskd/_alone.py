"""Collective operations that are answered here, as if all ranks had the same as this one.

So a process that is to take another's place builds and warms up before it has peers, and one that is behind does a step by
itself. What is computed with such answers never counts.
"""

import torch
from torch._C import _distributed_c10d as c10d


def completed(args):
    """A work that is over, for the tensors of the first argument."""
    future = torch.futures.Future()
    first = args[0] if args else []
    future.set_result(list(first) if isinstance(first, (list, tuple)) else [first])
    return c10d._create_work_from_future(future)


def answer(group, name, args, kwargs):
    args = args + tuple(kwargs.values())
    with torch.no_grad():
        do = ANSWERS.get(name)
        if do is not None:
            do(group.size(), group.rank(), *args)
    return completed(args)


def all_reduce(size, rank, tensors, options=None, *_):
    reduce_all(size, tensors if isinstance(tensors, (list, tuple)) else [tensors], options)


def reduce_all(size, tensors, options):
    op = str(getattr(options, "reduceOp", "SUM")).rpartition(".")[2].upper()
    for tensor in tensors:
        if "SUM" in op:
            tensor.mul_(size)
        elif "PRODUCT" in op:
            tensor.pow_(size)
        elif "BXOR" in op and size % 2 == 0:
            tensor.zero_()


def all_gather(size, rank, outputs, inputs, *_):
    """Each input once for each rank; lists of tensors, or one that holds all."""
    if isinstance(outputs, torch.Tensor):
        outputs, inputs = [outputs], [inputs]
    for output, given in zip(outputs, inputs):
        if isinstance(output, (list, tuple)):
            for one in output:
                one.copy_(given)
        else:
            for part in output.reshape(-1).chunk(size):
                part.copy_(given.reshape(-1))


def gather_single(size, rank, output, given, options=None, *_):
    """Of all into one tensor of the root, which others need not have."""
    if isinstance(output, torch.Tensor) and output.numel() == size * given.numel():
        all_gather(size, rank, output, given)


def reduce_scatter(size, rank, outputs, inputs, options=None, *_):
    if isinstance(outputs, torch.Tensor):
        outputs, inputs = [outputs], [inputs]
    for output, given in zip(outputs, inputs):
        own = given[rank] if isinstance(given, (list, tuple)) else given.reshape(-1).chunk(size)[rank]
        output.copy_(own.reshape(output.shape))
    reduce_all(size, outputs, options)


def scatter(size, rank, outputs, inputs, *_):
    for output, given in zip(outputs, inputs or [None] * len(outputs)):
        output.copy_(given[rank]) if given else output.zero_()


def all_to_all(size, rank, outputs, inputs, *_):
    for output in outputs:
        output.copy_(inputs[rank])


def all_to_all_base(size, rank, output, given, *_):
    parts = list(output.reshape(-1).chunk(size))
    own = given.reshape(-1).chunk(size)[rank]
    for part in parts:
        if part.shape == own.shape:
            part.copy_(own)


def receive(size, rank, tensors, *_):
    for tensor in tensors:
        tensor.zero_()


ANSWERS = {
    "allreduce": all_reduce,
    "allreduce_coalesced": all_reduce,
    "reduce": all_reduce,
    "allgather": all_gather,
    "_allgather_base": all_gather,
    "allgather_coalesced": lambda size, rank, outputs, inputs, *_: [all_gather(size, rank, one, inputs) for one in outputs],
    "allgather_into_tensor_coalesced": all_gather,
    "all_gather_single": all_gather,
    "all_gather_single_coalesced": all_gather,
    "gather": all_gather,
    "gather_into_tensor": gather_single,
    "gather_single": gather_single,
    "reduce_scatter": reduce_scatter,
    "_reduce_scatter_base": reduce_scatter,
    "reduce_scatter_tensor_coalesced": reduce_scatter,
    "reduce_scatter_single": reduce_scatter,
    "reduce_scatter_single_coalesced": reduce_scatter,
    "scatter": scatter,
    "alltoall": all_to_all,
    "alltoall_base": all_to_all_base,
    "all_to_all_single": all_to_all_base,
    "recv": receive,
    "recv_anysource": receive,
}
