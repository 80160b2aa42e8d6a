"""Content of a rank's in-memory checkpoint (`taskd._in_memory_checkpoint`): what is written, and what is read.

The head contains the path, shape, dtype and device type of each tensor, and the state other than tensors; the tensors
follow in that order. What is read has the form of an emergency checkpoint's only part (`emergency_checkpoint`).
"""

from __future__ import annotations

import torch

from taskd import _codec
from taskd.torch import state as _state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from taskd._loop import Loop
    from taskd.torch.engine import Engine


def of(engine: Engine, loop: Loop) -> Any:
    """Returns `(head, [(address, bytes)], owner)`. Tensors that only the commit window changes are copied later, from
    where they are. All other tensors, and those of a device, are copied at once."""
    state = engine.state_
    leaves = state.leaves()
    stay = set() if engine.ahead else settled(state)  # `ahead`: the program changes parameters before the window
    entries, held = [], []
    for path, leaf in leaves.items():
        in_place = leaf.data_ptr() in stay and leaf.device.type == "cpu" and leaf.is_contiguous()
        one = leaf if in_place else leaf.detach().to("cpu", copy=True).contiguous()
        entries.append((path, tuple(leaf.shape), leaf.dtype, leaf.device.type, one.numel() * one.element_size()))
        held.append(one)
    head = {
        "entries": entries,
        "layout": state.layout(leaves),
        "rest": state.rest(),
        "private": loop.private(),
        "step": loop.number,
    }
    return _codec.encode(head), [(one.data_ptr(), entry[4]) for one, entry in zip(held, entries)], held


def settled(state: Any) -> Any:
    """Returns the addresses of parameters and of optimizers' tensors."""
    found = {}
    for name, what in state.named.items():
        if _state.is_optimizer(_state.inner_of(what)):
            _state.leaves_of(name, what, found)
    parameters = (_state.local(one) for module in state.modules() for one in module.parameters())
    return {one.data_ptr() for one in found.values()} | {one.data_ptr() for one in parameters}


def read(slot: Any) -> Any:
    """Returns the only part of a checkpoint."""
    head, rest = slot.read()
    header = _codec.decode(head)
    leaves, devices, at = {}, {}, 0
    for path, shape, dtype, device, size in header.pop("entries"):
        there = torch.frombuffer(bytearray(rest[at : at + size]), dtype=dtype) if size else torch.empty(0, dtype=dtype)
        leaves[path], devices[path], at = there.reshape(shape), device, at + size
    return dict(header, part=0, of=1, paths=list(leaves), leaves=leaves, devices=devices)
