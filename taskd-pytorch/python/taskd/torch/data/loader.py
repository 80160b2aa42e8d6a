"""PyTorch's part of `taskd._batches`: the tensors of a batch, a DataLoader that resumes in the middle of an epoch, and
samplers that shard the data among the ranks.
"""

from __future__ import annotations

import weakref

import torch

from taskd import _batches, _link
from taskd.torch import rng
from taskd.torch.data import batch_snapshot, epoch_collectives

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Generator

    from taskd.torch.engine import Engine


class Copier:
    """The copier for PyTorch: see `_batches.Stream`."""

    keeps = True
    seed = staticmethod(rng.state)
    restore = staticmethod(rng.restore)

    def __init__(self, engine: Engine | None = None) -> None:
        self.engine = engine
        self.parts = {}  # id of a source of this loop: [source, its parts, its plain values when first seen]
        self.first = {}  # id of a source: (a weak reference to it, these values), for all loops
        self.tape = None  # tape of the current draw
        self.replays = None  # answers operations while an epoch begins again
        self.has_reported_why = False  # true once batches were reported whose steps cannot be retried

    def parts_of(self, source: Any, anew: bool = False) -> Any:
        from taskd.torch.data import sources  # late import: this module loads before all of torch has loaded
        from taskd.torch.data import workers as _workers

        known = self.parts.get(id(source))
        if known is None or known[0] is not source:
            _workers.install()
            parts = sources.Parts(source)
            known = self.parts[id(source)] = [source, parts, self.first_of(source, parts)]
        elif anew:
            known[1] = sources.Parts(source)
        return known[1]

    def first_of(self, source: Any, parts: Any) -> Any:
        """Returns the source's plain values when it was first seen: a later loop may continue with the source, but in a
        replacement process the source has its first state."""
        weak, plain = self.first.get(id(source), (None, None))
        if weak is None or weak() is not source:
            plain = parts.plain()
            try:
                self.first[id(source)] = weakref.ref(source), plain
            except TypeError:  # a list has no such values
                pass
        return plain

    def leave_loop(self) -> None:
        """Drops the loaders of a loop that has ended: they may have workers, which live as long as their loader."""
        self.parts.clear()
        self.first = {key: one for key, one in self.first.items() if one[0]() is not None}

    def own_of(self, source: Any) -> tuple[bytes, ...] | None:
        found = tuple(bytes(one.get_state().numpy()) for one in self.parts_of(source).generators)
        return found or None

    def restore_own(self, source: Any, own: Any) -> None:
        for one, state in zip(self.parts_of(source).generators, own or ()):
            one.set_state(rng.tensor(state))

    def plain_of(self, source: Any) -> Any:
        parts = self.parts_of(source)
        return parts.plain() if parts.own else None

    def set_plain(self, source: Any, plain: Any) -> None:
        self.parts_of(source).set_plain(dict(enumerate(plain or ())))

    def looks_ahead(self, source: Any) -> bool:
        return not is_plain_loader(source) and not isinstance(source, (list, tuple))

    def cannot(self, source: Any) -> None:
        """Reports a loader that calls operations of all ranks with every batch: the ranks may not reach the same batch
        again."""
        if self.engine is not None:
            self.engine.draws_with_operations(type(source).__name__)

    def knows_no_workers(self, source: Any) -> None:
        if self.engine is not None:
            self.engine.has_unknown_workers(type(source).__name__)

    def watch(self, source: Any, begins: Any) -> Any:
        return Watch(self, source, begins)

    def again(self, source: Any, opening: Any) -> Any:
        return Again(self, source, opening or {})

    def began_otherwise(self, opening: Any, other: Any) -> Any:
        return (opening or {}).get("calls") != (other or {}).get("calls")

    def rewind(self, source: Any) -> None:
        from taskd.torch.data import workers as _workers

        parts, first = self.parts_of(source, anew=True), self.parts[id(source)][2]
        for loader in parts.loaders:
            if _workers.persist(loader):
                _workers.end(loader)
        parts.set_plain(dict(enumerate(first)))

    def kept(self, batch: Any) -> Any:
        kept = batch_snapshot.BatchSnapshot(batch)
        if kept.why is not None and not self.has_reported_why:
            self.has_reported_why = True
            _link.say(kept.why)
        return kept


class Watch:
    """Watches a draw: see `_batches.Nothing`."""

    def __init__(self, copier: Any, source: Any, begins: Any) -> None:
        from taskd.torch.data import workers as _workers

        self.copier, self.source, self.begins = copier, source, begins
        self.parts = copier.parts_of(source, anew=begins)
        self.tape = copier.tape = epoch_collectives.Tape()
        self.opening = {}
        if begins:
            changed = self.parts.changed(copier.parts[id(source)][2])
            if changed:
                self.opening["plain"] = changed
            self.persistent = [one for one in self.parts.loaders if _workers.persist(one)]
            self.go_on = [one._iterator is not None for one in self.persistent]
            self.came = _workers.came = []

    @property
    def is_shared(self) -> Any:
        return bool(self.tape.calls)

    def ends(self) -> Any:
        from taskd.torch.data import workers as _workers

        copier, copier.tape = self.copier, None
        _workers.came = None
        calls = self.tape.calls
        if not self.begins:
            if calls:
                copier.cannot(self.source)
            return None
        if calls:
            self.opening["calls"] = self.tape.notes()
            if self.opening["calls"] is None:
                copier.cannot(self.source)
        if any(self.go_on):
            self.opening["workers"] = self.workers()
            if self.opening["workers"] is None:
                copier.knows_no_workers(self.source)
        return self.opening or None

    def workers(self) -> Any:
        """Returns the random numbers of each persistent worker when the epoch began, in the order of the loaders and of
        their workers; None if they are unknown."""
        came = [data for _, data in sorted(self.came, key=lambda one: one[0])]
        count = sum(one.num_workers for one, goes_on in zip(self.persistent, self.go_on) if goes_on)
        if len(came) != count or None in came:
            return None
        return [bool(one) for one in self.go_on], came


class Again:
    """Begins an epoch of a source again, as it began before."""

    def __init__(self, copier: Any, source: Any, opening: Any) -> None:
        self.copier, self.opening = copier, opening
        self.parts = copier.parts_of(source, anew=True)

    def __enter__(self):
        from taskd.torch.data import workers as _workers

        self.given = _workers.given
        loaders = [one for one in self.parts.loaders if _workers.persist(one)]
        go_on, brings = self.opening.get("workers") or ([False] * len(loaders), [])
        for loader, goes_on in zip(loaders, go_on):
            _workers.begin(loader) if goes_on else _workers.end(loader)
        self.given[:] = brings
        self.parts.set_plain(self.opening.get("plain"))
        self.copier.replays = epoch_collectives.Replayed(self.opening.get("calls"))

    def __exit__(self, *_):
        self.copier.replays = None
        del self.given[:]


class Later:
    """A batch sampler without its first batches, which are drawn and not loaded. `last` is called before the batch
    after the next one is drawn, which a prefetching loader loads then."""

    def __init__(self, sampler: Any, skip: int, last: Any = None) -> None:
        self.sampler, self.skip, self.last = sampler, skip, last
        self.batches = None

    def __iter__(self):
        self.batches = self.go_through(iter(self.sampler))
        return self.batches

    def go_through(self, batches: Any) -> Generator[Any, Any, None]:
        for at, batch in enumerate(batches):
            if at == self.skip + 1 and self.last is not None:
                self.last()
            if at >= self.skip:
                yield batch

    def __len__(self):
        return len(self.sampler)


class World:
    """Number of ranks that share the data, and the rank of this process."""

    sizes = set()  # sizes of all worlds of this process
    size = rank = None

    @classmethod
    def becomes(cls, before: Any, size: int, rank: int) -> None:
        cls.sizes |= {before, size}
        cls.size, cls.rank = size, rank


def seat(source: Any) -> tuple[Any | None, int] | None:
    """Makes a sampler share the data among the current ranks; returns `(parts before, parts now)` if it did not before.
    A sampler that shares it among other ranks than all (by `num_replicas`) is left alone."""
    if World.size is None:
        return None
    from taskd.torch.data import sources

    for part in sources.Parts(source).all:
        parts = getattr(part, "num_replicas", None)
        if parts not in World.sizes or not hasattr(part, "total_size"):
            continue
        if (parts, part.rank) != (World.size, World.rank):
            part.num_replicas, part.rank = World.size, World.rank
            whole = len(part.dataset)
            is_cut = part.drop_last and whole % World.size != 0
            part.num_samples = whole // World.size if is_cut else -(-whole // World.size)
            part.total_size = part.num_samples * World.size
            return parts, World.size
    return None


def open_at(source: Any, epoch: int, skip: int, last: Any = None) -> Any:
    """Returns an iterator over the batches of an epoch without the first `skip`. A DataLoader worker's random numbers
    for a batch depend on the worker that gets it, and only a loader of another kind knows how it handles its batches:
    with those, the skipped batches are loaded, and discarded."""
    seat(source)
    loader = loader_by_numbers(source)
    if not skip or loader is None:
        return _batches.open_plainly(source, epoch, skip, last)
    sampler = loader.batch_sampler
    # the batch is prefetched, after the one before it
    later = Later(sampler, 0) if loader is source else Later(sampler, skip - 1, last)
    object.__setattr__(loader, "batch_sampler", later)  # its own __setattr__ refuses that
    try:
        batches = _batches.open_plainly(source, epoch, 0 if loader is source else 1)
    finally:
        object.__setattr__(loader, "batch_sampler", sampler)
    for _ in range(skip if loader is source else 0):
        next(later.batches, None)  # only now: a sampler that shuffles draws its seed after the loader has drawn one  # pyright: ignore[reportArgumentType]
    return batches


def loader_by_numbers(source: Any) -> Any:
    """Returns the DataLoader whose batches are those of the source, and whose first batches can be skipped without
    loading; None if there is none. accelerate's per-rank loaders wrap one, and prefetch one batch."""
    is_shard = type(source).__name__ == "DataLoaderShard" and type(source).__module__.startswith("accelerate.")
    loader = source.base_dataloader if is_shard and not source.skip_batches else source
    if not is_plain_loader(loader) or loader._auto_collation is False or loader.num_workers:
        return None
    return None if isinstance(loader.dataset, torch.utils.data.IterableDataset) else loader


def is_plain_loader(source: Any) -> bool:
    """Returns true if the source is a DataLoader that iterates over its data as torch does."""
    kind, plain = type(source), torch.utils.data.DataLoader
    return issubclass(kind, plain) and kind.__iter__ is plain.__iter__ and kind._get_iterator is plain._get_iterator
