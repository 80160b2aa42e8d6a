"""Collective operations that are answered locally, as if all ranks had the same data as this one.

So a replacement builds and warms up before it has peers, and a rank that lags does a step by itself. Results computed
with such answers never count.
"""

from __future__ import annotations

import torch
from torch._C import _distributed_c10d as c10d

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Sequence


def completed(args: tuple[Any, ...]) -> Any:
    """Returns a completed work for the tensors of the first argument."""
    future = torch.futures.Future()
    first = args[0] if args else []
    future.set_result(list(first) if isinstance(first, (list, tuple)) else [first])
    return c10d._create_work_from_future(future)


def answer(group: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    args = args + tuple(kwargs.values())
    with torch.no_grad():
        do = ANSWERS.get(name)
        if do is not None:
            do(group.size(), group.rank(), *args)
    return completed(args)


def all_reduce(size: int, rank: int, tensors: Any, options: Any = None, *_: Any) -> None:
    reduce_all(size, tensors if isinstance(tensors, (list, tuple)) else [tensors], options)


def reduce_all(size: int, tensors: Any, options: Any) -> None:
    op = str(getattr(options, "reduceOp", "SUM")).rpartition(".")[2].upper()
    for tensor in tensors:
        if "SUM" in op:
            tensor.mul_(size)
        elif "PRODUCT" in op:
            tensor.pow_(size)
        elif "BXOR" in op and size % 2 == 0:
            tensor.zero_()


def all_gather(size: int, rank: int, outputs: Any, inputs: Any, *_: Any) -> None:
    """Copies each input once for each rank, into lists of tensors or into one tensor that holds all."""
    if isinstance(outputs, torch.Tensor):
        outputs, inputs = [outputs], [inputs]
    for output, given in zip(outputs, inputs):
        if isinstance(output, (list, tuple)):
            for one in output:
                one.copy_(given)
        else:
            for part in output.reshape(-1).chunk(size):
                part.copy_(given.reshape(-1))


def gather_single(size: int, rank: int, output: Any, given: Any, options: Any = None, *_: Any) -> None:
    """Gathers from all ranks into one tensor of the root, which the other ranks need not have."""
    if isinstance(output, torch.Tensor) and output.numel() == size * given.numel():
        all_gather(size, rank, output, given)


def reduce_scatter(size: int, rank: int, outputs: Any, inputs: Any, options: Any = None, *_: Any) -> None:
    if isinstance(outputs, torch.Tensor):
        outputs, inputs = [outputs], [inputs]
    for output, given in zip(outputs, inputs):
        own = given[rank] if isinstance(given, (list, tuple)) else given.reshape(-1).chunk(size)[rank]
        output.copy_(own.reshape(output.shape))
    reduce_all(size, outputs, options)


def scatter(size: int, rank: int, outputs: Any, inputs: Any, *_: Any) -> None:
    for output, given in zip(outputs, inputs or [None] * len(outputs)):
        output.copy_(given[rank]) if given else output.zero_()


def all_to_all(size: int, rank: int, outputs: Any, inputs: Any, *_: Any) -> None:
    for output in outputs:
        output.copy_(inputs[rank])


def all_to_all_base(size: int, rank: int, output: Any, given: Any, *_: Any) -> None:
    parts = list(output.reshape(-1).chunk(size))
    own = given.reshape(-1).chunk(size)[rank]
    for part in parts:
        if part.shape == own.shape:
            part.copy_(own)


def receive(size: int, rank: int, tensors: Sequence[torch.Tensor], *_: Any) -> None:
    for tensor in tensors:
        tensor.zero_()


ANSWERS = {
    "allreduce": all_reduce,
    "allreduce_coalesced": all_reduce,
    "reduce": all_reduce,
    "allgather": all_gather,
    "_allgather_base": all_gather,
    "allgather_coalesced": lambda size, rank, outputs, inputs, *_: [
        all_gather(size, rank, one, inputs) for one in outputs
    ],
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
