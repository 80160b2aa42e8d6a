"""Checksums of the parameters that DistributedDataParallel keeps equal on the ranks of its process group.

The parameters of a group are divided into parts of a bounded size, and one part is computed at a time, so that a step
never takes long and every part has its turn. Ranks are compared at equal steps and of equal groups only; which ranks
these are is known from the modules: pipeline stages and shards of tensors have other groups. A parameter that DDP
leaves out, and one that is a sharded tensor, is not part of it.

A name contains the layout of the parameters, so that ranks with different ones are never compared. A program that
changes parameters on each rank by itself between two averages (local SGD) has ranks that all differ, for which none is
blamed.
"""

from __future__ import annotations

import hashlib
import weakref

import torch
import torch.distributed as dist

from taskd.torch import digest, registry, tracing
from taskd.torch.process_group.names import runs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Generator, Iterable, Sequence

EVERY_STEPS = 8  # with the size of a part: 0.5 MiB per step on average, 0.1 ms on a processor
PART_BYTES = 4 << 20
# of parameters on an accelerator, whose memory is some hundred times as fast; not measured
PART_BYTES_ON_DEVICE = 256 << 20
PARTS_MAX = 4096  # that a report can name: `ReplicaChecksum` of the supervisor
SUM_BITS = 40
NAME = "replica_checksum"
NAME_BYTES_MAX = 255  # that a recorder takes


class Group:
    """The parameters of one process group: `pieces` of each part, as (parameter, first byte, end)."""

    def __init__(self, ranks: Sequence[int], parameters: Sequence[torch.Tensor]) -> None:
        self.parts: list[list[tuple[Any, int, int]]] = [[]]
        layout = hashlib.blake2b(digest_size=4)
        sizes = [one.numel() * one.element_size() for one in parameters]
        limit = PART_BYTES if all(one.device.type == "cpu" for one in parameters) else PART_BYTES_ON_DEVICE
        limit = max(limit, (sum(sizes) // (PARTS_MAX // 2) // 8 + 1) * 8)
        room = limit
        for one, size in zip(parameters, sizes):
            layout.update(b"%d %d " % (size, one.element_size()))
            begin = 0
            while begin < size:
                if room < 8:
                    self.parts.append([])
                    room = limit
                end = min(size, begin + room // 8 * 8)
                self.parts[-1].append((weakref.ref(one), begin, end))
                room -= end - begin
                begin = end
        self.name = "%s.%s|%s" % (NAME, layout.hexdigest(), ",".join(runs(ranks)))

    def sums(self, part: int) -> list[torch.Tensor]:
        """Returns the sum of a part on each of its devices, as 64-bit integers."""
        sums, small = {}, {}
        with torch.no_grad():
            for reference, begin, end in self.parts[part]:
                data = bytes_of(reference(), begin, end)
                whole = (end - begin) // 8 * 8 if end - begin >= digest.SMALL_BYTES else 0
                if whole:
                    sums.setdefault(data.device, []).extend(digest.sums_of(data[:whole].view(torch.int64)))
                if whole < end - begin:
                    small.setdefault(data.device, []).append(data[whole:])
            for device, rests in small.items():
                data = torch.cat(rests)
                words = torch.nn.functional.pad(data, (0, -data.numel() % 8)).view(torch.int64)
                sums.setdefault(device, []).extend(digest.sums_of(words))
            return [torch.stack(list(digest.sums_of(torch.stack(of)))).sum() for of in sums.values()]

    def is_alive(self, part: int) -> bool:
        return all(reference() is not None for reference, _, _ in self.parts[part])


def bytes_of(parameter: Any, begin: int, end: int) -> torch.Tensor:
    data = parameter.detach().reshape(-1).view(torch.uint8)[begin:end]
    return data.clone() if data.storage_offset() % 8 else data  # 64-bit words begin at multiples of their size


def value_of(part: int, sums: Iterable[int]) -> float:
    """Returns part and checksum as one whole number of 52 bits, which is what the supervisor reads."""
    mixed = hashlib.blake2b(digest_size=SUM_BITS // 8)
    for one in sums:
        mixed.update((one & (2**64 - 1)).to_bytes(8, "little"))
    return float(part << SUM_BITS | int.from_bytes(mixed.digest(), "little"))


class Checksums:
    """The groups of this process, found from its DDP modules."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self.known: Any = None  # what the groups were found from
        self.too_long = 0  # groups whose ranks do not fit into a name

    def due(
        self, step: int, every: int, modules: Sequence[Any]
    ) -> Generator[tuple[str, int, list[torch.Tensor]], Any, None]:
        """Yields name, part and sums of each group whose turn it is after `step`."""
        if step % every:
            return
        turn = step // every
        for group in self.of(modules):
            part = turn % len(group.parts)
            if not group.is_alive(part):
                self.known = None  # the program has replaced parameters
                return
            yield group.name, part, group.sums(part)

    def of(self, modules: Sequence[Any]) -> list[Group]:
        known = [(id(one), id(one.process_group)) for one in modules]
        if known != self.known:
            self.known, self.groups = known, list(self.found(modules))
        return self.groups

    def found(self, modules: Sequence[Any]) -> Generator[Group, Any, None]:
        by_ranks: dict[tuple[int, ...], dict[int, torch.Tensor]] = {}
        for module in modules:
            ranks = ranks_of(module.process_group)
            if len(ranks) > 1:
                kept = by_ranks.setdefault(ranks, {})
                kept.update((id(one), one) for one in parameters_of(module))
        for ranks, kept in by_ranks.items():
            group = Group(ranks, list(kept.values()))
            if len(group.name) > NAME_BYTES_MAX:
                self.too_long += 1
            elif group.parts[0]:
                yield group


def modules_of(optimizers: Iterable[Any]) -> list[Any]:
    """Returns the DDP modules with parameters of these optimizers, in the order in which they were made."""
    trained = {id(one) for optimizer in optimizers for group in optimizer.param_groups for one in group["params"]}
    made = [one for one in (reference() for reference in registry.made) if is_ddp(one)]
    return [one for one in made if any(id(parameter) in trained for parameter in one.parameters())]


def is_ddp(what: Any) -> bool:
    return hasattr(what, "require_backward_grad_sync") and hasattr(what, "process_group")


def parameters_of(module: Any) -> Generator[torch.Tensor, Any, None]:
    """Yields the parameters that DDP keeps equal."""
    left_out = set(getattr(module, "parameters_to_ignore", ()) or ())
    for name, one in module.module.named_parameters():
        if name not in left_out and not hasattr(one, "to_local") and not tracing.is_made_up(one):
            yield one


def ranks_of(group: Any) -> tuple[int, ...]:
    """Returns the ranks of a process group, as numbers of the job."""
    spec = getattr(getattr(group, "_inner", None), "spec", None)
    return tuple(spec.there) if spec is not None else tuple(dist.get_process_group_ranks(group))
