"""PyTorch part of recovery: the engine that `taskd._session` uses, composed of the modules of this package.

This module only connects the others, each of which has its own task.
"""

from __future__ import annotations

import os
from _thread import allocate_lock, get_ident

import torch

from taskd import _auth, _handoff_peers, _link, _second_copies
from taskd._loop import CATCHING_UP, OPEN, TORN, WARMING_UP
from taskd._session import JOIN, Refused
from taskd.torch import (
    accelerate,
    fsdp,
    in_memory_checkpoint,
    late_buffers,
    out_of_memory,
    registry,
    rng,
    step_signature,
    step_snapshot,
    store_client,
    transfer,
    undo,
)
from taskd.torch import buffers as _buffers
from taskd.torch import digest as _digest
from taskd.torch import state as _state
from taskd.torch.data import loader
from taskd.torch.ddp import reducer, unfinished_backward
from taskd.torch.limits import CARRIED, Limits
from taskd.torch.process_group import completion, in_flight, rebuild
from taskd.torch.standby import init_process_group, warm_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Sequence

    from taskd._loop import Loop
    from taskd._session import Session

BUCKETS_MAX = 4096  # operations called by C++ in one backward pass whose sizes are compared; more are not
FIRST_MEETING_SECONDS = 30  # limit of the connection to the store of the first generation
AHEAD_MAX = 2  # number of steps that change parameters before their commit windows, from which on no step is repeated


class Engine(Limits):
    def __init__(self, session: Session) -> None:
        self.session = session
        self.loop: Any = None
        self.main_thread = get_ident()
        self.pid = os.getpid()
        self.state_ = _state.State()
        self.noter = step_snapshot.SnapshotTaker(self.state_)
        self.reported_sharded = []
        self.cannot = None  # the reason why no step can be aborted, as a sentence
        self.unfinished, self.under_way = unfinished_backward.UnfinishedBackward(), in_flight.OperationsInFlight()
        self.reducers = reducer.Reducers(self)
        self.kinds = step_signature.StepSignatures()
        self.groups = rebuild.Groups(self)
        self.completer = completion.Completer()
        self.copier, self.open_data = loader.Copier(self), loader.open_at
        self.store: Any = None  # the store of the generation
        self.client: Any = None
        self.handoff_peers: Any = None
        self.second: Any = None  # second copies of in-memory checkpoints, on another host
        self.first_client: Any = None  # connection to the store of the first generation, for the two above
        self.first_lock = allocate_lock()  # of `first_client`
        self.warm: Any = None
        self.spare: dict[Any, Any] = {}  # tensors of optimizer state, reused for state that is copied
        self.transfer, self.late = transfer.Transfer(self), late_buffers.LateBuffers(self)
        self.buckets, self.buckets_before = [], []  # of this step, and of the last committed step
        # True if operations were called in a commit window: if one fails, the changes before it have to be undone
        self.in_window = False
        self.undo = undo.Undo(self.state_)
        self.ahead = 0  # number of steps that changed parameters before their commit windows
        self.digest_of = None  # (loop, step) of the checksum that was reported last
        self.has_no_digest = False  # True if the checksum could not be computed, which was reported
        self.reported_after = False  # True if it was reported that an operation after a completed step had no effect

    # Process.

    def is_main(self) -> bool:
        return get_ident() == self.main_thread and os.getpid() == self.pid

    def is_rank_itself(self) -> bool:
        """Returns True in the rank's process, but not in a child that it has forked, which has the same hooks."""
        return os.getpid() == self.pid

    def is_replacement(self) -> Any:
        return self.session.wait_for_mode() == JOIN and not self.session.came_in

    @property
    def alone(self) -> Any:
        """True if operations are answered locally: those of a joining rank until it has joined, those of a step that
        this rank does alone, and those of a pass that only finishes an aborted one."""
        if self.copier.replays is not None:
            return False
        if self.unfinished.finishing or self.session.mode == JOIN and not self.session.came_in:
            return True
        return self.loop is not None and self.loop.phase is CATCHING_UP

    def ran_out_of_memory(self, error: BaseException) -> bool:
        """Returns True if a step with this exception may succeed when it is repeated."""
        return out_of_memory.ran_out_of_memory(error)

    def is_rank(self) -> None:
        """Sets this process's rank in groups that were made before the rank was known."""
        for front in self.groups.fronts():
            spec = front._inner.spec
            if spec.is_default and int(os.environ["RANK"]) < len(spec.members):
                spec.rank = int(os.environ["RANK"])
        init_process_group.seat_samplers()

    def away(self, keep: Any) -> Any:
        """Returns the connection to the ranks that keep this rank's own state, if the job has several hosts."""
        if self.handoff_peers is None and os.environ.get("TASKD_REPLICATE"):
            is_replacement = self.is_replacement()
            if is_replacement:
                keep.looks_beside(int(os.environ["RANK"]))
            try:
                self.handoff_peers = _handoff_peers.HandoffPeers(keep, None if is_replacement else self.first_meeting)
            except (OSError, RuntimeError) as error:
                _link.say("what only this rank has is kept on its own host alone: %s" % error)
        return self.handoff_peers

    def second_copies(self) -> Any:
        """Returns what keeps this rank's in-memory checkpoints on another host as well, if the job has several."""
        if self.second is None:
            self.second = _second_copies.opened(None if self.is_replacement() else self.first_meeting)
        return self.second

    def first_meeting(self) -> Any:
        """Returns the store of the generation in which this process was started, its rank, and all ranks."""
        where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        with self.first_lock:
            if self.first_client is None:  # C++ holds no reference to it
                self.first_client = store_client.Client(*where, FIRST_MEETING_SECONDS)
        part = "taskd/%d" % self.session.generation
        store = self.signed(torch.distributed.PrefixStore(part, self.first_client), part)
        return store, int(os.environ["RANK"]), list(range(int(os.environ["WORLD_SIZE"])))

    def signed(self, store: Any, part: Any, generation: int | None = None) -> Any:
        """Returns taskd's own part of a generation's store, with authentication; default: the newest generation."""
        generation = self.session.generation if generation is None else generation
        return _auth.Store(store, _auth.key_of(_auth.store_of(generation)), part)

    def meet(self, store: Any, order: Any) -> None:
        """Called before all ranks join, on a separate thread."""
        for peers in (self.handoff_peers, self.second):
            if peers is not None:
                peers.meet(store, int(order["rank"]), [int(one["rank"]) for one in order["members"]])

    # Loop.

    def enter(self, loop: Loop, state: Any) -> None:
        self.state_.register(state)
        registry.loop_begins()
        self.late.install()
        counters = accelerate.state()
        if counters is not None:
            self.state_.named.setdefault(accelerate.NAME, counters)
        self.loop = loop
        self.report_sharded()
        self.say_what_is_not_given()
        self.noter.looks_at_buffers()
        if self.noter.unusual is not None:
            self.refuses(self.why_unusual())
        if self.cannot is not None:
            _link.say("recovery in place is off: %s" % self.cannot)

    def leave(self) -> None:
        self.loop = None
        self.kinds = step_signature.StepSignatures()
        self.reducers.leave_loop()
        self.copier.leave_loop()

    def begin_warm_up(self, loop: Loop) -> Any:
        self.warm = warm_up.WarmUp(self, loop)
        return self.warm

    def find(self, name: str, what: Any) -> None:
        if not self.state_.find(name, what):
            return
        self.report_sharded()
        self.say_what_came_late()
        if self.warm is not None:
            self.warm.note(what)
        elif isinstance(what, torch.nn.Module) and self.loop.snapshot.taken is not None:
            self.loop.snapshot.taken.modules_are_found(with_grads=True)
            self.say_what_is_unusual()
        elif self.loop.snapshot.taken is not None:
            self.loop.snapshot.taken.scalers_are_found()

    def note(self) -> Any:
        self.buckets_before, self.buckets = self.buckets or self.buckets_before, []
        self.unfinished.forget()
        self.undo.kept = None
        if self.loop.committed is not None:
            self.undo.is_needed = self.in_window
            self.late.look()
        note = self.noter.note()
        self.say_what_is_unusual()
        return note

    def prove(self, loop: Loop) -> None:
        """Reports the checksum of this rank's state at the start of a step, if it is due on all ranks, or if the step
        before was of a new kind. A kind whose report does not reach the supervisor is new again."""
        is_new_kind = self.kinds.is_new(loop.number)
        if self.kinds.are_too_many():
            why = (
                "the steps of this program call for collectives in more than %d ways, so no rank "
                "is known to be another's replica: restart all ranks"
            )
            self.finds_limit(why % step_signature.KINDS_MAX)
        is_due = _digest.is_due(loop.number, loop.program.first)
        if is_new_kind and not self.session.link.is_greeted:
            self.kinds.is_not_known()
            is_new_kind = False
        if is_new_kind or is_due:
            self.report_digest(loop, is_new_kind)

    def report_digest(self, loop: Loop, is_new_kind: bool = False) -> None:
        if self.digest_of == (self.session.loops, loop.number):
            return
        digest = self.digest(loop)
        if digest is not None:
            self.digest_of = self.session.loops, loop.number
            is_sent = self.session.proved(
                dict(digest, first_of_kind=is_new_kind), is_new_kind or loop.number == loop.program.first
            )
            if is_new_kind and not is_sent:
                self.kinds.is_not_known()

    def digest(self, loop: Loop) -> Any:
        """Returns the checksum of this rank's state, and what else the supervisor has to know of it; None if there is
        none. Without a checksum this rank is no replica of another."""
        try:
            return _digest.report(self, loop)
        except Exception as error:
            if not self.has_no_digest and self.noter.unusual is None:  # `unusual` was reported
                self.has_no_digest = True
                why = "%s: %s" % (type(error).__name__, error)
                _link.say(
                    "no checksum of this rank's state can be computed, so no other rank is "
                    "proven to hold the same: %s" % why
                )
            return None

    def has_passed(self, model: torch.nn.Module, tensors: Sequence[torch.Tensor]) -> None:
        """Called after a forward pass of DDP, with the tensors in its output."""
        if torch.is_grad_enabled():
            self.look_at_hook(model)
            self.kinds.passes_through(model, model.require_backward_grad_sync)
            self.unfinished.begins(model, tensors)

    def begins_pass(self, model: torch.nn.Module) -> None:
        """Called before a forward pass of FSDP."""
        if torch.is_grad_enabled() and fsdp.keeps_all(model):
            self.look_at_hook(model)
            self.kinds.passes_through(model, getattr(model, "_sync_gradients", True))

    def look_at_hook(self, model: torch.nn.Module) -> None:
        hook = reducer.hook_with_state(model) or fsdp.hook_of(model) if self.cannot is None else None
        if hook is not None:
            kind, name = hook
            why = (
                "the communication hook %s of a module of %s may keep a state of its own, which no "
                "step puts back and no other rank has: restart all ranks"
            )
            self.finds_limit(why % (name, kind))

    def backward(self, adds: bool = True) -> None:
        """Called before a backward pass. Without the pass the other ranks cannot complete the step, and with it they
        can. The pass `adds` to gradients, or only returns some."""
        if adds and self.noter.zeroing.begins_pass(self.loop):
            self.carries_gradients()
        self.noter.changed()
        self.loop.keep_forward()

    def ends_backward(self) -> None:
        if self.noter.zeroing.ends_pass():
            self.carries_gradients()

    def steps(self, optimizer: torch.optim.Optimizer) -> None:
        """Called before an optimizer's step."""
        if self.noter.zeroing.steps(optimizer.param_groups):
            self.carries_gradients()

    def issued(self, args: tuple[Any, ...]) -> None:
        """Called for an operation of the step; with its arguments if C++ called it inside backward."""
        loop = self.loop
        if loop.keep is not None and loop.attempt.body_completed is None and self.noter.changed():
            loop.keep_forward()
        if loop.attempt.window == OPEN and not loop.attempt.body_completed:
            self.undo.is_needed = self.in_window = True
        if args is not None and len(self.buckets) < BUCKETS_MAX:
            first = args[0]
            self.buckets.append(sum(one.numel() for one in (first if isinstance(first, (list, tuple)) else [first])))

    def fails_quietly(self) -> None:
        """Called when an operation is aborted whose caller continues as if it had succeeded."""
        self.loop.tainted = True
        if self.loop.attempt.body_completed and not self.reported_after:
            self.reported_after = True
            why = (
                "step %d: an operation behind `with step:` was given up, and has done nothing: "
                "what it was to give belongs inside"
            )
            _link.say(why % self.loop.number)

    def opened(self) -> None:
        """Called when the commit window opens."""
        number, first = self.loop.number, self.loop.program.first
        if number == first:  # unregistered objects were found since the step began
            self.report_digest(self.loop)
        if not self.in_window and self.reducers.is_settled(number):
            self.loop.keep_opened()
        if self.undo.is_needed or _digest.is_due(number, first):
            self.look_ahead_of_window()
        if self.noter.unusual is None:
            self.undo.keep()

    def look_ahead_of_window(self) -> None:
        """Reports a program that changes parameters where no step restores them, before anything has failed. One step
        may do so."""
        note = self.loop.snapshot.taken
        changed = note.changed_parameter() if note is not None else None
        if changed is not None and note.why_not is None:
            note.why_not = self.why_changed(changed)
            self.ahead += 1
            if self.ahead == AHEAD_MAX:
                self.noter.keeps_storages = False  # more than one of them might have to be held
                self.finds_limit(note.why_not)

    def why_changed(self, parameter: Any) -> str:
        found = (
            "%s/%s" % (name, path) for name, what in self.state_.named.items() for path in paths_of(parameter, what)
        )
        name = next(found, "a parameter")
        return "%s was changed ahead of optimizer.step(), and no step puts parameters back; restart all ranks" % name

    def undone(self) -> bool:
        """Undoes the changes of the window. Returns True if that was possible."""
        if not self.undo.take_back():
            return False
        note = self.loop.snapshot.taken
        if note is not None and note.why_not is None:
            note.parameters_are_right()
        return True

    def put_back(self, note: Any, alone: bool = False) -> None:
        """Restores the start of the step. Raises Refused if a parameter has changed and no other rank sends its own, or
        if a step repeated `alone` carries gradients to the next one."""
        if alone and CARRIED in self.reported_sharded:
            raise Refused("%s no rank has of a step that it does by itself; restart all ranks" % CARRIED)
        if not alone and self.loop.attempt.window != TORN:
            if self.ahead >= AHEAD_MAX:
                raise Refused(self.cannot)
            changed = note.changed_parameter()
            if changed is not None or note.why_not is not None:
                raise Refused(note.why_not or self.why_changed(changed))
        self.buckets = []
        self.kinds.forget()
        self.reducers.put_back(self.loop.number)
        note.put_back()

    def buffers(self, note: Any = None) -> dict[Any, tuple[Any, tuple[Any, ...], bytes]]:
        """Returns the buffers of all modules as bytes, by path: as they are now, or as in the snapshot `note`."""
        if note is not None:
            return _buffers.packed(zip(self.noter.paths, (copy for _, copy in note.buffers)))
        return _buffers.packed(self.noter.buffers())

    def hold_buffers(self) -> Any:
        return _buffers.Held(self.state_)

    def put_buffers(self, held: Any) -> None:
        with torch.no_grad():
            for one, copy in held:
                _buffers.put(one, copy)

    def fill_buffers(self, values: Any) -> None:
        _buffers.fill(self.state_.buffers(), values)

    def restore_random(self, data: Any) -> None:
        rng.restore(data)

    # Session.

    def release(self) -> None:
        try:
            self.groups.release()
        finally:
            self.completer.release()  # C++ waits only for this

    def give_up(self) -> None:
        self.release()
        self.transfer.close()
        self.under_way.wait_for_ends(self.groups.release)
        if self.loop.tainted:
            self.unfinished.finish(self.reducers.modules())
            fsdp.leave_passes(self.state_.modules())

    def state(self) -> Any:
        leaves = self.state_.leaves()
        sizes = self.buckets_before if not self.buckets or self.loop.attempt.kind is not WARMING_UP else self.buckets
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

    def state_bytes(self) -> int | None:
        return bytes_of(self.state_.leaves()) if self.noter.unusual is None else None

    def join(self, order: Any, cancelled: Callable[[], bool]) -> dict[str, int]:
        import torch.distributed as dist

        before, is_new = dist.get_world_size(), self.loop.is_new
        answer = self.groups.join(order, cancelled)
        self.session.came_in = True
        self.members = {int(one["rank"]): one.get("pid") for one in order.get("members") or []}
        self.rank = int(order["rank"])
        self.reducers.publish(self.loop.number, is_new)
        loader.World.becomes(before, dist.get_world_size(), dist.get_rank())
        fsdp.look_at_groups(self.state_.modules())
        if is_new and self.loop.keep is not None and self.handoff_peers is not None:
            self.loop.keep.elsewhere = _handoff_peers.kept_of(self.store, self.rank)
        if not is_new:  # a joining rank takes its data position from another rank
            self.loop.streams.share_anew(loader.seat)
        return answer

    def place(self) -> tuple[int | None, int | None]:
        """Returns `(rank, size)` in the world that was joined last."""
        return loader.World.rank, loader.World.size

    def give(self, loop: Loop, order: Any) -> None:
        self.transfer.give(loop, order)

    def take(self, loop: Loop, step: int, ranks: Sequence[int], cancelled: Callable[[], bool]) -> dict[int, int]:
        given = self.transfer.take(loop, step, ranks, cancelled)
        # this rank was torn in this step, and has its own buffers as of the step's start
        if loop.snapshot.step == loop.number and not loop.is_new:
            loop.snapshot.taken.put_back_buffers()
        return given

    def agree(self, order: Any) -> None:
        """Called after all ranks have joined: their buckets must be the same, or their operations would not match."""
        is_new, sizes = self.loop.is_new, order.get("buckets")
        self.reducers.agree(order["step"], is_new)
        own = self.buckets_before or self.buckets
        if sizes and is_new and list(sizes) != list(own):
            raise Refused(
                "the buckets of this rank (%s) are not those of the others (%s); restart all ranks" % (own, sizes)
            )

    def resumed(self) -> None:
        if self.loop.snapshot.taken is not None:
            self.loop.snapshot.taken.parameters_are_right()
        self.reducers.resumed_at = self.loop.number
        self.transfer.close()
        for front in self.groups.fronts():
            front._inner.has_failed = False

    def copy(self, loop: Loop) -> Any:
        """Returns all of this rank's state, for an in-memory checkpoint."""
        return in_memory_checkpoint.of(self, loop)

    def dump(self, loop: Loop, order: Any) -> Any:
        from taskd.torch import emergency_checkpoint

        return emergency_checkpoint.write(self, loop, order)


def paths_of(parameter: torch.Tensor, what: Any) -> list[Any]:
    named = _state.inner_of(what).named_parameters() if isinstance(what, torch.nn.Module) else ()
    return [path for path, one in named if one is parameter]


def bytes_of(leaves: Any) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves.values())
