"""Training programs whose loaders are of other kinds than torch's own: those of frameworks, and of a program's own."""

import os
import random

import numpy
import torch
import torch.distributed as dist
from programs import Digits, Late, Losses, Once, begin, dies, digest, net, steps
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler

WIDE = 12  # items of a batch: an epoch has few of them


class Augmented(Digits):
    """Loading takes random numbers of all three kinds."""

    def __len__(self):
        return 101

    def __getitem__(self, at):
        x, y = Digits.__getitem__(self, at)
        return x + 0.1 * random.random() + 0.1 * float(numpy.random.rand()), y


class Generating(DataLoader):
    """A DataLoader whose way through the data is a generator: what wraps batches often is. It has random numbers of its
    own."""

    def __iter__(self):
        for x, y in DataLoader.__iter__(self):
            yield x * 0.5, y


class Wrapper:
    """No DataLoader, and goes through one. It counts its epochs itself, and sets that of the sampler."""

    def __init__(self, loader):
        self.loader, self.rounds = loader, 0

    def __iter__(self):
        self.loader.sampler.set_epoch(self.rounds * 3)
        self.rounds += 1
        for x, y in self.loader:
            yield x + self.rounds, y


class PartOf(BatchSampler):
    """Every rank's part of what one sampler gives, which all ranks draw alike (as accelerate's BatchSamplerShard)."""

    def __init__(self, batches, size, rank):
        self.batches, self.size, self.rank = batches, size, rank

    def __iter__(self):
        for at, batch in enumerate(self.batches):
            if at % self.size == self.rank and at < len(self) * self.size:
                yield batch

    def __len__(self):
        return len(self.batches) // self.size


class Adapter:
    """Stands around a DataLoader as accelerate's loaders do: it claims to be one, takes rank 0's random numbers when
    an epoch begins, is one batch ahead of what it hands out, so that it knows the last one, and counts its epochs."""

    def __init__(self, loader, generator):
        self.base_dataloader, self.generator, self.iteration, self.is_last = loader, generator, 0, False

    def __getattr__(self, name):
        if name == "base_dataloader":
            raise AttributeError
        return getattr(self.base_dataloader, name)

    @property
    def __class__(self):
        return self.base_dataloader.__class__

    def set_epoch(self, epoch):
        self.iteration = epoch

    def __iter__(self):
        state = self.generator.get_state()
        dist.broadcast(state, src=0)
        self.generator.set_state(state)
        self.is_last, batches = False, iter(self.base_dataloader)
        batch = next(batches)
        for following in batches:
            yield batch
            batch = following
        self.is_last = True
        yield batch
        self.iteration += 1


class Dispatching(Adapter):
    """Has rank 0's batches sent to all, every time."""

    def __iter__(self):
        for x, y in self.base_dataloader:
            dist.broadcast(x, src=0)
            yield x, y


def made(kind, size, rank):
    data, generator = Augmented(), torch.Generator().manual_seed(200 + rank)
    if kind == "generating":
        return Generating(data, batch_size=WIDE, shuffle=True, generator=generator)
    if kind == "wrapper":
        sampler = DistributedSampler(data, size, rank, seed=5)
        return Wrapper(DataLoader(data, batch_size=WIDE // 4, sampler=sampler, generator=generator))
    if kind in ("adapter", "dispatching"):
        batches = PartOf(BatchSampler(RandomSampler(data, generator=generator), WIDE // 4, True), size, rank)
        return (Adapter if kind == "adapter" else Dispatching)(DataLoader(data, batch_sampler=batches), generator)
    # its order is of the program's random numbers, and its first epoch draws one more of them than the others
    if kind == "persistent":
        return DataLoader(data, batch_size=WIDE, shuffle=True, num_workers=2, persistent_workers=True)
    raise ValueError(kind)


def training():
    """With a loader of the KIND, two batches a step, and random numbers in between."""
    taskd, rank, size = begin()
    torch.manual_seed(7)
    model = DistributedDataParallel(net())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = made(os.environ["KIND"], size, rank)
    torch.manual_seed(100 + rank)
    random.seed(100 + rank)
    numpy.random.seed(100 + rank)
    losses, die, late = Losses(), Once("DIE", rank, dies), Late(rank)
    for step in taskd.steps({"model": model, "optimizer": optimizer}, data=loader, until=steps()):
        with step:
            optimizer.zero_grad()
            late(-1 if step.warming else step.number)
            for at, (x, y) in enumerate(step.batches(n=2)):
                loss = torch.nn.functional.cross_entropy(model(x), y) * (
                    0.5 if getattr(loader, "is_last", False) else 1
                )
                if at and not step.warming:
                    die(step.number)
                loss.backward()
            optimizer.step()
            losses.add(step, loss)
    return {"digest": digest(model, optimizer), "losses": losses, "epoch": step.epoch()}


class FailsOnce(torch.utils.data.Dataset):
    """One of its items cannot be loaded the first time. Loading takes random numbers."""

    def __init__(self, fails):
        self.fails = fails

    def __len__(self):
        return 12

    def __getitem__(self, at):
        if at == self.fails:
            self.fails = None
            raise MemoryError("there is no memory for this item")
        return at + torch.rand(1)


def draw_fails():
    """A batch cannot be loaded, and the step is done again: what is handed out then, and what in a run in which nothing
    failed. In a loader of torch's, in one that is a generator, which an exception ends, and in the first batch of an
    epoch."""
    from taskd import _batches
    from taskd.torch.data import loader as _loader

    found = {}
    for kind, fails in ((DataLoader, 5), (Generates, 5), (Generates, 0), (DataLoader, 0)):
        runs = []
        for item in (None, fails):
            torch.manual_seed(1)
            loader, streams = kind(FailsOnce(item), batch_size=2), _batches.Streams(_loader.open_at, _loader.Copier())
            stream, handed = streams.of(loader), []
            while len(handed) < 8:
                streams.begin_step()
                random_then = torch.get_rng_state()
                try:
                    step = [stream.next().tolist() for _ in range(2)]
                except MemoryError:
                    streams.redo_step()
                    torch.set_rng_state(random_then)
                    step = [stream.next().tolist() for _ in range(2)]
                handed += step
            runs.append(handed)
        found["%s %d" % (kind.__name__, fails)] = runs
    return found


class Generates(DataLoader):
    def __iter__(self):
        yield from DataLoader.__iter__(self)


def over_epochs(compared, died_at, faults, steps, kind):
    """Ranks die, and steps are done again, anywhere in several epochs; and a rank dies in the step in which an epoch
    begins."""
    for fault in faults:
        yield fault.__name__, compared(training, fault, steps=steps, KIND=kind)
    for step in (2, 4, 5, 9):
        yield "dies in step %d" % step, died_at(training, 2, step, KIND=kind)
