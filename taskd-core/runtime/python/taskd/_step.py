"""A step as the program has it in its loop: its number, its batches, and whether it is completed. The loop decides what
comes after it (`_loop`)."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, Iterator

    from taskd._attempt import Attempt
    from taskd._loop import Loop


class Step:
    """One attempt of a training step. With `with step:` around its body, an aborted step is repeated."""

    __slots__ = ("_loop", "_attempt", "number", "warming")

    def __init__(self, loop: "Loop", attempt: "Attempt", number: int, warming: bool) -> None:
        self._loop = loop
        self._attempt = attempt
        self.number = number
        #: The step only warms this process up, or brings it to where the other ranks are: nothing that it computes
        #: counts, and the program should neither log nor save anything.
        self.warming = warming

    @property
    def completed(self) -> bool:
        """Returns true if the step is completed, to be read after `with step:`. It is not if it was aborted and is
        repeated, nor if it only warms up: the variables that its body sets are then those of an earlier step, or of
        half of one, or missing. What comes after the `with` (a log line, a checkpoint) belongs under `if
        step.completed:`.

        In a loop without the `with`: returns true if nothing of the step was aborted so far."""
        return self._attempt.has_completed()

    @property
    def committed(self) -> "int | None":
        """The newest step that this process has completed; None before the first."""
        return self._loop.committed

    def next(self, loader: "Iterable[Any] | None" = None) -> "Any":
        """The next batch of a loader, or of the `data` of `taskd.steps`. At its end the loader begins again, and its
        sampler receives the epoch (`set_epoch`), counted from the one that the program has set. A step that is repeated
        gets the same batches."""
        return self._loop.stream(loader).next()

    def batches(self, loader: "Iterable[Any] | None" = None, n: int = 1) -> "Iterator[Any]":
        """The next `n` batches, for a step that accumulates gradients over several."""
        stream = self._loop.stream(loader)
        for _ in range(n):
            yield stream.next()

    def epoch(self, loader: "Iterable[Any] | None" = None) -> int:
        """The loader's epoch: 0, or the one that the program has set (`set_epoch`), plus one for each end."""
        return self._loop.stream(loader).epoch

    def __enter__(self) -> "Step":
        self._attempt.is_guarded = True
        return self

    def __exit__(self, kind: "type[BaseException] | None", error: "BaseException | None", trace: object) -> bool:
        self._attempt.is_guarded = False
        is_swallowed = kind is not None and self._loop.swallows(error)
        self._attempt.has_raised = kind is not None and not is_swallowed
        if kind is None or is_swallowed:
            self._loop.comes_after(kind is None)
        return is_swallowed

    def __repr__(self):
        return "<taskd step %d%s>" % (self.number, ", warming" if self.warming else "")
