"""A rank's state as a copy in memory (`taskd._memory`): what it is made of, and what is read from it.

The head says of each tensor its path, shape, type and kind of device, and has all that is no tensor; the tensors follow in that
order. What is read has the form of a dying checkpoint's only part (`_dump`).
"""

import torch

from taskd import _codec, _state


def of(engine, loop):
    """`(head, [(address, bytes)], owner)`. Tensors that only the commit window changes are copied from where they are, and all
    others here and now, as are those of a device."""
    state = engine.state_
    leaves = state.leaves()
    stay = set() if engine.ahead else settled(state)  # of a program that does not wait for the window
    entries, held = [], []
    for path, leaf in leaves.items():
        in_place = leaf.data_ptr() in stay and leaf.device.type == "cpu" and leaf.is_contiguous()
        one = leaf if in_place else leaf.detach().to("cpu", copy=True).contiguous()
        entries.append((path, tuple(leaf.shape), leaf.dtype, leaf.device.type, one.numel() * one.element_size()))
        held.append(one)
    head = {"entries": entries, "layout": state.layout(leaves), "rest": state.rest(), "private": loop.private(), "step": loop.number}
    return _codec.encode(head), [(one.data_ptr(), entry[4]) for one, entry in zip(held, entries)], held


def settled(state):
    """Where the parameters and the optimizers' tensors are."""
    found = {}
    for name, what in state.named.items():
        if _state.is_optimizer(_state.inner_of(what)):
            _state.leaves_of(name, what, found)
    parameters = (_state.local(one) for module in state.modules() for one in module.parameters())
    return {one.data_ptr() for one in found.values()} | {one.data_ptr() for one in parameters}


def read(slot):
    """The only part of a checkpoint."""
    head, rest = slot.read()
    told = _codec.decode(head)
    leaves, devices, at = {}, {}, 0
    for path, shape, dtype, device, size in told.pop("entries"):
        there = torch.frombuffer(bytearray(rest[at : at + size]), dtype=dtype) if size else torch.empty(0, dtype=dtype)
        leaves[path], devices[path], at = there.reshape(shape), device, at + size
    return dict(told, part=0, of=1, paths=list(leaves), leaves=leaves, devices=devices)
