"""What `taskd._batches` does not know of PyTorch: a batch's tensors, and a DataLoader that begins in the middle of an epoch."""

import torch

from taskd import _batches, _random


class Copier:
    """See `_batches.Stream`."""

    keeps = True
    seed = staticmethod(_random.state)
    restore = staticmethod(_random.restore)

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


def open_at(source, epoch, skip):
    """An iterator over the batches of an epoch less the first `skip`. What workers of a DataLoader draw at random for a batch
    depends on which of them gets it: with those the batches are loaded, and thrown away."""
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
        next(later.batches)  # only now: a sampler that shuffles draws its seed after the loader has drawn one
    return batches
