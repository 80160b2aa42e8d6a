"""What `taskd._batches` does not know of PyTorch: a batch's tensors, a DataLoader that begins in the middle of an epoch, and samplers
that share the data out among the ranks.
"""

import weakref

import torch

from taskd import _batches, _kept, _link, _random, _tape


class Copier:
    """See `_batches.Stream`."""

    keeps = True
    seed = staticmethod(_random.state)
    restore = staticmethod(_random.restore)

    def __init__(self, engine=None):
        self.engine = engine
        self.parts = {}  # of each source of this loop, and its plain values when it was seen first
        self.first = {}  # id of a source: (a weak reference to it, these values), in all loops
        self.tape = None  # of the draw under way
        self.replays = None  # what answers operations while an epoch begins again
        self.told_why = False  # that there are batches whose steps cannot be done again

    def parts_of(self, source, anew=False):
        from taskd import _sources, _workers  # now: this one is there before all of torch is

        known = self.parts.get(id(source))
        if known is None or known[0] is not source:
            _workers.install()
            parts = _sources.Parts(source)
            known = self.parts[id(source)] = [source, parts, self.first_of(source, parts)]
        elif anew:
            known[1] = _sources.Parts(source)
        return known[1]

    def first_of(self, source, parts):
        """Its plain values when it was seen first: a later loop may go on with it, and a newcomer has it as it was at first."""
        weak, plain = self.first.get(id(source), (None, None))
        if weak is None or weak() is not source:
            plain = parts.plain()
            try:
                self.first[id(source)] = weakref.ref(source), plain
            except TypeError:  # a list, which has no such values
                pass
        return plain

    def leave_loop(self):
        """Nothing of a loop that is over holds its loaders: they may have workers, which live as long."""
        self.parts.clear()
        self.first = {key: one for key, one in self.first.items() if one[0]() is not None}

    def own_of(self, source):
        found = tuple(bytes(one.get_state().numpy()) for one in self.parts_of(source).generators)
        return found or None

    def restore_own(self, source, own):
        for one, state in zip(self.parts_of(source).generators, own or ()):
            one.set_state(_random.tensor(state))

    def plain_of(self, source):
        parts = self.parts_of(source)
        return parts.plain() if parts.own else None

    def set_plain(self, source, plain):
        self.parts_of(source).set_plain(dict(enumerate(plain or ())))

    def looks_ahead(self, source):
        return not is_plain_loader(source) and not isinstance(source, (list, tuple))

    def cannot(self, source):
        """A loader calls for operations of all ranks with every batch, and these ranks may not come to the same batch again."""
        if self.engine is not None:
            self.engine.draws_with_operations(type(source).__name__)

    def knows_no_workers(self, source):
        if self.engine is not None:
            self.engine.has_unknown_workers(type(source).__name__)

    def watch(self, source, begins):
        return Watch(self, source, begins)

    def again(self, source, opening):
        return Again(self, source, opening or {})

    def began_otherwise(self, opening, other):
        return (opening or {}).get("calls") != (other or {}).get("calls")

    def rewind(self, source):
        from taskd import _workers

        parts, first = self.parts_of(source, anew=True), self.parts[id(source)][2]
        for loader in parts.loaders:
            if _workers.persist(loader):
                _workers.end(loader)
        parts.set_plain(dict(enumerate(first)))

    def kept(self, batch):
        kept = _kept.Kept(batch)
        if kept.why is not None and not self.told_why:
            self.told_why = True
            _link.say(kept.why)
        return kept


class Watch:
    """Of a draw: see `_batches.Nothing`."""

    def __init__(self, copier, source, begins):
        from taskd import _workers

        self.copier, self.source, self.begins = copier, source, begins
        self.parts = copier.parts_of(source, anew=begins)
        self.tape = copier.tape = _tape.Tape()
        self.opening = {}
        if begins:
            changed = self.parts.changed(copier.parts[id(source)][2])
            if changed:
                self.opening["plain"] = changed
            self.persistent = [one for one in self.parts.loaders if _workers.persist(one)]
            self.go_on = [one._iterator is not None for one in self.persistent]
            self.came = _workers.came = []

    @property
    def is_shared(self):
        return bool(self.tape.calls)

    def ends(self):
        from taskd import _workers

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

    def workers(self):
        """What each persistent worker's random numbers were when the epoch began, in the order of the loaders and in each of the
        workers; None where nobody knows."""
        came = [data for _, data in sorted(self.came, key=lambda one: one[0])]
        count = sum(one.num_workers for one, goes_on in zip(self.persistent, self.go_on) if goes_on)
        if len(came) != count or None in came:
            return None
        return [bool(one) for one in self.go_on], came


class Again:
    """An epoch of a source begins again, as it began before."""

    def __init__(self, copier, source, opening):
        self.copier, self.opening = copier, opening
        self.parts = copier.parts_of(source, anew=True)

    def __enter__(self):
        from taskd import _workers

        self.given = _workers.given
        loaders = [one for one in self.parts.loaders if _workers.persist(one)]
        go_on, brings = self.opening.get("workers") or ([False] * len(loaders), [])
        for loader, goes_on in zip(loaders, go_on):
            _workers.begin(loader) if goes_on else _workers.end(loader)
        self.given[:] = brings
        self.parts.set_plain(self.opening.get("plain"))
        self.copier.replays = _tape.Again(self.opening.get("calls"))

    def __exit__(self, *_):
        self.copier.replays = None
        del self.given[:]


class Later:
    """A batch sampler less its first batches, which are drawn and not loaded. `last` is called ahead of the batch after the next one
    then, which is loaded by who loads ahead."""

    def __init__(self, sampler, skip, last=None):
        self.sampler, self.skip, self.last = sampler, skip, last
        self.batches = None

    def __iter__(self):
        self.batches = self.go_through(iter(self.sampler))
        return self.batches

    def go_through(self, batches):
        for at, batch in enumerate(batches):
            if at == self.skip + 1 and self.last is not None:
                self.last()
            if at >= self.skip:
                yield batch

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
    if World.size is None:
        return None
    from taskd import _sources

    for part in _sources.Parts(source).all:
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


def open_at(source, epoch, skip, last=None):
    """An iterator over the batches of an epoch less the first `skip`. What workers of a DataLoader draw at random for a batch
    depends on which of them gets it, and what a loader of another kind does with its batches only that knows: with those the batches
    are loaded, and thrown away."""
    seat(source)
    loader = loader_by_numbers(source)
    if not skip or loader is None:
        return _batches.open_plainly(source, epoch, skip, last)
    sampler = loader.batch_sampler
    later = Later(sampler, 0) if loader is source else Later(sampler, skip - 1, last)  # it is loaded ahead, after the one before it
    object.__setattr__(loader, "batch_sampler", later)  # its own way refuses that
    try:
        batches = _batches.open_plainly(source, epoch, 0 if loader is source else 1)
    finally:
        object.__setattr__(loader, "batch_sampler", sampler)
    for _ in range(skip if loader is source else 0):
        next(later.batches, None)  # only now: a sampler that shuffles draws its seed after the loader has drawn one
    return batches


def loader_by_numbers(source):
    """The DataLoader whose batches are those of the source, and of which the first may be passed over without loading them; None where
    there is none. accelerate's loaders for a rank of its own are around one, and load one batch ahead."""
    is_shard = type(source).__name__ == "DataLoaderShard" and type(source).__module__.startswith("accelerate.")
    loader = source.base_dataloader if is_shard and not source.skip_batches else source
    if not is_plain_loader(loader) or loader._auto_collation is False or loader.num_workers:
        return None
    return None if isinstance(loader.dataset, torch.utils.data.IterableDataset) else loader


def is_plain_loader(source):
    """Whether it is a DataLoader that goes through its data as torch does."""
    kind, plain = type(source), torch.utils.data.DataLoader
    return issubclass(kind, plain) and kind.__iter__ is plain.__iter__ and kind._get_iterator is plain._get_iterator
