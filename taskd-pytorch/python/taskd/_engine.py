"""PyTorch's part of recovery: what `taskd._session` asks of an engine, put together from the files beside this one.

It only brings them together; each of them knows its own matter.
"""

import os
from _thread import get_ident

import torch

from taskd import _accelerate, _auth, _away, _begin_alone, _buffers, _completer, _copied, _data, _digest, _fsdp, _groups_anew, _late, _link
from taskd import _made, _newcomer, _notes, _passing, _random, _reducers, _state, _step_kinds, _store, _transfer, _under_way, _undo, _unfinished
from taskd._loop import CATCHING_UP, OPEN, TORN, WARMING
from taskd._session import JOIN, Refused

BUCKETS_MAX = 4096  # sizes of operations that C++ calls for in one backward pass; more are not compared
FIRST_MEETING_SECONDS = 30  # within which the store of the first generation is reached
CARRIED = "what gradients have from one step to the next"
AHEAD_MAX = 2  # steps that are seen to change parameters ahead of their commit windows, before no step is done again


class Engine:
    def __init__(self, session):
        self.session = session
        self.loop = None
        self.main_thread = get_ident()
        self.pid = os.getpid()
        self.state_ = _state.State()
        self.noter = _notes.Noter(self.state_)
        self.told_sharded = []
        self.cannot = None  # why no step can be given up, in a sentence
        self.unfinished, self.under_way = _unfinished.Unfinished(), _under_way.UnderWay()
        self.reducers = _reducers.Reducers(self)
        self.kinds = _step_kinds.StepKinds()
        self.groups = _groups_anew.Groups(self)
        self.completer = _completer.Completer()
        self.copier, self.open_data = _data.Copier(self), _data.open_at
        self.store = self.client = None  # of the generation
        self.away_ = self.first_client = None  # where what only this rank has is kept by another one
        self.warm = None
        self.transfer, self.late = _transfer.Transfer(self), _late.Late(self)
        self.buckets, self.buckets_before = [], []  # of this step, and of the last one that was committed
        self.in_window = False  # operations were called for in a commit window: what was changed before one fails has to be undone
        self.undo = _undo.Undo(self.state_)
        self.ahead = 0  # steps that were seen to change parameters ahead of their commit windows
        self.digest_of = None  # (loop, step) of the checksum that was reported last
        self.has_no_digest = False  # it could not be computed, which was reported
        self.said_after = False  # that an operation behind a step that was completed has done nothing

    # Of the process.

    def is_main(self):
        return get_ident() == self.main_thread and os.getpid() == self.pid

    def is_rank_itself(self):
        """A child that it has forked has the same hooks, and is none."""
        return os.getpid() == self.pid

    def is_newcomer(self):
        return self.session.wait_for_mode() == JOIN and not self.session.came_in

    @property
    def alone(self):
        """Whether operations are answered here: a newcomer's, until it has joined, those of a step done by itself, and those of
        a pass that only ends what was given up."""
        if self.copier.replays is not None:
            return False
        if self.unfinished.finishing or self.session.mode == JOIN and not self.session.came_in:
            return True
        return self.loop is not None and self.loop.in_step and self.loop.kind == CATCHING_UP

    def may_pass(self, error):
        """Whether a step may have this exception once and not the next time."""
        return _passing.may_pass(error)

    def is_rank(self):
        """Groups that were made before this process knew its rank have its place in them now."""
        for front in self.groups.fronts():
            spec = front._inner.spec
            if spec.is_default and int(os.environ["RANK"]) < len(spec.members):
                spec.rank = int(os.environ["RANK"])
        _begin_alone.seat_samplers()

    def away(self, keep):
        """Where another rank keeps what only this one has: where the job has several hosts."""
        if self.away_ is None and os.environ.get("TASKD_AWAY"):
            is_newcomer = self.is_newcomer()
            if is_newcomer:
                keep.looks_beside(int(os.environ["RANK"]))
            try:
                self.away_ = _away.Away(keep, None if is_newcomer else self.first_meeting)
            except (OSError, RuntimeError) as error:
                _link.say("what only this rank has is kept on its own host alone: %s" % error)
        return self.away_

    def first_meeting(self):
        """The store of the generation that this process has started in, its rank, and all ranks."""
        where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self.first_client = _store.Client(*where, FIRST_MEETING_SECONDS)  # C++ does not keep it
        part = "taskd/%d" % self.session.generation
        store = self.signed(torch.distributed.PrefixStore(part, self.first_client), part)
        return store, int(os.environ["RANK"]), list(range(int(os.environ["WORLD_SIZE"])))

    def signed(self, store, part):
        """What taskd itself has in this part of the generation's store."""
        return _auth.Store(store, _auth.key_of(_auth.store_of(self.session.generation)), part)

    def meet(self, store, order):
        """All are about to join. On a thread of its own."""
        if self.away_ is not None:
            self.away_.meet(store, int(order["rank"]), [int(one["rank"]) for one in order["members"]])

    # Of the loop.

    def enter(self, loop, state):
        self.state_.register(state)
        _made.loop_begins()
        self.late.install()
        counters = _accelerate.state()
        if counters is not None:
            self.state_.named.setdefault(_accelerate.NAME, counters)
        self.loop = loop
        self.say_what_is_sharded()
        self.say_what_is_not_given()
        self.noter.looks_at_buffers()
        if self.noter.unusual is not None:
            self.refuses(self.why_unusual())
        if self.cannot is not None:
            _link.say("recovery in place is off: %s" % self.cannot)

    def leave(self):
        self.loop = None
        self.kinds = _step_kinds.StepKinds()
        self.reducers.leave_loop()
        self.copier.leave_loop()

    def newcomer(self, loop):
        self.warm = _newcomer.Warm(self, loop)
        return self.warm

    def find(self, name, what):
        if not self.state_.find(name, what):
            return
        self.say_what_is_sharded()
        self.say_what_came_late()
        if self.warm is not None:
            self.warm.note(what)
        elif isinstance(what, torch.nn.Module) and self.loop.note is not None:
            self.loop.note.modules_are_found(with_grads=True)
            self.say_what_is_unusual()
        elif self.loop.note is not None:
            self.loop.note.scalers_are_found()

    def refuses(self, why):
        """No step can be given up from here on; only the first reason is reported."""
        if self.cannot is None:
            self.cannot = why
            self.session.knows_limits()

    def say_what_is_sharded(self):
        new = [name for name in self.state_.not_replicated() if name not in self.told_sharded]
        if not new:
            return
        self.told_sharded += new
        _link.say("no other rank has a copy of what a rank holds of what is sharded: %s" % ", ".join(new))
        lost = [name for name in self.told_sharded if not _state.is_zero(self.state_.named[name])]
        if lost:
            why = "%s is sharded (FSDP), and does not come back from a pass that was given up in its middle: restart all ranks"
            self.cannot = why % lost[0]
        self.session.knows_limits()

    def say_what_is_not_given(self):
        """What is named and holds values of types that are not handed to another process."""
        for name, why in sorted(self.state_.not_encodable(self.told_sharded).items()):
            self.told_sharded.append(name)
            _link.say("%s cannot be given to a rank that takes the place of a lost one (%s): where a rank is lost all start again" % (name, why))
            self.session.knows_limits()

    def carries_gradients(self):
        """A rank that takes the place of a lost one has none of what that one's steps before have left in its gradients."""
        if CARRIED not in self.told_sharded:
            self.told_sharded.append(CARRIED)
            why = "step %d goes on with gradients of the step before it, which are each rank's own: where a rank is lost all start again; have "
            _link.say((why + "a step of taskd's hold all passes up to the optimizer's step") % self.loop.number)
            self.session.knows_limits()

    def say_what_came_late(self):
        """What the program has made in its loop, behind the steps that every newcomer begins with, a newcomer may not have."""
        name = self.state_.found[-1]
        began = self.loop.first
        if self.warm is None and self.loop.number - began >= _newcomer.WARM_MIN and _made.place_of(self.state_.named[name]) is None:
            self.told_sharded.append(name)
            why = "%s was made inside of the step loop, at step %d: a rank that takes the place of a lost one does not have it; restart all"
            _link.say((why + " ranks then, or make it before the loop") % (name, self.loop.number))
            self.session.knows_limits()

    def draws_with_operations(self, kind):
        """No step is done again in which ranks have come to other batches than others."""
        why = "%s calls for operations of all ranks with every batch, which a step that is done again does not: restart all ranks"
        self.finds_limit(why % kind)

    def has_unknown_workers(self, kind):
        self.finds_limit("the random numbers of the persistent workers of %s are not known: restart all ranks" % kind)

    def finds_limit(self, why):
        """No step can be given up from here on. The first reason is reported."""
        if self.cannot is None:
            self.cannot = why
            _link.say(why)
            self.session.knows_limits()

    def say_what_is_unusual(self):
        if self.noter.unusual is not None:
            self.finds_limit(self.why_unusual())

    def why_unusual(self):
        return "no step puts back the buffer %s: restart all ranks" % self.noter.unusual

    def note(self):
        self.buckets_before, self.buckets = self.buckets or self.buckets_before, []
        self.unfinished.forget()
        self.undo.kept = None
        if self.loop.committed is not None:
            self.undo.is_needed = self.in_window
            self.late.look()
        note = self.noter.note()
        self.say_what_is_unusual()
        return note

    def prove(self, loop):
        """Reports the checksum of what is here, where a step begins with which all ranks do, or the one before was of a new kind. A kind
        of which the supervisor does not hear is new once more."""
        is_new_kind = self.kinds.is_new(loop.number)
        if self.kinds.are_too_many():
            why = "the steps of this program call for collectives in more than %d ways, so no rank is known to be another's replica: restart all ranks"
            self.finds_limit(why % _step_kinds.KINDS_MAX)
        is_due = _digest.is_due(loop.number, loop.first)
        if is_new_kind and not self.session.link.is_greeted:
            self.kinds.is_not_known()
            is_new_kind = False
        if is_new_kind or is_due:
            self.report_digest(loop, is_new_kind)

    def report_digest(self, loop, is_new_kind=False):
        if self.digest_of == (self.session.loops, loop.number):
            return
        digest = self.digest(loop)
        if digest is not None:
            self.digest_of = self.session.loops, loop.number
            is_sent = self.session.proved(dict(digest, first_of_kind=is_new_kind), is_new_kind or loop.number == loop.first)
            if is_new_kind and not is_sent:
                self.kinds.is_not_known()

    def digest(self, loop):
        """The checksum of what is here, and what else the supervisor has to know of it; None where there is none. Without it this rank
        is nobody's replica."""
        try:
            return _digest.report(self, loop)
        except Exception as error:
            if not self.has_no_digest and self.noter.unusual is None:  # of which all was said
                self.has_no_digest = True
                why = "%s: %s" % (type(error).__name__, error)
                _link.say("no checksum of this rank's state can be computed, so no other rank is proven to hold the same: %s" % why)
            return None

    def has_passed(self, model, tensors):
        """A forward pass of DDP has ended, with these tensors in what it gave."""
        if torch.is_grad_enabled():
            self.look_at_hook(model)
            self.kinds.passes_through(model, model.require_backward_grad_sync)
            self.unfinished.begins(model, tensors)

    def begins_pass(self, model):
        """A forward pass of FSDP begins."""
        if torch.is_grad_enabled() and _fsdp.keeps_all(model):
            self.look_at_hook(model)
            self.kinds.passes_through(model, getattr(model, "_sync_gradients", True))

    def look_at_hook(self, model):
        hook = _reducers.hook_with_state(model) or _fsdp.hook_of(model) if self.cannot is None else None
        if hook is not None:
            kind, name = hook
            why = "the communication hook %s of a module of %s may keep a state of its own, which no step puts back and no other rank has: restart all ranks"
            self.finds_limit(why % (name, kind))

    def backward(self, adds=True):
        """A backward pass begins: the others cannot complete the step without it, and with it they can. It adds to gradients, or only
        gives some."""
        if adds and self.noter.zeroing.begins_pass(self.loop):
            self.carries_gradients()
        self.noter.changed()
        self.loop.keep_forward()

    def ends_backward(self):
        if self.noter.zeroing.ends_pass():
            self.carries_gradients()

    def steps(self, optimizer):
        """An optimizer's step begins."""
        if self.noter.zeroing.steps(optimizer.param_groups):
            self.carries_gradients()

    def issued(self, args):
        """An operation of the step; with what it was called, where C++ did inside of backward."""
        loop = self.loop
        if loop.keep is not None and loop.after is None and self.noter.changed():
            loop.keep_forward()
        if loop.window == OPEN and not loop.after:
            self.undo.is_needed = self.in_window = True
        if args is not None and len(self.buckets) < BUCKETS_MAX:
            first = args[0]
            self.buckets.append(sum(one.numel() for one in (first if isinstance(first, (list, tuple)) else [first])))

    def fails_quietly(self):
        """An operation is given up, and its caller goes on as if it had done something."""
        self.loop.tainted = True
        if self.loop.after and not self.said_after:
            self.said_after = True
            why = "step %d: an operation behind `with step:` was given up, and has done nothing: what it was to give belongs inside"
            _link.say(why % self.loop.number)

    def opened(self):
        """The commit window opens."""
        if self.loop.number == self.loop.first:  # what the program does not register was found since the step began
            self.report_digest(self.loop)
        if not self.in_window and self.reducers.is_settled(self.loop.number):
            self.loop.keep_opened()
        if self.undo.is_needed or _digest.is_due(self.loop.number, self.loop.first):
            self.look_ahead_of_window()
        if self.noter.unusual is None:
            self.undo.keep()

    def look_ahead_of_window(self):
        """Reports a program that changes parameters where no step puts them back, before anything has failed. One step may do so."""
        note = self.loop.note
        changed = note.changed_parameter() if note is not None else None
        if changed is not None and note.why_not is None:
            note.why_not = self.why_changed(changed)
            self.ahead += 1
            if self.ahead == AHEAD_MAX:
                self.noter.keeps_storages = False  # of which more than one might have to be held
                self.finds_limit(note.why_not)

    def why_changed(self, parameter):
        found = ("%s/%s" % (name, path) for name, what in self.state_.named.items() for path in paths_of(parameter, what))
        name = next(found, "a parameter")
        return "%s was changed ahead of optimizer.step(), and no step puts parameters back; restart all ranks" % name

    def undone(self):
        """Takes back what the window has changed; whether it could be."""
        if not self.undo.take_back():
            return False
        if self.loop.note is not None and self.loop.note.why_not is None:
            self.loop.note.parameters_are_right()
        return True

    def put_back(self, note, alone=False):
        """Raises Refused: a parameter is not what it was, and nobody gives this rank another's; or the step gives to the next one what
        it cannot have `alone`."""
        if alone and CARRIED in self.told_sharded:
            raise Refused("%s no rank has of a step that it does by itself; restart all ranks" % CARRIED)
        if not alone and self.loop.window != TORN:
            if self.ahead >= AHEAD_MAX:
                raise Refused(self.cannot)
            changed = note.changed_parameter()
            if changed is not None or note.why_not is not None:
                raise Refused(note.why_not or self.why_changed(changed))
        self.buckets = []
        self.kinds.forget()
        self.reducers.put_back(self.loop.number)
        note.put_back()

    def buffers(self, note=None):
        """The buffers of all modules, of now or as they were noted, by path: as bytes."""
        if note is not None:
            return _buffers.packed(zip(self.noter.paths, (copy for _, copy in note.buffers)))
        return _buffers.packed(self.noter.buffers())

    def hold_buffers(self):
        return _buffers.Held(self.state_)

    def put_buffers(self, held):
        with torch.no_grad():
            for one, copy in held:
                _buffers.put(one, copy)

    def fill_buffers(self, values):
        _buffers.fill(self.state_.buffers(), values)

    def restore_random(self, data):
        _random.restore(data)

    # Of the session.

    def release(self):
        try:
            self.groups.release()
        finally:
            self.completer.release()  # C++ waits for nothing else

    def give_up(self):
        self.release()
        self.transfer.close()
        self.under_way.wait_for_ends(self.groups.release)
        if self.loop.tainted:
            self.unfinished.finish(self.reducers.modules())
            _fsdp.leave_passes(self.state_.modules())

    def state(self):
        leaves = self.state_.leaves()
        sizes = self.buckets_before if not self.buckets or self.loop.kind != WARMING else self.buckets
        if not self.reducers.is_settled(self.loop.number):
            sizes = []
        sharded = set(self.state_.not_replicated())
        return {
            "layout": self.state_.layout(leaves),
            "buckets": sizes,
            "bytes": bytes_of(leaves),
            "has": [name for name in self.state_.named if name not in sharded],
            "sharded": sorted(sharded),
            "abandoned": self.groups.abandoned,
        }

    def state_bytes(self):
        return bytes_of(self.state_.leaves()) if self.noter.unusual is None else None

    def join(self, order, cancelled):
        import torch.distributed as dist

        before, is_new = dist.get_world_size(), self.loop.is_new
        answer = self.groups.join(order, cancelled)
        self.session.came_in = True
        self.members = {int(one["rank"]): one.get("pid") for one in order.get("members") or []}
        self.rank = int(order["rank"])
        self.reducers.tell(self.loop.number, is_new)
        _data.World.becomes(before, dist.get_world_size(), dist.get_rank())
        _fsdp.look_at_groups(self.state_.modules())
        if is_new and self.loop.keep is not None and self.away_ is not None:
            self.loop.keep.elsewhere = _away.kept_of(self.store, self.rank)
        if not is_new:  # who is new takes its place in the data from another
            self.loop.streams.share_anew(_data.seat)
        return answer

    def place(self):
        """`(rank, size)` in the world that was joined last."""
        return _data.World.rank, _data.World.size

    def give(self, loop, order):
        self.transfer.give(loop, order)

    def take(self, loop, step, ranks, cancelled):
        given = self.transfer.take(loop, step, ranks, cancelled)
        if loop.noted == loop.number and not loop.is_new:  # it was torn in this step, and has what its own buffers were when that began
            loop.note.put_back_buffers()
        return given

    def agree(self, order):
        """All have joined: their buckets must be the same, or their operations would not match."""
        is_new, sizes = self.loop.is_new, order.get("buckets")
        self.reducers.agree(order["step"], is_new)
        own = self.buckets_before or self.buckets
        if sizes and is_new and list(sizes) != list(own):
            raise Refused("the buckets of this rank (%s) are not those of the others (%s); restart all ranks" % (own, sizes))

    def resumed(self):
        if self.loop.note is not None:
            self.loop.note.parameters_are_right()
        self.reducers.resumed_at = self.loop.number
        self.transfer.close()
        for front in self.groups.fronts():
            front._inner.has_failed = False

    def copy(self, loop):
        """All of this rank's state, for a copy in memory."""
        return _copied.of(self, loop)

    def dump(self, loop, order):
        from taskd import _dump

        return _dump.write(self, loop, order)


def paths_of(parameter, what):
    named = _state.inner_of(what).named_parameters() if isinstance(what, torch.nn.Module) else ()
    return [path for path, one in named if one is parameter]


def bytes_of(leaves):
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves.values())
