"""The batches of a training step: returned to the program, kept until the step is committed, and returned again if the
step is repeated.

A *stream* is one source of batches: a DataLoader, a sampler, or any other object that can be iterated over repeatedly.
It records its position, so that a replacement process can continue at the position of the one that it replaces.

A stream copies no tensors of a batch unless the program changes them in place: then the program receives copies, from
the step on in which the change was detected.
"""

import itertools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KEPT_MAX = 4096  # batches of one step; a step with more cannot be repeated
PARTS_MAX, MEMBERS_MAX = 64, 16  # of one source; of one list in it


class TooMany(Exception):
    """More batches in one step than are kept."""


class Stream:
    """One source of batches. `opener(source, epoch, skip, last)` returns an iterator over the source's batches of one
    epoch, without the first `skip`; `last` is called before the last of these (`open_plainly`). The copier handles the
    framework's batches (`kept`), the program's random numbers (`seed`, `restore`), the source's own random numbers
    (`own_of`, `restore_own`; None: it has none, or they stay) and other state of a draw: see `Nothing`."""

    def __init__(self, source, opener, copier):
        self.source, self.opener, self.copier = source, opener, copier
        self.iterator: Any = None
        # set by a program that resumes from its own checkpoint
        self.begins_with = self.epoch = epoch_of(source)
        self.at = 0  # number of batches drawn in this epoch
        # the program's random numbers when the epoch began: a shuffled order needs them
        self.seed = None
        self.own_seed = None  # the source's own random numbers then
        self.opening = None  # other state then (`Nothing.watch`)
        self.ahead = None  # both kinds before the last draw, if that may have loaded more than one batch
        self.first = self.own()  # the source's own before its first use
        self.start = self.position()  # at the beginning of the step
        self.kept = []  # the batches of the step, as the copier keeps them
        # both kinds of random numbers after each batch was loaded; None if loading it took none
        self.drawn_random = []
        # the source's attributes (`Nothing.plain_of`) before the kept batches and after each of them
        self.plain = [copier.plain_of(source)]
        self.copies = False  # the program receives copies, since it has changed a batch in place
        self.lost = False  # the step has more batches than are kept
        self.changed = False  # a kept batch of this step differs from the one first returned
        self.cursor = 0
        # batches of a source that cannot be reopened, while a replacement warms up: the program receives copies of them
        self.drawn: Any = None
        self.failed = False  # a draw of this step has raised: its iterator would skip the batch, or has ended
        # of an epoch that began in this step with collectives: (batches before it, its epoch, `plain` then)
        self.shared = None

    def next(self):
        if self.cursor < len(self.kept):
            kept, drawn = self.kept[self.cursor], self.drawn_random[self.cursor]
            batch = kept.again()
            if drawn is not None:  # loading it took random numbers, which the program must not get again
                self.copier.restore(drawn[0])
                self.copier.restore_own(self.source, drawn[1])
            self.copier.set_plain(self.source, self.plain[self.cursor + 1])
        else:
            before = self.copier.seed(), self.own()
            batch = self.draw(before)
            if not self.copier.keeps:
                return batch
            after, kept = (self.copier.seed(), self.own()), self.copier.kept(batch)
            if self.drawn is not None and len(self.drawn) < KEPT_MAX:
                self.drawn.append(batch)
            if len(self.kept) < KEPT_MAX:
                self.kept.append(kept)
                self.drawn_random.append(after if after != before else None)
                self.plain.append(self.copier.plain_of(self.source))
            else:
                self.lost = True
        self.cursor += 1
        return kept.copy() if self.copies or self.drawn is not None else batch

    def own(self):
        return self.copier.own_of(self.source)

    def position(self):
        """Returns the position: `(epoch, batch, program's random numbers when the epoch began, source's own then,
        source's own now, both before the last draw, other state when the epoch began)`."""
        return self.epoch, self.at, self.seed, self.own_seed, self.own(), self.ahead, self.opening

    def draw(self, before):
        for _ in range(2):  # an epoch that has ended, and a new one
            if self.iterator is None and self.at and self.seed is not None:
                self.reopen(self.own())  # a draw has failed, and its step is repeated
            begins = self.iterator is None
            if begins:
                plain = self.copier.plain_of(self.source)
                self.seed, self.own_seed = self.copier.seed(), self.own()
            watch = self.copier.watch(self.source, begins)
            try:
                if begins:
                    self.iterator = self.opener(self.source, self.epoch, self.at)
                batch = next(self.iterator)  # pyright: ignore[reportArgumentType]
            except StopIteration:
                watch.ends()
                if iter_is_all(self.source):
                    raise
                self.iterator, self.epoch, self.at, self.opening = None, self.epoch + 1, 0, None
                continue
            except BaseException:
                watch.ends()
                self.failed = True
                raise
            opening = watch.ends()
            if begins:
                self.opening = opening
                if watch.is_shared:
                    self.shared = len(self.kept), self.epoch, plain
            self.ahead = before if not begins and self.copier.looks_ahead(self.source) else None
            self.at += 1
            return batch
        raise ValueError("%s has no batch in a whole epoch" % type(self.source).__name__)

    def begin_step(self):
        if not self.copies and self.has_changed():
            self.copies = True
        del self.kept[:], self.drawn_random[:]
        self.plain = [self.copier.plain_of(self.source)]
        self.cursor, self.lost, self.changed, self.failed, self.shared = 0, False, False, False, None
        self.start = self.position()

    def check_step(self):
        """Raises TooMany if the batches of the step cannot be returned again, at each call."""
        if self.lost:
            raise TooMany("a step of more than %d batches cannot be done again; take fewer in one step" % KEPT_MAX)
        for why in [kept.why for kept in self.kept if kept.why]:
            raise TooMany(why)
        if not self.copies and self.has_changed():
            self.copies = self.changed = True
        if self.changed:
            raise TooMany(
                "a batch was changed in place, so its step cannot be done again; from now on batches are copied"
            )
        if self.has_changed():  # the originals of the program's copies were changed
            raise TooMany("a batch was changed where its loader holds it, so its step cannot be done again")

    def has_changed(self):
        """Returns true if a batch of the step has changed since it was first returned, and cannot be restored."""
        return any(kept.has_changed() for kept in self.kept)

    def redo_step(self, alone=False):
        """Prepares to return the batches of the step again, after `check_step`. An epoch that began in the step with
        collectives begins again, unless this rank does the step alone: other ranks may not have begun it, and need
        their peers."""
        if self.shared is not None and not alone:
            count, self.epoch, plain = self.shared
            del self.kept[count:], self.drawn_random[count:], self.plain[count + 1 :]
            self.plain[count] = plain
            self.iterator, self.at, self.shared = None, 0, None
            self.ahead = self.opening = None
        if self.failed and not iter_is_all(self.source):
            self.iterator = None
        self.cursor, self.failed = 0, False
        self.copier.restore_own(self.source, self.start[4])
        self.copier.set_plain(self.source, self.plain[0])

    def seek(self, epoch, at, seed, own_seed=None, own=None, ahead=None, opening=None):
        """Continues at a position. Without `own`, the source keeps its random numbers as the epoch has left them."""
        self.iterator, self.epoch, self.at, self.seed, self.own_seed = None, epoch, at, seed, own_seed
        self.ahead, self.opening = ahead, opening
        self.reopen(own)
        self.begin_step()

    def rewind(self):
        """Goes back to the state before the first batch."""
        self.copier.rewind(self.source)
        self.seek(self.begins_with, 0, None, own=self.first)

    def share_anew(self, before, now):
        """Adapts the position when the number of ranks that share the source's batches changes from `before` to `now`:
        it skips as many batches as all ranks have received, or a few more."""
        epoch, at, *random, _, opening = self.start
        self.at, self.start = -(-self.at * before // now), (epoch, -(-at * before // now), *random, None, opening)
        self.iterator = self.ahead = None
        self.reopen(self.own())

    def reopen(self, own):
        """Opens the epoch at the position, with the random numbers of its beginning. The program's current random
        numbers stay, and the source's are set to `own`."""
        if self.iterator is None and self.at and self.seed is not None:
            now = self.copier.seed()
            with self.copier.again(self.source, self.opening):
                self.copier.restore(self.seed)
                self.copier.restore_own(self.source, self.own_seed)
                self.iterator = self.opener(self.source, self.epoch, self.at, self.restore_ahead)
            self.copier.restore(now)
        self.copier.restore_own(self.source, own)

    def restore_ahead(self):
        """Restores the random numbers of the last draw."""
        if self.ahead is not None:
            self.copier.restore(self.ahead[0])
            self.copier.restore_own(self.source, self.ahead[1])


def iter_is_all(source):
    """Returns true if the source can be iterated over only once."""
    return iter(source) is source if hasattr(source, "__next__") else False


class Streams:
    """All streams of a program, in the order of their first use."""

    def __init__(self, opener, copier):
        self.opener, self.copier = opener, copier
        self.all = []
        self.by_id = {}
        self.wanted = []  # positions at which streams begin, in order, also of streams not known yet
        self.is_warming = False

    def of(self, source):
        stream = self.by_id.get(id(source))
        if stream is None:
            stream = self.by_id[id(source)] = Stream(source, self.opener, self.copier)
            if len(self.wanted) > len(self.all):
                stream.seek(*self.wanted[len(self.all)])
            self.all.append(stream)
            if self.is_warming and iter_is_all(source):
                stream.drawn = []
        return stream

    def begin_step(self):
        for stream in self.all:
            stream.begin_step()

    def redo_step(self, alone=False):
        """Repeats the step in all streams, or raises TooMany and leaves all unchanged."""
        for stream in self.all:
            stream.check_step()
        for stream in self.all:
            stream.redo_step(alone)

    def rewind(self):
        """Goes back to the state before the first batch. A source that cannot be reopened repeats its batches."""
        self.is_warming = False
        for stream in self.all:
            if iter_is_all(stream.source):
                stream.iterator, stream.at, stream.drawn = itertools.chain(stream.drawn, stream.source), 0, None
                stream.begin_step()
            else:
                stream.rewind()

    def begun_otherwise(self, positions):
        """Returns the type name of the first source whose epoch began in this step with collectives that gave another
        result than on another rank; None if there is none."""
        for stream, position in zip(self.all, positions):
            if (
                stream.shared is not None
                and position[0] == stream.epoch
                and self.copier.began_otherwise(stream.opening, position[6])
            ):
                return type(stream.source).__name__
        return None

    def share_anew(self, seat):
        """Adapts the streams to a new world. `seat(source)` returns how many ranks shared the source before and share
        it now, or None if that is unchanged."""
        for stream in self.all:
            parts = seat(stream.source)
            if parts is not None:
                stream.share_anew(*parts)

    def positions(self):
        """Returns the position of each stream at the beginning of the step."""
        return [stream.start for stream in self.all]

    def positions_now(self):
        """Returns the current position of each stream."""
        return [stream.position() for stream in self.all]

    def seek(self, positions):
        """Continues at the positions of another process."""
        self.wanted = list(positions)
        for stream, position in zip(self.all, positions):
            stream.seek(*position)


class Kept:
    """A batch of the step, compared by the copier's `mark` and copied by its `copy`. Another implementation may restore
    a batch that the program has changed."""

    why = None  # the reason, in a sentence, why the step cannot be repeated

    def __init__(self, copier, batch):
        self.copier, self.batch, self.mark = copier, batch, copier.mark(batch)

    def has_changed(self):
        """Returns true if the batch has changed and `again` does not restore it."""
        return self.copier.mark(self.batch) != self.mark

    def again(self):
        """Returns the batch, as it was first returned."""
        return self.batch

    def copy(self):
        return self.copier.copy(self.batch)


class Unwatched:
    """A draw without any state to record."""

    is_shared = False

    def ends(self):
        return None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


UNWATCHED = Unwatched()


class Nothing:
    """The copier of a program without a supervisor: it keeps nothing, since no step is repeated."""

    keeps = False

    def kept(self, batch):
        """Returns the `Kept` of a batch that is about to be returned to the program."""
        return Kept(self, batch)

    def seed(self):
        return None

    def own_of(self, source):
        return None

    def plain_of(self, source):
        """Returns the source's attributes that describe its position, for example that this is the last batch; None if
        it has none."""
        return None

    def set_plain(self, source, plain):
        """Sets these attributes of the source again."""

    def looks_ahead(self, source):
        """Returns true if a draw may load more than one batch, so that its random numbers are needed again."""
        return False

    def watch(self, source, begins):
        """Watches a draw, or the beginning of an epoch with its first draw. Returns an object whose `ends()` returns
        the other state, in plain values, that is needed to repeat it. Its `is_shared` is true if collectives ran."""
        return UNWATCHED

    def again(self, source, opening):
        """Returns a context in which an epoch with this `opening` begins again."""
        return UNWATCHED

    def began_otherwise(self, opening, other):
        """Returns true if the collectives of two beginnings of an epoch gave different results."""
        return False

    def rewind(self, source):
        """Resets a source to its state before the first use."""


def epoch_targets(source):
    """Returns the objects whose `set_epoch` is to be called: the source, or the samplers and loaders in it. Each of
    these sets the epoch of the objects that it contains."""
    waiting, seen, found = [source], [], []
    while waiting and len(seen) < PARTS_MAX:
        part = waiting.pop(0)
        if any(part is known for known in seen):
            continue
        seen.append(part)
        if hasattr(part, "set_epoch"):
            found.append(part)
        else:
            waiting += inside(part)
    return found


def inside(part):
    """Returns the samplers and loaders of an object. Not its data set: the program sets the epoch of that."""
    found = [one for one in (attribute(part, "sampler"), attribute(part, "batch_sampler")) if one is not None]
    for name, value in getattr(part, "__dict__", {}).items():
        several = value[:MEMBERS_MAX] if type(value) in (list, tuple) else (value,)
        found += [one for one in several if name != "dataset" and may_be_gone_through(one)]
    return found


def attribute(part, name):
    try:
        return getattr(part, name, None)
    except Exception:
        return None  # a property of the program's own


def may_be_gone_through(value):
    kind = type(value)
    is_data = any(one.__name__ in ("Dataset", "IterableDataset") for one in kind.__mro__)
    return hasattr(kind, "__iter__") and hasattr(value, "__dict__") and not isinstance(value, type) and not is_data


def epoch_of(source):
    """Returns the epoch of a source: the attribute `epoch` of torch's samplers, `iteration` of accelerate's loaders."""
    numbers = (getattr(part, name, None) for part in epoch_targets(source) for name in ("epoch", "iteration"))
    return next((one for one in numbers if type(one) is int and one >= 0), 0)


def open_plainly(source, epoch, skip, last=None):
    """Returns an iterator over a source, after setting the epoch in its parts that have one, for example a
    DistributedSampler. `last` is called before the last skipped batch: a source that loads ahead then loads the next
    one."""
    for part in epoch_targets(source):
        part.set_epoch(epoch)
    batches = iter(source)
    for left in range(skip, 0, -1):
        if left == 1 and last is not None:
            last()
        next(batches, None)
    return batches
