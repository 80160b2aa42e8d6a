"""A step as the program has it in its loop: its number, its batches, and whether it is done. What becomes of it the loop decides (`_loop`)."""


class Step:
    """One training step. `with step:` around its body has an aborted step done again."""

    __slots__ = ("_loop", "_ended", "number", "warming")

    def __init__(self, loop, number, warming):
        self._loop = loop
        self._ended = None  # whether it was completed, once that does not change any more
        self.number = number
        #: The step only warms this process up, or brings it to where the others are: nothing that it computes counts, and
        #: the program should neither log nor save anything.
        self.warming = warming

    @property
    def completed(self):
        """Whether the step is done, to be asked after `with step:`. It is not where it was given up, and is done again, and where it only
        warms up: the variables that its body sets are then those of an earlier step, or of half of one, or not there. What comes after
        the `with` (a line in a log, a checkpoint) belongs under `if step.completed:`.

        In a loop without the `with`: whether nothing of the step was given up so far."""
        return self._loop.has_completed() if self._ended is None else self._ended

    @property
    def committed(self):
        """The newest step that this process has completed; None before the first."""
        return self._loop.committed

    def next(self, loader=None):
        """The next batch of a loader, or of the `data` that `taskd.steps` was given. At its end the loader begins anew, and its
        sampler is told of the epoch (`set_epoch`), on from the one that the program has set. A step that is done again gets the same batches."""
        return self._loop.stream(loader).next()

    def batches(self, loader=None, n=1):
        """The next `n` batches, for a step that accumulates gradients over several."""
        stream = self._loop.stream(loader)
        for _ in range(n):
            yield stream.next()

    def epoch(self, loader=None):
        """The loader's epoch: 0, or what the program has set it to (`set_epoch`), and one more each time it was gone through."""
        return self._loop.stream(loader).epoch

    def __enter__(self):
        self._loop.guarded = True
        return self

    def __exit__(self, kind, error, trace):
        self._loop.guarded = False
        is_swallowed = kind is not None and self._loop.swallows(error)
        self._loop.has_raised = kind is not None and not is_swallowed
        if kind is None or is_swallowed:
            self._loop.comes_after(kind is None)
        return is_swallowed

    def __repr__(self):
        return "<taskd step %d%s>" % (self.number, ", warming" if self.warming else "")
