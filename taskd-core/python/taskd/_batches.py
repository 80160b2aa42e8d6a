"""The batches of a training step: handed out, kept until the step is committed, and handed out again when it is done again.

A *stream* is one source of batches: a DataLoader, a sampler, or whatever else can be iterated over again and again. It knows
how far it is, so that a process that takes the place of another can go on where that one was.

It never copies a batch while nobody changes one: a program that changes batches in place gets copies from the step on in
which that was seen.
"""

import itertools

KEPT_MAX = 4096  # batches of one step; a step with more cannot be done again


class TooMany(Exception):
    """More batches in one step than are kept."""


class Stream:
    """`opener(source, epoch, skip)` gives an iterator over the source's batches of one epoch, less the first `skip`; the
    copier knows the framework's batches: `mark`, `copy`, the program's random numbers: `seed`, `restore`, and those that a source
    has of its own: `own_of`, `restore_own` (None: it has none, or they stay)."""

    def __init__(self, source, opener, copier):
        self.source, self.opener, self.copier = source, opener, copier
        self.iterator = None
        self.epoch = self.at = 0  # batches of this epoch that were drawn
        self.seed = None  # what the program's random numbers were when the epoch began: an order that is shuffled needs them
        self.own_seed = None  # and the source's own
        self.first = self.own()  # before it was used
        self.start = self.position()  # with which the step began
        self.kept = []
        self.drawn_random = []  # the program's random numbers and the source's own once a batch was loaded, where that took some
        self.marks = []  # by which a change in place is seen
        self.copies = False
        self.lost = False  # more than are kept
        self.changed = False  # what is kept of this step is not what was handed out first
        self.cursor = 0
        self.drawn = None  # of what cannot be begun anew, while a newcomer warms up

    def next(self):
        if self.cursor < len(self.kept):
            batch, drawn = self.kept[self.cursor], self.drawn_random[self.cursor]
            if drawn is not None:  # loading it took random numbers, which the program is not to get again
                self.copier.restore(drawn[0])
                self.copier.restore_own(self.source, drawn[1])
        else:
            before = self.copier.seed(), self.own()
            batch = self.draw()
            if not self.copier.keeps:
                return batch
            after = self.copier.seed(), self.own()
            if len(self.kept) < KEPT_MAX:
                self.kept.append(batch)
                self.drawn_random.append(after if after != before else None)
                self.marks.append(None if self.copies else self.copier.mark(batch))
            else:
                self.lost = True
        self.cursor += 1
        return self.copier.copy(batch) if self.copies else batch

    def own(self):
        return self.copier.own_of(self.source)

    def position(self):
        """Where it is: `(epoch, batch, both kinds of random numbers when the epoch began, its own now)`."""
        return self.epoch, self.at, self.seed, self.own_seed, self.own()

    def draw(self):
        for _ in range(2):  # an epoch that is over, and a new one
            if self.iterator is None:
                self.seed, self.own_seed = self.copier.seed(), self.own()
                self.iterator = self.opener(self.source, self.epoch, self.at)
            try:
                batch = next(self.iterator)
                self.at += 1
                if self.drawn is not None and len(self.drawn) < KEPT_MAX:
                    self.drawn.append(batch)
                return batch
            except StopIteration:
                if iter_is_all(self.source):
                    raise
                self.iterator, self.epoch, self.at = None, self.epoch + 1, 0
        raise ValueError("%s has no batch in a whole epoch" % type(self.source).__name__)

    def begin_step(self):
        if not self.copies and any(self.copier.mark(batch) != mark for batch, mark in zip(self.kept, self.marks)):
            self.copies = True
        del self.kept[:], self.marks[:], self.drawn_random[:]
        self.cursor, self.lost, self.changed, self.start = 0, False, False, self.position()

    def check_step(self):
        """Raises where the batches of the step cannot be handed out again, however often it is asked."""
        if self.lost:
            raise TooMany("a step of more than %d batches cannot be done again; take fewer in one step" % KEPT_MAX)
        if not self.copies and any(self.copier.mark(batch) != mark for batch, mark in zip(self.kept, self.marks)):
            self.copies = self.changed = True
        if self.changed:
            raise TooMany("a batch was changed in place, so its step cannot be done again; from now on batches are copied")

    def redo_step(self):
        """Hands out the batches of the step again, which were checked."""
        self.cursor = 0
        self.copier.restore_own(self.source, self.start[4])

    def seek(self, epoch, at, seed, own_seed=None, own=None):
        """Goes on at a position. Without its own random numbers of that moment it has those that the epoch has left so far."""
        self.iterator, self.epoch, self.at, self.seed, self.own_seed = None, epoch, at, seed, own_seed
        self.reopen(own)
        self.begin_step()

    def share_anew(self, before, now):
        """So many ranks shared the source's batches before, and so many do from now on: as many of them are gone as were handed out
        to all, or a few more."""
        epoch, at, *random = self.start
        self.at, self.start = -(-self.at * before // now), (epoch, -(-at * before // now), *random)
        self.iterator = None
        self.reopen(self.own())

    def reopen(self, own):
        """Opens the epoch where it is, with the random numbers that were there when it began. The program's of now stay, and the
        source gets its `own`."""
        if self.iterator is None and self.at and self.seed is not None:
            now = self.copier.seed()
            self.copier.restore(self.seed)
            self.copier.restore_own(self.source, self.own_seed)
            self.iterator = self.opener(self.source, self.epoch, self.at)
            self.copier.restore(now)
        self.copier.restore_own(self.source, own)


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

    def redo_step(self):
        """All of them or none."""
        for stream in self.all:
            stream.check_step()
        for stream in self.all:
            stream.redo_step()

    def rewind(self):
        """As if nothing had been handed out. What cannot be begun anew hands its batches out again."""
        self.is_warming = False
        for stream in self.all:
            if iter_is_all(stream.source):
                stream.iterator, stream.at, stream.drawn = itertools.chain(stream.drawn, stream.source), 0, None
                stream.begin_step()
            else:
                stream.seek(0, 0, None, own=stream.first)

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


class Nothing:
    """The copier of a program that no supervisor looks after: nothing is kept, since nothing is done again."""

    keeps = False

    def seed(self):
        return None

    def own_of(self, source):
        return None


def open_plainly(source, epoch, skip):
    """An iterator over a source that is told of its epoch where it wants to know: DistributedSampler, for instance."""
    for part in (source, getattr(source, "sampler", None), getattr(source, "batch_sampler", None)):
        set_epoch = getattr(part, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
            break
    batches = iter(source)
    for _ in range(skip):
        next(batches, None)
    return batches
