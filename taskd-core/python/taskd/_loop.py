"""`taskd.steps`: the training loop as an iterator over steps, each of which is done again until all ranks have done it.

Between two steps the main thread comes here, and only here does it do what the supervisor wants (`_obey`). What of this is
the framework's the session's engine does.

It never computes anything of the program's, and without a supervisor it is `range` with batches.
"""

import sys
import time

from taskd import _batches, _beforehand, _callbacks, _codec, _keep, _leaving, _link, _memory, _session
from taskd._aborted import StepAborted
from taskd._step import Step

BEFORE, OPEN, TORN = "before", "open", "torn"  # the commit window of the step: when parameters change
TRAIN, WARMING, CATCHING_UP = "train", "warming", "catching-up"
SUCCEEDED = "succeeded"  # in place of the step that was noted: what is here was the predecessor's
left_off = None  # where a loop is to go on, of a checkpoint that was loaded (`_load_dump`)


def park(at):
    """Where this process runs ahead of its rank, waits for it."""
    ahead = sys.modules.get("_taskd_ahead")
    if ahead is not None:
        ahead.park(at)


def is_in_optimizer():
    """Whether an optimizer's step has called what runs here (LBFGS calls a closure several times)."""
    return any(frame.f_code.co_name == "step" and hasattr(frame.f_locals.get("self"), "param_groups") for frame in callers())


def is_in_another():
    """Whether it is inside of one step of an optimizer, scheduler or scaler that another begins, as a scaler's does its optimizer's."""
    return sum(frame.f_code.co_name == "guarded" and frame.f_globals.get("__name__") == "taskd._guards" for frame in callers()) > 1


def callers():
    frame = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


class Loop:
    """The steps of a program. There is one at a time."""

    def __init__(self, session, state, data, until, start, retry_on, with_rank, callbacks=None):
        self.session = session
        self.engine = session.engine if session else None
        self.state, self.data, self.until, self.number, self.retry_on = state, data, until, start, tuple(retry_on)
        self.with_rank = with_rank  # what the program does once its rank is known
        self.callbacks = _callbacks.checked(callbacks)
        self.first = start
        self.committed = None
        self.kind = TRAIN
        self.window = BEFORE
        self.in_step = self.guarded = False
        self.has_raised = False  # the step's body, what is no more than the step's end not counted
        self.step = None  # that is under way
        self.after = None  # whether the step was completed, between the end of its `with` and the next one
        self.fails_after = False  # something has failed since then, which takes nothing from a step that was completed
        self.is_tainted = False  # something of this step has failed: it cannot be committed
        self.note = None  # what was there when the step `noted` began
        self.noted = None
        self.again = False  # the next step is the one that was begun
        self.waits = None  # a directive that has to wait for a step
        self.warm = None  # of a newcomer, until it is parked
        self.is_new = False  # a newcomer, until it trains
        self.built_ms = None  # of a newcomer: from when it was the rank until it was parked
        self.caught_up = None  # the window before this rank did a step by itself, until it has copied the rest
        self.beforehand = None  # of a newcomer: a step that it does by itself ahead of being told to (`_beforehand`)
        self.is_spoiled = False  # a copy was begun and has not come to its end: what is here is of no step
        self.own_buffers = None  # of a newcomer: its predecessor's
        self.start_buffers = None  # and where that has gone forward, what they were when the step began
        self.forwards = 0  # backward passes of this step, and operations ahead of which something had changed
        self.opened = 0  # times that something was about to change parameters in this step
        self.closures = None  # (step, {opened: random numbers}) of what an optimizer has called in its step, behind its last forward pass
        self.held = None  # (step, its buffers) of a step that is done again by itself: as all ranks' operations had left them
        self.keep = self.memory = self.leaving = None
        self.keeps_buffers = True  # as far as is known
        plain = not self.engine
        self.copier = _batches.Nothing() if plain else self.engine.copier
        self.streams = _batches.Streams(_batches.open_plainly if plain else self.engine.open_data, self.copier)

    @property
    def tainted(self):
        return self.is_tainted

    @tainted.setter
    def tainted(self, value):
        if value and self.after:
            self.fails_after = True
        else:
            self.is_tainted = value

    def has_completed(self):
        """Whether the step under way is done, as far as is known."""
        if self.after is not None or self.guarded:
            return bool(self.after)
        return self.has_completed_body()

    def comes_after(self, is_whole):
        """The `with` of the step ends, without an exception that was its own."""
        if self.in_step:
            self.after = is_whole and self.has_completed_body()

    def has_completed_body(self):
        return self.kind == TRAIN and not self.is_new and not self.tainted

    def stream(self, loader):
        source = self.data if loader is None else loader
        if source is None:
            raise TypeError("step.next() without a loader needs taskd.steps(data=...)")
        return self.streams.of(source)

    def run(self):
        """The steps, as a generator: its end, whatever it is, is the end of the loop."""
        try:
            if self.session is not None:
                self.enter()
            if self.warm is None:
                self.has_rank()
            self.go_on()
            while True:
                self.kind = self.settle() if self.session is not None else TRAIN
                if self.kind == TRAIN and self.until is not None and self.number >= self.until:
                    return
                step = self.begin()
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
        self.engine.enter(self, self.state)
        if self.session.wait_for_mode() == _session.JOIN and not self.session.came:
            self.session.came = self.is_new = True
            self.window = TORN  # it has the state of no step
            self.session.page.is_said = True  # nor are the steps of its warm-up the job's
            self.streams.is_warming = True
            self.warm = self.engine.newcomer(self)
        else:
            self.session.at(_session.LOOP)

    def has_rank(self):
        """The rank is known, or waited for here."""
        if self.session is not None:
            _codec.add_types_ahead()
            park("has come to its step loop")
            self.leaving = _leaving.watched(self)
            self.keep = _keep.opened()
            if self.keep is not None:
                if not self.is_new:
                    self.keep.forget()
                self.keep.away = self.engine.away(self.keep)
            if not self.is_new:
                self.keep_copies()
        if self.with_rank is not None:
            self.with_rank()

    def keep_copies(self):
        """From here on nobody else writes where this rank's copies are."""
        self.memory = _memory.opened(self.session, self.number)
        if self.memory is not None:
            self.memory.say_again(self.number)

    def go_on(self):
        """Takes the random numbers and the place in the data of a checkpoint that was loaded, if it is of the first step."""
        global left_off
        if left_off is None or left_off.step != self.number or self.is_new:
            return
        there, left_off = left_off, None
        if self.engine is None:
            self.streams.opener, self.streams.copier = there.opener, there.copier()
        self.streams.seek(there.positions)
        there.restore_random(there.random)

    def leave(self):
        if self.in_step and self.after and self.window == OPEN:
            self.end()  # the program has left the loop behind the step's body, which counts
        self.in_step = False
        if self.leaving is not None:
            self.leaving.end()
        if self.memory is not None:
            self.memory.given_up()
        if self.session is not None and self.session.loop is self:
            self.session.at(_session.SCRIPT)
            self.engine.leave()
            self.session.loop = None

    def settle(self):
        """What the next step is for. Until there is one, does what the supervisor wants."""
        from taskd import _obey

        if self.warm is not None:
            if self.warm.goes_on():
                return WARMING
            self.warm.end()
            self.warm = self.note = self.noted = None
            self.has_rank()
            self.built_ms = round((time.monotonic() - self.session.began) * 1000, 3)
            self.session.at(_session.PARKED)
        if self.is_new or self.tainted or self.waits is not None or self.session.attention or self.session.given_up:
            return _obey.until_resumed(self)
        return TRAIN

    def begin(self):
        self.window_then, self.began = self.window, time.monotonic()
        self.after, self.fails_after = None, False
        self.forwards = self.opened = 0
        if self.kind == TRAIN:
            self.closures = self.number, {}
        self.tainted, self.window = False, TORN if self.is_new else BEFORE
        if self.again:
            self.again = False
        else:
            self.streams.begin_step()
            if self.engine is not None:
                self.note, self.noted = self.engine.note(), self.number
                if self.keep is not None and self.kind == TRAIN:
                    self.keep_start()
                if self.kind == TRAIN and not self.is_new:
                    self.engine.prove(self)
                if self.memory is not None and self.kind == TRAIN:
                    self.memory.begin(self.number, lambda: self.engine.copy(self))
        self.in_step, self.has_raised = True, False
        self.step = Step(self, self.number, self.kind != TRAIN or self.is_new)
        return self.step

    def prove(self):
        """Between two steps: what the one that is over has made of this rank's state is with the supervisor ahead of what it decides."""
        if self.window == BEFORE and not self.is_new and self.noted is not None and self.noted != self.number:
            self.engine.prove(self)

    def private(self, with_buffers=True):
        """What only this rank has at the start of the step, as bytes."""
        if self.noted == self.number:
            random, positions, note = self.note.random, self.streams.positions(), self.note
        else:
            random, positions, note = self.copier.seed(), self.streams.positions_now(), None
        return _codec.encode((random, positions, self.engine.buffers(note) if with_buffers else {}))

    def keep_start(self):
        """Keeps that for a successor; without the buffers from then on where they are too large, so that no step pays for them."""
        data = self.private(self.keeps_buffers)
        if self.keep.write(self.number, _keep.START, data):
            return
        if not self.keeps_buffers:
            return self.keep.lacks(len(data))
        self.keeps_buffers = False
        numbers = len(data), _keep.SLOT_BYTES
        _link.say("%d bytes of random numbers and buffers, and %d fit: a successor of this rank takes a peer's buffers" % numbers)
        self.keep_start()

    def keep_place(self):
        """Between two steps, too, this process may be lost."""
        if self.keep is not None and not self.is_new and self.window != TORN:
            self.keep_start()

    def keep_forward(self):
        """What the forward pass has left that no other rank has: buffers, and random numbers. Others may complete the step, and
        this rank be lost before it begins the next one."""
        self.forwards += 1
        if self.kind != TRAIN:
            return
        seed = None
        if self.window == OPEN and is_in_optimizer():
            seed = self.closures[1][self.opened] = self.copier.seed()
        if self.keep is not None:
            buffers = self.engine.buffers() if self.keeps_buffers else {}
            left = buffers, self.copier.seed() if seed is None else seed, self.closures[1]
            self.keep.write(self.number, _keep.FORWARD, _codec.encode(left))

    def keep_opened(self):
        """The framework knows that the others need nothing more of this rank to complete the step. Of a long one nothing is said: they
        would wait for a successor that does it beforehand."""
        if self.keep is not None and time.monotonic() - self.began < _beforehand.SECONDS_MAX:
            self.keep.opens(self.number)

    def end(self):
        self.step._ended = self.has_completed()
        self.in_step, self.after = False, None
        if self.kind == WARMING:
            self.warm.ended()
        elif self.beforehand is not None and self.beforehand.ends():
            self.number, self.window = self.number + 1, TORN
        elif self.kind == CATCHING_UP and self.tainted:
            self.window = self.window_then  # who was torn before is not whole by a step that was broken off
        elif self.kind == CATCHING_UP:  # what only this rank has is there; the rest it copies
            self.number, self.caught_up, self.window = self.number + 1, self.window_then, TORN
        elif self.tainted:
            self.window = TORN if self.window == OPEN else BEFORE
        else:
            self.window = BEFORE
            self.committed = self.number
            self.number += 1
            if self.session is not None:
                self.session.page.says(self.number)
            self.tainted = self.fails_after  # the next one does not begin before the supervisor was asked

    def left_in_step(self):
        """The program leaves the loop in a step, by `break` or `return`, or an exception has left it. It is completed if its commit window
        has opened and nothing was raised."""
        if self.kind == TRAIN and self.window == OPEN and not (self.tainted or self.has_raised):
            self.end()

    def put_back(self, alone=False):
        """All that the step has changed before its window is as it was when the step began. `alone`: this rank does it by itself."""
        if self.noted == self.number and not self.again:
            self.streams.redo_step(alone)
            self.engine.put_back(self.note, alone)
            self.again = True

    def hold_buffers(self):
        """What the step has left in the buffers, ahead of being done again by itself: without the other ranks it would leave
        something else there, where DDP copies buffers from another rank. The others have completed the step, so its forward
        pass was done here as well."""
        is_first = self.held is None or self.held[0] != self.number
        if is_first and self.noted == self.number and not self.again:
            self.held = self.number, self.engine.hold_buffers()

    def held_buffers(self):
        """Those of the step that this rank has just done by itself; None if it has not, or there are none."""
        is_of_it = self.held is not None and self.caught_up is not None and self.held[0] == self.number - 1
        return self.held[1] if is_of_it else None

    def lags(self, step):
        """Whether what only this rank has belongs to the step before. A newcomer takes it over from its predecessor first."""
        if self.beforehand is not None:
            self.beforehand.holds_for(step)
        if self.is_new and self.noted is None and self.keep is not None:
            for known in (step, step - 1):
                kept = self.keep.read(known, _keep.START)
                if kept is not None:
                    self.become(known, kept)
                    if known != step:
                        self.has_gone_forward()
                    break
        return step == self.number + 1 and (self.noted == self.number or self.noted == SUCCEEDED)

    def become(self, step, private):
        """Goes on where another process was, with its random numbers and its place in the data."""
        random, positions, self.own_buffers = _codec.decode(private)
        self.start_buffers = None
        self.streams.seek(positions)
        self.engine.restore_random(random)
        self.number, self.noted, self.again = step, SUCCEEDED, False

    def has_gone_forward(self):
        """The predecessor has done the step that it has left, whose forward pass may have changed its buffers."""
        after = self.keep.read(self.number, _keep.FORWARD)
        self.start_buffers = self.own_buffers
        self.own_buffers, _, *closures = _codec.decode(after) if after else (None, None)
        self.closures = self.number, closures[0] if closures else {}

    def arrive(self, step):
        """All state is that of the start of this step."""
        if step != self.number or self.is_new:
            self.again = False
        self.number, self.committed, self.window = step, step - 1 if step else None, BEFORE
        self.tainted, self.is_spoiled, self.caught_up, self.held, self.beforehand = False, False, None, None, None
        self.start_buffers = None

    def spoil(self):
        """From here on a copy changes what is here. Until all of it has come, this rank has the state of no step."""
        self.is_spoiled, self.window = True, TORN

    def step_back(self):
        """Unless the rest was copied, this rank is where it was before it did a step by itself, less what the copy has changed."""
        if self.caught_up is not None:
            self.number, self.window, self.caught_up = self.number - 1, self.caught_up, None
        if self.is_spoiled:
            self.window = TORN

    # What the engine's hooks ask, on the main thread inside of a step.

    def goes_on(self):
        """Whether a pass may begin. Raises where the step is lost and somebody catches it."""
        if self.in_step and self.window == BEFORE and self.is_lost():
            return self.abort()
        return True

    def is_lost(self):
        """Whether the step will not be completed."""
        if self.kind == CATCHING_UP:  # which needs nobody else
            return self.tainted or self.waits is not None and self.waits[1] != self.session.generation
        return self.kind == TRAIN and (self.tainted or self.session.given_up)

    def opens(self):
        """Whether something may change parameters now, which opens the commit window."""
        if not self.in_step or self.kind == WARMING:
            return True
        if not is_in_another():
            self.opened += 1
        if self.kind == CATCHING_UP:
            return False
        if self.tainted:
            return self.abort()
        if self.window == BEFORE:
            if self.memory is not None:
                self.memory.window_opens()
            self.window = OPEN
            self.engine.opened()
        return True

    def instead(self, args, kwargs):
        """What is given in place of a call that is left out, of an optimizer, scheduler or scaler: in a step that this rank does alone
        what an optimizer's closure gives, once. The random numbers are then what its predecessor's calls of it had left."""
        if self.kind != CATCHING_UP:
            return None
        closure, given = kwargs.get("closure", args[1] if len(args) > 1 else None), None
        if hasattr(args[0], "param_groups") and callable(closure):
            given = closure()
        step, left = self.closures or (None, {})
        if step == self.number and self.opened in left:
            self.copier.restore(left[self.opened])
        return given

    def abort(self):
        self.tainted = True
        if self.guarded:
            raise StepAborted("step %d is given up" % self.number)
        return False

    def swallows(self, error):
        """Whether an exception from a step's body is the step's end, and no more than that."""
        if self.session is None or not self.in_step:
            return False
        if isinstance(error, StepAborted):
            self.tainted = True
            return True
        if not isinstance(error, Exception):
            return False
        if self.beforehand is not None and self.beforehand.fails(error):
            return True
        if self.is_lost():
            _link.say("step %d was given up; what it raised then is dropped: %s: %s" % (self.number, type(error).__name__, error))
            self.tainted = True
            return True
        if self.kind == CATCHING_UP:  # nothing of it counts, and whoever wanted it is answered that it could not be done
            _link.say_whole("step %d cannot be done by this rank alone" % self.number, error)
            self.tainted = True
            return True
        if self.kind == TRAIN and (isinstance(error, self.retry_on) or self.engine.may_pass(error)):
            self.tainted = True
            self.session.failed("exception", message="%s: %s" % (type(error).__name__, error))
            return True
        return False
