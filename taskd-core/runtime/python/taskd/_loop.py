"""`taskd.steps`: the training loop as an iterator over steps. A step is repeated until all ranks have completed it.

The loop is a state machine: `_phases` has its phases and the transitions between them, `_attempt` what belongs to one
attempt of a step. Directives of the supervisor are carried out on the main thread, between two steps and nowhere else
(`_directives`). The framework's part of this is the session's engine.

The loop computes nothing of the program's. Without a supervisor it is `range` with batches.
"""

import sys
import time

from taskd import (
    _batches,
    _callbacks,
    _codec,
    _directives,
    _handoff,
    _in_memory_checkpoint,
    _link,
    _phases,
    _replay,
    _second_copies,
    _session,
    _shutdown,
)
from taskd._aborted import StepAborted
from taskd._attempt import BEFORE, OPEN, PREDECESSOR, TORN, Attempt, Program, Recovery, Replacement, Snapshot
from taskd._call_stack import is_in_another, is_in_optimizer
from taskd._phases import CATCHING_UP, FINISHED, NEW, READY, STEPS, TRAINING, TRANSITIONS, WARMING_UP
from taskd._step import Step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

left_off = None  # where a loop continues, of a checkpoint that was loaded (`load_checkpoint`)


def park(at):
    """Waits until this process is a rank, if it runs ahead as a standby."""
    ahead = sys.modules.get("_taskd_standby_prepare")
    if ahead is not None:
        ahead.park(at)


class Loop:
    """The steps of a program. There is one loop at a time."""

    def __init__(self, session, state, data, until, start, retry_on, with_rank, callbacks=None):
        self.session = session
        self.engine: Any = session.engine if session else None
        self.program = Program(state, data, until, start, tuple(retry_on), with_rank, _callbacks.checked(callbacks))
        self.phase = NEW
        self.number, self.committed = start, None  # of the step that is under way or next, and of the newest completed
        self.attempt = Attempt(TRAINING, BEFORE)
        self.snapshot, self.recovery = Snapshot(), Recovery()
        self.keep = self.memory = self.second_copies = self.shutdown = None
        plain = not self.engine
        copier = _batches.Nothing() if plain else self.engine.copier
        self.streams = _batches.Streams(_batches.open_plainly if plain else self.engine.open_data, copier)

    def to(self, phase):
        """The only place where the phase changes. Raises RuntimeError if the table has no such transition."""
        if phase not in TRANSITIONS[self.phase]:
            raise _phases.wrong(self.phase, phase)
        self.phase = phase

    @property
    def in_step(self):
        return self.phase in STEPS

    @property
    def is_new(self):
        """Returns true in a process that replaces a lost one, until it trains."""
        return self.recovery.replacement is not None

    @property
    def tainted(self):
        """An operation has failed since the newest attempt began. Set on any thread."""
        return self.attempt.is_tainted

    @tainted.setter
    def tainted(self, value):
        if value:
            self.attempt.taint()
        else:
            self.attempt.is_tainted = False

    def comes_after(self, is_whole):
        """Called at the end of the step's `with`, unless the program's own exception has ended it."""
        if self.phase in STEPS:
            self.attempt.body_completed = is_whole and self.attempt.has_completed_body()

    def stream(self, loader):
        source = self.program.data if loader is None else loader
        if source is None:
            raise TypeError("step.next() without a loader needs taskd.steps(data=...)")
        return self.streams.of(source)

    def run(self):
        """Yields the steps. The loop ends with the generator, also by an exception."""
        try:
            session, until = self.session, self.program.until
            if session is not None:
                self.enter()
            replacement = self.recovery.replacement
            if replacement is None or replacement.warm_up is None:
                self.has_rank()
            self.go_on()
            self.to(READY)
            while True:
                kind = self.settle() if session is not None else TRAINING
                if kind is TRAINING and until is not None and self.number >= until:
                    return
                step = self.begin(kind)
                try:
                    yield step
                except GeneratorExit:
                    self.left_in_step()
                    raise
                self.end()
        finally:
            self.leave()

    def enter(self):
        if self.session.loop is not None:
            raise RuntimeError("taskd.steps: the loop before this one is still under way; there can be one at a time")
        self.session.loop = self
        self.session.loops += 1
        self.engine.enter(self, self.program.state)
        if self.session.wait_for_mode() == _session.JOIN and not self.session.came:
            self.session.came = True
            replacement = self.recovery.replacement = Replacement()
            self.attempt.window = TORN  # it has the state of no step
            self.session.page.is_reported = True  # nor are the steps of its warm-up the job's
            self.streams.is_warming = True
            replacement.warm_up = self.engine.begin_warm_up(self)
        else:
            self.session.at(_session.IN_LOOP)

    def has_rank(self):
        """The rank is known, or waited for here."""
        if self.session is not None:
            _codec.add_types_ahead()
            park("has come to its step loop")
            self.shutdown = _shutdown.install(self)
            self.keep = _handoff.opened()
            if self.keep is not None:
                if not self.is_new:
                    self.keep.forget()
                self.keep.away = self.engine.away(self.keep)
            if _second_copies.are_wanted():
                self.second_copies = self.engine.second_copies()
            if not self.is_new:
                self.keep_copies()
        if self.program.with_rank is not None:
            self.program.with_rank()

    def keep_copies(self):
        """From here on no other process writes to this rank's copies in memory."""
        self.memory = _in_memory_checkpoint.opened(self.session, self.number, self.second_copies)
        if self.memory is not None:
            self.memory.say_again(self.number)
            self.memory.send_again()

    def go_on(self):
        """Takes the random numbers and the position in the data of a checkpoint that was loaded, if it is of the first
        step."""
        global left_off
        if left_off is None or left_off.step != self.number or self.is_new:
            return
        there, left_off = left_off, None
        if self.engine is None:
            self.streams.opener, self.streams.copier = there.opener, there.copier()
        self.streams.seek(there.positions)
        there.restore_random(there.random)

    def leave(self):
        if self.in_step and self.attempt.body_completed and self.attempt.window == OPEN:
            self.end()  # the program has left the loop behind the step's body, which counts
        if self.phase is not FINISHED:
            self.to(FINISHED)
        if self.shutdown is not None:
            self.shutdown.end()
        if self.memory is not None:
            self.memory.given_up()
        if self.session is not None and self.session.loop is self:
            self.session.at(_session.BEFORE_LOOP)
            self.engine.leave()
            self.session.loop = None

    def settle(self):
        """Returns the phase of the next step. Carries out directives until there is a next step."""
        replacement = self.recovery.replacement
        if replacement is not None and replacement.warm_up is not None:
            if replacement.warm_up.goes_on():
                return WARMING_UP
            replacement.warm_up.end()
            replacement.warm_up = None
            self.snapshot.forget()
            self.has_rank()
            replacement.built_ms = round((time.monotonic() - self.session.began) * 1000, 3)
            self.session.at(_session.PARKED)
        if replacement is not None or self.attempt.is_tainted or self.recovery.deferred is not None:
            return _directives.until_resumed(self)
        if self.session.attention or self.session.given_up:
            return _directives.until_resumed(self)
        return TRAINING

    def begin(self, kind=TRAINING):
        is_new, before, snapshot = self.recovery.replacement is not None, self.attempt, self.snapshot
        closures = (self.number, {}) if kind is TRAINING else before.closures
        attempt = self.attempt = Attempt(kind, TORN if is_new else BEFORE, before.window, closures)
        if snapshot.is_restored:
            snapshot.is_restored = False
        else:
            self.streams.begin_step()
            if self.engine is not None:
                snapshot.take(self.number, self.engine.note())
                if kind is TRAINING:
                    if self.keep is not None:
                        self.keep_start()
                    self.engine.prove(self)
                    if self.memory is not None:
                        self.memory.begin(self.number, lambda: self.engine.copy(self))
        self.to(kind)
        return Step(self, attempt, self.number, kind is not TRAINING)

    def prove(self):
        """Between two steps: reports the checksum of the state after the last step, before the supervisor decides."""
        noted = self.snapshot.step
        if self.attempt.window == BEFORE and not self.is_new and noted is not None and noted != self.number:
            self.engine.prove(self)

    def private(self, with_buffers=True):
        """What only this rank has at the start of the step, as bytes."""
        if self.snapshot.step == self.number:
            taken = self.snapshot.taken
            random, positions = taken.random, self.streams.positions()
        else:
            random, positions, taken = self.streams.copier.seed(), self.streams.positions_now(), None
        return _codec.encode((random, positions, self.engine.buffers(taken) if with_buffers else {}))

    def keep_start(self):
        """Keeps that for a successor; without the buffers from then on where they are too large, so that no step pays
        for them."""
        data = self.private(self.keep.has_buffers)
        if self.keep.write(self.number, _handoff.START, data):
            return
        if not self.keep.has_buffers:
            return self.keep.lacks(len(data))
        self.keep.has_buffers = False
        numbers = len(data), _handoff.SLOT_BYTES
        _link.say(
            "%d bytes of random numbers and buffers, and %d fit: a successor of this rank "
            "takes a peer's buffers" % numbers
        )
        self.keep_start()

    def keep_place(self):
        """Between two steps, too, this process may be lost."""
        if self.keep is not None and not self.is_new and self.attempt.window != TORN:
            self.keep_start()

    def keep_forward(self):
        """Keeps what the forward pass has left that no other rank has: buffers, and random numbers. The other ranks may
        complete the step, and this rank be lost before it begins the next one."""
        attempt = self.attempt
        attempt.forwards += 1
        if attempt.kind is not TRAINING:
            return
        seed = None
        if attempt.window == OPEN and is_in_optimizer():
            seed = attempt.closures[1][attempt.opened] = self.streams.copier.seed()
        if self.keep is not None:
            buffers = self.engine.buffers() if self.keep.has_buffers else {}
            left = buffers, self.streams.copier.seed() if seed is None else seed, attempt.closures[1]
            self.keep.write(self.number, _handoff.FORWARD, _codec.encode(left))

    def keep_opened(self):
        """The framework knows that the other ranks need nothing more of this one to complete the step. A long step is
        not recorded: the other ranks would wait for a successor that replays it."""
        if self.keep is not None and time.monotonic() - self.attempt.began < _replay.SECONDS_MAX:
            self.keep.opens(self.number)

    def end(self):
        attempt = self.attempt
        attempt.end()
        self.to(READY)
        if attempt.kind is not TRAINING:
            self.end_alone(attempt)
        elif attempt.is_tainted:
            attempt.window = TORN if attempt.window == OPEN else BEFORE
        else:
            attempt.window = BEFORE
            self.committed = self.number
            self.number += 1
            if self.session is not None:
                self.session.page.report(self.number)
            attempt.is_tainted = attempt.fails_after  # the supervisor is asked before the next step begins

    def end_alone(self, attempt):
        """The end of a step of this rank alone."""
        replacement = self.recovery.replacement
        if attempt.kind is WARMING_UP:
            replacement.warm_up.ended()
        elif replacement is not None and replacement.replay is not None and replacement.replay.ends():
            self.number, attempt.window = self.number + 1, TORN
        elif attempt.is_tainted:
            attempt.window = attempt.window_before  # a rank that was torn before is not whole by an aborted step
        else:  # what only this rank has is there; it copies the rest
            self.recovery.caught_up_from = attempt.window_before
            self.number, attempt.window = self.number + 1, TORN

    def left_in_step(self):
        """The program leaves the loop in a step, by `break` or `return`, or an exception has left it. The step is
        completed if its commit window has opened and nothing was raised."""
        attempt = self.attempt
        if attempt.kind is TRAINING and attempt.window == OPEN and not (attempt.is_tainted or attempt.has_raised):
            self.end()

    def put_back(self, alone=False):
        """Restores all that the step has changed before its window to what it was when the step began. `alone`: this
        rank repeats the step without the other ranks."""
        if self.snapshot.step == self.number and not self.snapshot.is_restored:
            self.streams.redo_step(alone)
            self.engine.put_back(self.snapshot.taken, alone)
            self.snapshot.is_restored = True

    def hold_buffers(self):
        """Holds what the step has left in the buffers, before this rank repeats it alone: without the other ranks it
        would leave other values there, where DDP copies buffers from another rank. The other ranks have completed the
        step, so its forward pass was done here as well."""
        held, snapshot = self.recovery.held, self.snapshot
        is_first = held is None or held[0] != self.number
        if is_first and snapshot.step == self.number and not snapshot.is_restored:
            self.recovery.held = self.number, self.engine.hold_buffers()

    def held_buffers(self):
        """Those of the step that this rank has just done alone; None if it has not, or there are none."""
        held = self.recovery.held
        is_of_it = held is not None and self.recovery.caught_up_from is not None and held[0] == self.number - 1
        return held[1] if is_of_it else None

    def lags(self, step):
        """Returns true if what only this rank has belongs to the step before. A replacement takes it over from its
        predecessor first."""
        replacement = self.recovery.replacement
        if replacement is not None and replacement.replay is not None:
            replacement.replay.holds_for(step)
        if replacement is not None and self.snapshot.step is None and self.keep is not None:
            for known in (step, step - 1):
                kept = self.keep.read(known, _handoff.START)
                if kept is not None:
                    self.become(known, kept)
                    if known != step:
                        self.has_gone_forward()
                    break
        return step == self.number + 1 and self.snapshot.step in (self.number, PREDECESSOR)

    def become(self, step, private):
        """A replacement continues where another process was, with its random numbers and its position in the data."""
        replacement = self.recovery.replacement
        random, positions, replacement.own_buffers = _codec.decode(private)
        replacement.start_buffers = None
        self.streams.seek(positions)
        self.engine.restore_random(random)
        self.number, self.snapshot.step, self.snapshot.is_restored = step, PREDECESSOR, False

    def has_gone_forward(self):
        """The predecessor has done the step that it has left, whose forward pass may have changed its buffers."""
        replacement, after = self.recovery.replacement, self.keep.read(self.number, _handoff.FORWARD)
        replacement.start_buffers = replacement.own_buffers
        replacement.own_buffers, _, *closures = _codec.decode(after) if after else (None, None)
        self.attempt.closures = self.number, closures[0] if closures else {}

    def arrive(self, step):
        """All state is that of the start of this step."""
        if step != self.number or self.is_new:
            self.snapshot.is_restored = False
        self.number, self.committed = step, step - 1 if step else None
        self.attempt.window, self.attempt.is_tainted = BEFORE, False
        self.recovery.end()

    def spoil(self):
        """From here on a copy changes the state. Until all of it has come, this rank has the state of no step."""
        self.recovery.is_spoiled, self.attempt.window = True, TORN

    def step_back(self):
        """Unless the rest was copied, this rank is where it was before it did a step alone, less what the copy has
        changed."""
        recovery = self.recovery
        if recovery.caught_up_from is not None:
            self.number, self.attempt.window = self.number - 1, recovery.caught_up_from
            recovery.caught_up_from = None
        if recovery.is_spoiled:
            self.attempt.window = TORN

    # What the engine's hooks ask, on the main thread inside of a step.

    def goes_on(self):
        """Returns true if a pass may begin. Raises StepAborted if the step is lost and its `with` catches that."""
        if self.in_step and self.attempt.window == BEFORE and self.is_lost():
            return self.abort()
        return True

    def is_lost(self):
        """Returns true if the step will not be completed."""
        attempt, deferred = self.attempt, self.recovery.deferred
        if attempt.kind is CATCHING_UP:  # which needs no other rank
            return attempt.is_tainted or deferred is not None and deferred[1] != self.session.generation
        return attempt.kind is TRAINING and (attempt.is_tainted or self.session.given_up)

    def opens(self):
        """Returns true if something may change parameters now, which opens the commit window."""
        attempt = self.attempt
        if not self.in_step or attempt.kind is WARMING_UP:
            return True
        if not is_in_another():
            attempt.opened += 1
        if attempt.kind is CATCHING_UP:
            return False
        if attempt.is_tainted:
            return self.abort()
        if attempt.window == BEFORE:
            if self.memory is not None:
                self.memory.window_opens()
            attempt.window = OPEN
            self.engine.opened()
        return True

    def instead(self, args, kwargs):
        """The value of a call that is left out, of an optimizer, scheduler or scaler: in a step that this rank does
        alone what an optimizer's closure returns, once. The random numbers are then those that the predecessor's calls
        of the closure had left."""
        attempt = self.attempt
        if attempt.kind is not CATCHING_UP:
            return None
        closure, given = kwargs.get("closure", args[1] if len(args) > 1 else None), None
        if hasattr(args[0], "param_groups") and callable(closure):
            given = closure()
        step, left = attempt.closures or (None, {})
        if step == self.number and attempt.opened in left:
            self.streams.copier.restore(left[attempt.opened])  # pyright: ignore[reportAttributeAccessIssue]
        return given

    def abort(self):
        self.tainted = True
        if self.attempt.is_guarded:
            raise StepAborted("step %d is given up" % self.number)
        return False

    def swallows(self, error):
        """Returns true if an exception from a step's body is the step's end, and no more than that."""
        if self.session is None or not self.in_step:
            return False
        if isinstance(error, StepAborted):
            self.tainted = True
            return True
        if not isinstance(error, Exception):
            return False
        kind, replacement = self.attempt.kind, self.recovery.replacement
        if replacement is not None and replacement.replay is not None and replacement.replay.fails(error):
            return True
        if self.is_lost():
            _link.say(
                "step %d was given up; what it raised then is "
                "dropped: %s: %s" % (self.number, type(error).__name__, error)
            )
            self.tainted = True
            return True
        # nothing of it counts, and the supervisor is answered that it could not be done
        if kind is CATCHING_UP:
            _link.say_whole("step %d cannot be done by this rank alone" % self.number, error)
            self.tainted = True
            return True
        if kind is TRAINING and (isinstance(error, self.program.retry_on) or self.engine.ran_out_of_memory(error)):
            self.tainted = True
            self.session.failed("exception", message="%s: %s" % (type(error).__name__, error))
            return True
        return False
