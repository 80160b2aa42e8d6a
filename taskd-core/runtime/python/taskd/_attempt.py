"""The state of the step loop (`_loop`): of one attempt of a step, of the step's start, and of a recovery."""

import time

from taskd._phases import TRAINING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BEFORE, OPEN, TORN = "before", "open", "torn"  # the commit window of a step: when parameters change
PREDECESSOR = "predecessor"  # in place of a step's number: random numbers and position in the data are a predecessor's


class Program:
    """The arguments of `taskd.steps`."""

    __slots__ = ("state", "data", "until", "first", "retry_on", "with_rank", "callbacks")

    def __init__(self, state, data, until, first, retry_on, with_rank, callbacks):
        self.state, self.data, self.until, self.first = state, data, until, first
        self.retry_on, self.with_rank, self.callbacks = retry_on, with_rank, callbacks


class Attempt:
    """One attempt of a step. Between two steps: the attempt that ended last, whose window and failure apply to this
    rank until the next attempt begins.

    Defaults are the class's, so that a new attempt sets only what it has of its own."""

    is_guarded = False  # the program is inside of `with step:`
    has_raised = False  # the step's body; the exceptions that the step catches are not counted
    # True or False from the end of the `with` to the end of the attempt: the step was completed, or it was not
    body_completed: "bool | None" = None
    fails_after = False  # an operation after the `with` has failed; a completed step stays completed
    is_tainted = False  # an operation has failed: the step cannot be committed
    forwards = 0  # backward passes, and operations before which a buffer or the random numbers had changed
    opened = 0  # times that an optimizer, a scheduler or a scaler was about to change state
    ended: "bool | None" = None  # True or False once the attempt has ended: the step was completed, or it was not

    def __init__(self, kind, window, window_before=BEFORE, closures=None):
        self.kind = kind  # the phase of the loop while it is under way
        self.window, self.window_before = window, window_before  # now, and between the attempt before and this one
        # (step, {opened: random numbers}): those after the last forward pass of an optimizer's closure
        self.closures = closures
        self.began = time.monotonic()

    def taint(self):
        """Called on any thread after an operation has failed."""
        if self.body_completed:
            self.fails_after = True
        else:
            self.is_tainted = True

    def has_completed(self):
        """Returns true if the step is completed, as far as is known; after the attempt this does not change."""
        if self.ended is not None:
            return self.ended
        if self.body_completed is not None or self.is_guarded:
            return bool(self.body_completed)
        return self.has_completed_body()

    def has_completed_body(self):
        return self.kind is TRAINING and not self.is_tainted

    def end(self):
        self.ended, self.body_completed = self.has_completed(), None


class Snapshot:
    """The state at the start of a step; all attempts of the step share it."""

    step: "int | str | None" = None  # its number, or `PREDECESSOR`; None before the first step
    taken: "Any" = None  # by the engine
    is_restored = False  # all is put back: the next attempt is one of the same step

    def take(self, step, taken):
        self.step, self.taken = step, taken

    def forget(self):
        self.step = self.taken = None


class Replacement:
    """The state of a process that replaces a lost one, until it trains."""

    warm_up: "Any" = None  # the engine's, until this process is parked
    built_ms: "float | None" = None  # from the time that it became the rank until it was parked
    replay: "Any" = None  # a step that it does alone, before the supervisor asks for it (`_replay`)
    own_buffers: "Any" = None  # its predecessor's
    start_buffers: "Any" = None  # those at the start of the step, if the predecessor has done its forward pass


class Recovery:
    """State that outlives an attempt, until this rank has the state with which all ranks continue."""

    replacement: "Any" = None  # `Replacement`, of a process that has not trained yet
    deferred: "Any" = None  # a directive that is carried out after a step that this rank does alone
    caught_up_from: "str | None" = None  # the window before that step, until this rank has copied the rest of the state
    held: "Any" = None  # (step, its buffers), as the operations of all ranks have left them before it is repeated
    is_spoiled = False  # a copy has begun and has not ended: the state here is that of no step

    def end(self):
        """Called when all state is that of one step."""
        self.caught_up_from, self.held, self.is_spoiled = None, None, False
        if self.replacement is not None:
            self.replacement.replay = self.replacement.start_buffers = None
