"""The batches of a training step: handed out, kept until the step is committed, and handed out again when it is done again.

A *stream* is one source of batches: a DataLoader, a sampler, or whatever else can be iterated over again and again. It knows
how far it is, so that a process that takes the place of another can go on where that one was.

It never copies a batch's tensors while nobody changes them: a program that changes them in place gets copies from the step on in
which that was seen.
"""

import itertools

KEPT_MAX = 4096  # batches of one step; a step with more cannot be done again
PARTS_MAX, MEMBERS_MAX = 64, 16  # of one source; of one list in it


class TooMany(Exception):
    """More batches in one step than are kept."""


class Stream:
    """`opener(source, epoch, skip, last)` gives an iterator over the source's batches of one epoch, less the first `skip`; `last` is
    called ahead of the last of these (`open_plainly`). The copier knows the framework's batches: `kept`, the program's random
    numbers: `seed`, `restore`, those that a source has of its own: `own_of`, `restore_own` (None: it has none, or they stay), and what
    else there is about a draw: see `Nothing`."""

    def __init__(self, source, opener, copier):
        self.source, self.opener, self.copier = source, opener, copier
        self.iterator = None
        self.begins_with = self.epoch = epoch_of(source)  # a program that goes on from a checkpoint of its own has set it
        self.at = 0  # batches of this epoch that were drawn
        self.seed = None  # what the program's random numbers were when the epoch began: an order that is shuffled needs them
        self.own_seed = None  # and the source's own
        self.opening = None  # and what else there was
        self.ahead = None  # both kinds ahead of the last draw, where that may have loaded more than it handed out
        self.first = self.own()  # before it was used
        self.start = self.position()  # with which the step began
        self.kept = []  # the batches of the step, each as the copier keeps it
        self.drawn_random = []  # the program's random numbers and the source's own once a batch was loaded, where that took some
        self.says = [copier.plain_of(source)]  # what the source said of itself ahead of what is kept, and with each batch of that
        self.copies = False  # what is handed out are copies: the program has changed a batch in place
        self.lost = False  # more than are kept
        self.changed = False  # what is kept of this step is not what was handed out first
        self.cursor = 0
        self.drawn = None  # of what cannot be begun anew, while a newcomer warms up: copies of these are handed out
        self.failed = False  # a draw of this step has raised: its batch is passed over now, or nothing comes any more
        self.shared = None  # of an epoch that began in this step with operations of all ranks: (batches before it, its epoch, `says` then)

    def next(self):
        if self.cursor < len(self.kept):
            kept, drawn = self.kept[self.cursor], self.drawn_random[self.cursor]
            batch = kept.again()
            if drawn is not None:  # loading it took random numbers, which the program is not to get again
                self.copier.restore(drawn[0])
                self.copier.restore_own(self.source, drawn[1])
            self.copier.set_plain(self.source, self.says[self.cursor + 1])
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
                self.says.append(self.copier.plain_of(self.source))
            else:
                self.lost = True
        self.cursor += 1
        return kept.copy() if self.copies or self.drawn is not None else batch

    def own(self):
        return self.copier.own_of(self.source)

    def position(self):
        """Where it is: `(epoch, batch, both kinds of random numbers when the epoch began, its own now, both ahead of the last draw, what
        else there was when the epoch began)`."""
        return self.epoch, self.at, self.seed, self.own_seed, self.own(), self.ahead, self.opening

    def draw(self, before):
        for _ in range(2):  # an epoch that is over, and a new one
            if self.iterator is None and self.at and self.seed is not None:
                self.reopen(self.own())  # a draw has failed, and its step is done again
            begins = self.iterator is None
            if begins:
                says = self.copier.plain_of(self.source)
                self.seed, self.own_seed = self.copier.seed(), self.own()
            watch = self.copier.watch(self.source, begins)
            try:
                if begins:
                    self.iterator = self.opener(self.source, self.epoch, self.at)
                batch = next(self.iterator)
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
                    self.shared = len(self.kept), self.epoch, says
            self.ahead = before if not begins and self.copier.looks_ahead(self.source) else None
            self.at += 1
            return batch
        raise ValueError("%s has no batch in a whole epoch" % type(self.source).__name__)

    def begin_step(self):
        if not self.copies and self.has_changed():
            self.copies = True
        del self.kept[:], self.drawn_random[:]
        self.says = [self.copier.plain_of(self.source)]
        self.cursor, self.lost, self.changed, self.failed, self.shared = 0, False, False, False, None
        self.start = self.position()

    def check_step(self):
        """Raises where the batches of the step cannot be handed out again, however often it is asked."""
        if self.lost:
            raise TooMany("a step of more than %d batches cannot be done again; take fewer in one step" % KEPT_MAX)
        for why in [kept.why for kept in self.kept if kept.why]:
            raise TooMany(why)
        if not self.copies and self.has_changed():
            self.copies = self.changed = True
        if self.changed:
            raise TooMany("a batch was changed in place, so its step cannot be done again; from now on batches are copied")
        if self.has_changed():  # by who has what the program's were copied from
            raise TooMany("a batch was changed where its loader holds it, so its step cannot be done again")

    def has_changed(self):
        """Whether a batch of the step is not what it was when it was handed out first, and is not put back."""
        return any(kept.has_changed() for kept in self.kept)

    def redo_step(self, alone=False):
        """Hands out the batches of the step again, which were checked. An epoch that began in it with operations of all ranks begins
        again, unless this rank does the step alone: others may not have come so far, and need their peers."""
        if self.shared is not None and not alone:
            count, self.epoch, says = self.shared
            del self.kept[count:], self.drawn_random[count:], self.says[count + 1 :]
            self.says[count] = says
            self.iterator, self.at, self.shared = None, 0, None
            self.ahead = self.opening = None
        if self.failed and not iter_is_all(self.source):
            self.iterator = None
        self.cursor, self.failed = 0, False
        self.copier.restore_own(self.source, self.start[4])
        self.copier.set_plain(self.source, self.says[0])

    def seek(self, epoch, at, seed, own_seed=None, own=None, ahead=None, opening=None):
        """Goes on at a position. Without its own random numbers of that moment it has those that the epoch has left so far."""
        self.iterator, self.epoch, self.at, self.seed, self.own_seed = None, epoch, at, seed, own_seed
        self.ahead, self.opening = ahead, opening
        self.reopen(own)
        self.begin_step()

    def rewind(self):
        """As if nothing had been handed out."""
        self.copier.rewind(self.source)
        self.seek(self.begins_with, 0, None, own=self.first)

    def share_anew(self, before, now):
        """So many ranks shared the source's batches before, and so many do from now on: as many of them are gone as were handed out
        to all, or a few more."""
        epoch, at, *random, _, opening = self.start
        self.at, self.start = -(-self.at * before // now), (epoch, -(-at * before // now), *random, None, opening)
        self.iterator = self.ahead = None
        self.reopen(self.own())

    def reopen(self, own):
        """Opens the epoch where it is, with the random numbers that were there when it began. The program's of now stay, and the
        source gets its `own`."""
        if self.iterator is None and self.at and self.seed is not None:
            now = self.copier.seed()
            with self.copier.again(self.source, self.opening):
                self.copier.restore(self.seed)
                self.copier.restore_own(self.source, self.own_seed)
                self.iterator = self.opener(self.source, self.epoch, self.at, self.restore_ahead)
            self.copier.restore(now)
        self.copier.restore_own(self.source, own)

    def restore_ahead(self):
        """The random numbers that the last draw had."""
        if self.ahead is not None:
            self.copier.restore(self.ahead[0])
            self.copier.restore_own(self.source, self.ahead[1])


def iter_is_all(source):
    """Whether it can be iterated over only once."""
    return iter(source) is source if hasattr(source, "__next__") else False


class Streams:
    """All of a program, in the order in which it used them first."""

    def __init__(self, opener, copier):
        self.opener, self.copier = opener, copier
        self.all = []
        self.by_id = {}
        self.wanted = []  # where those are to begin that are not known yet
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
        """All of them or none."""
        for stream in self.all:
            stream.check_step()
        for stream in self.all:
            stream.redo_step(alone)

    def rewind(self):
        """As if nothing had been handed out. What cannot be begun anew hands its batches out again."""
        self.is_warming = False
        for stream in self.all:
            if iter_is_all(stream.source):
                stream.iterator, stream.at, stream.drawn = itertools.chain(stream.drawn, stream.source), 0, None
                stream.begin_step()
            else:
                stream.rewind()

    def begun_otherwise(self, positions):
        """The first source whose epoch has begun in this step by itself, and otherwise than for another rank; None where there is none."""
        for stream, position in zip(self.all, positions):
            if stream.shared is not None and position[0] == stream.epoch and self.copier.began_otherwise(stream.opening, position[6]):
                return type(stream.source).__name__
        return None

    def share_anew(self, seat):
        """The world is another one: `seat(source)` says how many ranks share it, before and now, where that has changed."""
        for stream in self.all:
            parts = seat(stream.source)
            if parts is not None:
                stream.share_anew(*parts)

    def positions(self):
        """Where each of them began the step."""
        return [stream.start for stream in self.all]

    def positions_now(self):
        """Where each of them is."""
        return [stream.position() for stream in self.all]

    def seek(self, positions):
        """Goes on where another process was."""
        self.wanted = list(positions)
        for stream, position in zip(self.all, positions):
            stream.seek(*position)


class Kept:
    """A batch of the step, by a `mark` and a `copy` of the copier's. One of another kind may put back what a program changes in it."""

    why = None  # its step cannot be done again, in a sentence

    def __init__(self, copier, batch):
        self.copier, self.batch, self.mark = copier, batch, copier.mark(batch)

    def has_changed(self):
        """Whether it is not what it was, and does not become that `again`."""
        return self.copier.mark(self.batch) != self.mark

    def again(self):
        """The batch, as it was handed out first."""
        return self.batch

    def copy(self):
        return self.copier.copy(self.batch)


class Unwatched:
    """A draw of which nothing is to be known."""

    is_shared = False

    def ends(self):
        return None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


UNWATCHED = Unwatched()


class Nothing:
    """The copier of a program that no supervisor looks after: nothing is kept, since nothing is done again."""

    keeps = False

    def kept(self, batch):
        """A batch that is about to be handed out."""
        return Kept(self, batch)

    def seed(self):
        return None

    def own_of(self, source):
        return None

    def plain_of(self, source):
        """What a source says of where it is, in attributes of its own: that this is the last batch, for instance. None where it has none."""
        return None

    def set_plain(self, source, plain):
        """Has it say that again."""

    def looks_ahead(self, source):
        """Whether a draw may load more than it hands out, so that the random numbers which it had are needed once more."""
        return False

    def watch(self, source, begins):
        """Of a draw, or of the beginning of an epoch with its first draw: an object whose `ends()` gives what else has to be known to
        do that again, in plain values; `is_shared`: it had operations of all ranks in it."""
        return UNWATCHED

    def again(self, source, opening):
        """A context in which the epoch begins again that began so."""
        return UNWATCHED

    def began_otherwise(self, opening, other):
        """Whether operations of all ranks gave something else, of two beginnings of an epoch."""
        return False

    def rewind(self, source):
        """As if it had never been used."""


def told_of_epochs(source):
    """What of it wants to know which epoch it is in: itself, or the samplers and loaders inside of it. What is inside of one of these it
    tells itself."""
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
    """The samplers and loaders that it has. A data set is none of them: what epoch that is in the program tells it."""
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
    """The epoch that a source says it is in: a sampler of torch's calls it `epoch`, a loader of accelerate's `iteration`."""
    said = (getattr(part, name, None) for part in told_of_epochs(source) for name in ("epoch", "iteration"))
    return next((one for one in said if type(one) is int and one >= 0), 0)


def open_plainly(source, epoch, skip, last=None):
    """An iterator over a source that is told of its epoch where something of it wants to know: DistributedSampler, for instance. `last` is called
    ahead of the last batch that is passed over: a source which loads ahead loads the next one then."""
    for part in told_of_epochs(source):
        part.set_epoch(epoch)
    batches = iter(source)
    for left in range(skip, 0, -1):
        if left == 1 and last is not None:
            last()
        next(batches, None)
    return batches
