"""What `taskd._batches` does not know of PyTorch: a batch's tensors, a DataLoader that begins in the middle of an epoch, and samplers
that share the data out among the ranks."""

import torch

from taskd import _batches, _random


class Copier:
    """See `_batches.Stream`."""

    keeps = True
    seed = staticmethod(_random.state)
    restore = staticmethod(_random.restore)

    def own_of(self, source):
        found = tuple(bytes(one.get_state().numpy()) for one in generators(source))
        return found or None

    def restore_own(self, source, own):
        for one, state in zip(generators(source), own or ()):
            one.set_state(_random.tensor(state))

    def mark(self, batch):
        return tuple(one._version for one in tensors(batch))

    def copy(self, batch):
        if isinstance(batch, torch.Tensor):
            return batch.clone()
        if isinstance(batch, dict):
            return type(batch)((key, self.copy(value)) for key, value in batch.items())
        if isinstance(batch, tuple) and hasattr(batch, "_fields"):
            return type(batch)(*map(self.copy, batch))
        if isinstance(batch, (list, tuple)):
            return type(batch)(map(self.copy, batch))
        return batch


def generators(source):
    """Those that a loader, its samplers or its data have of their own, each once."""
    batches, found = getattr(source, "batch_sampler", None), []
    parts = (source, getattr(source, "sampler", None), batches, getattr(batches, "sampler", None), getattr(source, "dataset", None))
    for one in (getattr(part, "generator", None) for part in parts):
        if isinstance(one, torch.Generator) and not any(one is known for known in found):
            found.append(one)
    return found


def tensors(batch):
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, dict):
        for value in batch.values():
            yield from tensors(value)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from tensors(value)


class Later:
    """A batch sampler less its first batches, which are drawn and not loaded."""

    def __init__(self, sampler):
        self.sampler, self.batches = sampler, None

    def __iter__(self):
        self.batches = iter(self.sampler)
        return self.batches

    def __len__(self):
        return len(self.sampler)


class World:
    """How many ranks share the data, and which one this is."""

    sizes = set()  # of the worlds that this process has been in
    size = rank = None

    @classmethod
    def becomes(cls, before, size, rank):
        cls.sizes |= {before, size}
        cls.size, cls.rank = size, rank


def seat(source):
    """Has a sampler share the data out among the ranks that there are now; `(parts before, parts now)` if that is new to it. One
    that shares it out among others than all ranks (`num_replicas` says so) is left alone."""
    batches = getattr(source, "batch_sampler", None)
    for part in (source, getattr(source, "sampler", None), batches, getattr(batches, "sampler", None)):
        parts = getattr(part, "num_replicas", None)
        if World.size is None or parts not in World.sizes or not hasattr(part, "total_size"):
            continue
        if (parts, part.rank) != (World.size, World.rank):
            part.num_replicas, part.rank = World.size, World.rank
            whole = len(part.dataset)
            is_cut = part.drop_last and whole % World.size != 0
            part.num_samples = whole // World.size if is_cut else -(-whole // World.size)
            part.total_size = part.num_samples * World.size
            return parts, World.size
    return None


def open_at(source, epoch, skip):
    """An iterator over the batches of an epoch less the first `skip`. What workers of a DataLoader draw at random for a batch
    depends on which of them gets it: with those the batches are loaded, and thrown away."""
    seat(source)
    if not skip or not isinstance(source, torch.utils.data.DataLoader) or source._auto_collation is False:
        return _batches.open_plainly(source, epoch, skip)
    if isinstance(source, torch.utils.data.DataLoader) and source.num_workers:
        return _batches.open_plainly(source, epoch, skip)
    if isinstance(source.dataset, torch.utils.data.IterableDataset):
        return _batches.open_plainly(source, epoch, skip)
    sampler = source.batch_sampler
    later = Later(sampler)
    object.__setattr__(source, "batch_sampler", later)  # its own way refuses that
    try:
        batches = _batches.open_plainly(source, epoch, 0)
    finally:
        object.__setattr__(source, "batch_sampler", sampler)
    for _ in range(skip):
        next(later.batches, None)  # only now: a sampler that shuffles draws its seed after the loader has drawn one
    return batches
