"""A checksum of a rank's parameters and optimizer state, by which the supervisor sees which ranks are replicas of each other.

Equal state has equal checksums, whatever device it is on. It sees any change of a value and any shift of a part: each tensor is summed
up by columns as 64-bit integers, and the columns are weighed. A width that divides no page and no power of two keeps a copy that went
to another place from looking the same. It reads each tensor once, where it is, and waits for each device once.

It never says which ranks are replicas, and changes nothing.
"""

import hashlib
import time

import torch

from taskd import _fsdp

EVERY_STEPS = 64  # from the first powers of two on: 1 MiB of state takes some 0.05 ms, 500 MiB some 60 ms
FIRST_STEPS = 2  # at each of the first ones, too: what is equal before anything was trained proves nothing
WIDTH = 4093  # words in a row: a prime number
SMALL_BYTES = 8 * WIDTH  # tensors below that are put together before they are summed up
GOLDEN = -7046029254386353131  # an odd number without a pattern: 2**64 divided by the golden ratio, as a signed one
weights_on = {}  # by device


def is_due(step, first):
    """Whether all ranks of a loop that began with step `first` compute it where this step begins."""
    return 0 <= step - first <= FIRST_STEPS or step % EVERY_STEPS == 0 or step & (step - 1) == 0


def of(leaves):
    """The checksum of tensors by path: 64 hexadecimal digits."""
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


def bytes_of(leaf):
    data = leaf.detach().contiguous().reshape(-1).view(torch.uint8)
    return data.clone() if data.storage_offset() % 8 else data  # 64-bit words begin at multiples of their size


def sums_of(words):
    weights, whole = weights_for(words.device), words.numel() // WIDTH * WIDTH
    rest = words[whole:]
    yield (words[:whole].view(-1, WIDTH).sum(0) * weights).sum()
    yield (rest * weights[: rest.numel()]).sum()


def weights_for(device):
    if device not in weights_on:
        weights_on[device] = torch.arange(1, WIDTH + 1, dtype=torch.int64, device=device) * GOLDEN | 1
    return weights_on[device]


def report(engine, loop):
    """What the supervisor is to know of this rank's state where its step begins; None where there is nothing yet."""
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


def group_of(engine):
    """Names the process group which the framework keeps equal, where it holds all that is trained here: that of all DDP modules (and of
    all FSDP modules that shard nothing). None: there is none, or parts have different ones."""
    groups, kept = set(), set()
    modules = {id(one): one for one in engine.state_.modules() + engine.reducers.modules()}.values()
    for wrapper in [one for one in modules if hasattr(one, "require_forward_param_sync")] + _fsdp.replicas(modules):
        engine.look_at_hook(wrapper)  # of one that is compiled no pass is seen
        spec = getattr(getattr(wrapper.process_group, "_inner", None), "spec", None)
        if spec is None:
            return None
        groups.add(tuple(spec.there))
        left_out = getattr(wrapper, "parameters_to_ignore", ())
        kept.update(id(one) for name, one in wrapper.named_parameters() if name.partition("module.")[2] not in left_out)
    if len(groups) != 1 or not all(id(one) in kept for one in engine.state_.trained()):
        return None
    return hashlib.sha256(repr(groups.pop()).encode()).hexdigest()
