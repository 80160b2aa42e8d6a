"""Checksum of a rank's parameters and optimizer state, by which the supervisor detects which ranks are replicas of each
other.

Equal state has equal checksums, on any device. The checksum shows any change of a value and any shift of a part: each
tensor is summed by columns as 64-bit integers, and the columns are weighted. The width divides no page and no power of
two, so that a copy to a wrong place does not have the same checksum. Each tensor is read once, in place, with one wait
for each device.

This module does not decide which ranks are replicas, and changes nothing.
"""

from __future__ import annotations

import hashlib
import time

import torch

from taskd.torch import fsdp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from taskd._loop import Loop
    from taskd.torch.engine import Engine

EVERY_STEPS = 64  # besides powers of two: 1 MiB of state takes about 0.05 ms, 500 MiB about 60 ms
FIRST_STEPS = 2  # the first steps have checksums too: equal state before any training proves nothing
WIDTH = 4093  # words in a row: a prime number
SMALL_BYTES = 8 * WIDTH  # smaller tensors are concatenated before they are summed
GOLDEN = -7046029254386353131  # an odd number without a pattern: 2**64 divided by the golden ratio, as a signed integer
weights_on = {}  # by device


def is_due(step: int, first: Any) -> bool:
    """Returns True if all ranks of a loop that began with step `first` compute the checksum where this step begins."""
    return 0 <= step - first <= FIRST_STEPS or step % EVERY_STEPS == 0 or step & (step - 1) == 0


def of(leaves: Any) -> str:
    """Returns the checksum of tensors by path: 64 hexadecimal digits."""
    digest, sums, small = hashlib.sha256(), {}, {}
    for path, leaf in sorted(leaves.items()):
        digest.update(("%s %s %s\n" % (path, tuple(leaf.shape), leaf.dtype)).encode())
        data = bytes_of(leaf)
        whole = data.numel() // 8 * 8 if data.numel() >= SMALL_BYTES else 0
        if whole:
            sums.setdefault(leaf.device, []).extend(sums_of(data[:whole].view(torch.int64)))
        if whole < data.numel():
            small.setdefault(leaf.device, []).append(data[whole:])
    for device, parts in small.items():
        data = torch.cat(parts)
        data = torch.nn.functional.pad(data, (0, -data.numel() % 8))
        sums.setdefault(device, []).extend(sums_of(data.view(torch.int64)))
    for device in sorted(sums, key=str):
        digest.update(repr(torch.stack(sums[device]).tolist()).encode())
    return digest.hexdigest()


def bytes_of(leaf: Any) -> Any:
    data = leaf.detach().contiguous().reshape(-1).view(torch.uint8)
    return data.clone() if data.storage_offset() % 8 else data  # 64-bit words begin at multiples of their size


def sums_of(words: Any) -> Any:
    weights, whole = weights_for(words.device), words.numel() // WIDTH * WIDTH
    rest = words[whole:]
    yield (words[:whole].view(-1, WIDTH).sum(0) * weights).sum()
    yield (rest * weights[: rest.numel()]).sum()


def weights_for(device: Any) -> Any:
    if device not in weights_on:
        weights_on[device] = torch.arange(1, WIDTH + 1, dtype=torch.int64, device=device) * GOLDEN | 1
    return weights_on[device]


def report(engine: Engine, loop: Loop) -> Any:
    """Returns this rank's report on its state at the start of a step; None if there is no state yet."""
    leaves = engine.state_.replicated()
    if not leaves:
        return None
    before = time.monotonic()
    with torch.no_grad():
        digest = of(leaves)
    return {
        "loop": engine.session.loops,
        "step": loop.number,
        "digest": digest,
        "group": group_of(engine),
        "took_us": round((time.monotonic() - before) * 1e6),
    }


def group_of(engine: Engine) -> str | None:
    """Returns a name of the process group that the framework keeps equal, if it covers all trained parameters: that of
    all DDP modules (and of all FSDP modules that shard nothing). None: there is no group, or parts have several."""
    groups, kept = set(), set()
    modules = {id(one): one for one in engine.state_.modules() + engine.reducers.modules()}.values()
    for wrapper in [one for one in modules if hasattr(one, "require_forward_param_sync")] + fsdp.replicas(modules):
        engine.look_at_hook(wrapper)  # passes of a compiled module are not detected
        spec = getattr(getattr(wrapper.process_group, "_inner", None), "spec", None)
        if spec is None:
            return None
        groups.add(tuple(spec.there))
        left_out = getattr(wrapper, "parameters_to_ignore", ())
        kept.update(id(one) for name, one in wrapper.named_parameters() if name.partition("module.")[2] not in left_out)
    if len(groups) != 1 or not all(id(one) in kept for one in engine.state_.trained()):
        return None
    return hashlib.sha256(repr(groups.pop()).encode()).hexdigest()
