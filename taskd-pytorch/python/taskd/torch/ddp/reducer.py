"""DDP's reducers, if the aborted step is one of the first: the collectives that a rank calls in it depend on its
progress.

In the first step a reducer learns the order of gradients. In the second one's forward pass rank 0 sends its order to
all others, in operations of all ranks, and each rank rebuilds its buckets. A rank that had progressed further than
others in an aborted step would call other operations in the retry, and wait for ever. So

  * a reducer that has learned anything in the retried step is rebuilt, as `DistributedDataParallel.__setstate__` does;
  * ranks that have received the order leave it in the generation's store, for ranks that have not;
  * a replacement, which has done both steps by itself, follows the other ranks: its reducers are rebuilt as well, or
    the others adopt its order, or its order has to equal theirs.

The module never changes what a step computes: the order of the first time gives the buckets of the first time.
"""

from __future__ import annotations

import hashlib
import json
import types
import weakref

import torch

from taskd._loop import CATCHING_UP, WARMING_UP
from taskd._session import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Sequence

    from taskd.torch.engine import Engine

OF_MIXED_PRECISION = "_AllreduceUpcastHookState"  # torch's own state, which keeps nothing between steps
BEFORE_ALL = -1  # step number of a reducer that began to learn before this loop


class Learner:
    """State of the reducer of one DDP module."""

    def __init__(self, model: Any, number: Any) -> None:
        self.model, self.number = weakref.ref(model), number
        self.since = None  # the step in which it began to learn
        self.received = []  # tensors of each operation of the current forward pass that sends the order
        self.own = []  # for each, the values of the tensors before
        self.order = None  # the received order, once buckets were built from it
        self.made_at = None  # the step in which that was
        self.builtin = []  # built-in hooks, which DDP does not remember itself

    def is_made(self) -> Any:
        model = self.model()
        return model is not None and model._has_rebuilt_buckets

    def may_learn(self) -> Any:
        model = self.model()
        return model is not None and (model.static_graph or not model.find_unused_parameters)

    def has_begun_in(self, step: int) -> bool:
        return self.since is not None and self.since >= step

    def has_counted_before(self, step: int) -> torch.Tensor | bool:
        """Returns true if this is the second step of a static graph: in the first one it has counted gradients, in this
        one it learns their order."""
        model = self.model()
        return (
            model is not None
            and model.static_graph
            and self.since is not None
            and self.since + 1 == step
            and not self.is_made()
        )

    def was_made_since(self, step: int) -> bool:
        return self.made_at is not None and self.made_at >= step

    def look(self) -> None:
        """Saves the received order, if buckets were built from it since."""
        if self.received and self.is_made():
            self.order = [[one.tolist() for one in tensors] for tensors in self.received]
        self.received, self.own = [], []

    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.order).encode()).hexdigest()

    def renew(self) -> None:
        """Resets the reducer to its state when the module was made."""
        import torch.distributed as dist

        model = self.model()
        if model._delay_all_reduce_params:
            raise Refused(
                "the reducer of a DDP module cannot be made anew with all that was set for it; restart all ranks"
            )
        parameters, sparse = model._build_params_for_reducer()
        model._ddp_init_helper(
            parameters, sparse, model._build_debug_param_to_name_mapping(parameters), model.static_graph
        )
        if model.static_graph:
            model._static_graph_delay_allreduce_enqueued = False
            model.reducer._set_static_graph()
            model.logger._set_static_graph()
        for hook, state in model._comm_hooks:
            dist._register_comm_hook(model.reducer, state, hook)
        for kind in self.builtin:
            dist._register_builtin_comm_hook(model.reducer, kind)
        if model.mixed_precision is not None:
            model.reducer._set_mixed_precision_param_dtype(model.mixed_precision.param_dtype)
        model._has_rebuilt_buckets = False
        self.since, self.received, self.own, self.order, self.made_at = None, [], [], None, None


CONSTANTS = (types.BuiltinFunctionType, type(None), bool, int, float, str, type, torch.dtype)
DEPTH_MAX = 8


def hook_with_state(model: Any) -> Any:
    """Returns `("DDP", name)` of a communication hook of this DDP module that may keep state (PowerSGD's errors, a
    count of steps); None if there is none. A hook without state is a function, with a process group or None as its
    state."""
    for hook, state in getattr(model, "_comm_hooks", ()):
        is_torchs_own = type(state).__name__ == OF_MIXED_PRECISION
        keeps_none = isinstance(state, (type(None), torch.distributed.ProcessGroup)) and is_plain(hook)
        if not is_torchs_own and not keeps_none:
            return "DDP", getattr(hook, "__name__", type(hook).__name__)
    return None


def is_plain(hook: Any, depth: int = 0) -> bool:
    """Returns true if the hook is immutable, or a function that holds only such functions, as torch's wrappers of hooks
    do, and immutable objects."""
    if not isinstance(hook, types.FunctionType) or depth > DEPTH_MAX:
        return isinstance(hook, CONSTANTS) or isinstance(hook, torch.distributed.ProcessGroup)
    return all(is_plain(value_in(cell), depth + 1) for cell in hook.__closure__ or ())


def value_in(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the cell is empty
        return None


class Reducers:
    """The reducers of the process, in the order of their modules' first use, which is the same on all ranks."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.learners = []
        self.current = None
        self.resumed_at = None  # the step with which this generation began

    def of(self, model: Any) -> Any:
        for one in self.learners:
            if one.model() is model:
                return one
        self.learners.append(Learner(model, len(self.learners)))
        return self.learners[-1]

    def modules(self) -> Any:
        return [model for model in (one.model() for one in self.learners) if model is not None]

    # Forward pass.

    def forward(self, model: Any) -> None:
        """Registers the begin of a forward pass, in any part of the program."""
        if not torch.is_grad_enabled() or not hasattr(model, "_has_rebuilt_buckets"):
            return
        loop = self.engine.loop
        self.current = one = self.of(model)
        one.look()
        if one.since is None and model.require_backward_grad_sync:
            in_step = loop is not None and loop.in_step and loop.phase is not WARMING_UP
            one.since = loop.number if in_step else BEFORE_ALL

    def save_sent(self, tensors: Sequence[torch.Tensor]) -> None:
        """Saves an operation that sends the order; its tensors hold this rank's own order, or one sent before."""
        self.current.received.append(tensors)
        self.current.own.append([one.clone() for one in tensors])
        self.current.made_at = self.engine.loop.number

    def restore_own(self, tensors: Sequence[torch.Tensor]) -> None:
        """Restores this rank's own order after the operation was aborted. The others have the same order, or `agree`
        reports that they do not."""
        for received, own in zip(self.current.received, self.current.own):
            if received is tensors:
                for tensor, value in zip(received, own):
                    tensor.copy_(value)

    def answers(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Fills in the order if other ranks have received it before; returns true if they have."""
        one, loop = self.current, self.engine.loop
        if (
            self.engine.store is None
            or loop.attempt.kind is WARMING_UP
            or loop.attempt.kind is not CATCHING_UP
            and loop.number != self.resumed_at
        ):
            return False
        known = self.left_by_others(one)
        if known is None:
            return False
        values = known[len(one.received)]
        if [len(value) for value in values] != [tensor.numel() for tensor in tensors]:
            raise Refused(
                "the buckets of DDP module %d are of other parameters on other ranks; restart all ranks" % one.number
            )
        for tensor, value in zip(tensors, values):
            tensor.copy_(torch.tensor(value, dtype=tensor.dtype))
        return True

    def left_by_others(self, one: Any) -> Any:
        for key in ("order", "newcomer"):
            left = self.published(key, one)
            if left is not None:
                return json.loads(left)
        return None

    # Recovery.

    def put_back(self, step: int) -> None:
        """Discards what was learned in this step."""
        for one in self.learners:
            if one.has_begun_in(step) and one.may_learn():
                one.renew()
            elif one.has_counted_before(step):
                one.model().reducer._reset_state()  # resets the order; the counts stay

    def are_made(self) -> bool:
        """Returns true if all reducers have their final buckets."""
        return all(one.is_made() for one in self.learners if one.may_learn())

    def is_settled(self, step: int) -> bool:
        """Returns true if this step has the buckets of the step before."""
        return self.are_made() and not any(one.was_made_since(step) for one in self.learners if one.may_learn())

    def publish(self, step: int, is_new: bool) -> None:
        """Publishes what these reducers know for the other ranks of a world; all have joined before one continues."""
        for one in self.learners:
            one.look()
            if one.has_begun_in(step):
                continue  # it is discarded, or other ranks have a better one
            if one.has_counted_before(step):
                self.leave("counted", one, "")
            elif is_new:
                if one.is_made():
                    self.leave("newcomer", one, json.dumps(one.order))
            elif one.is_made():
                self.leave("made", one, one.digest())
                if one.order is not None and one.was_made_since(step - 1):
                    self.leave("order", one, json.dumps(one.order))
            elif one.since is not None and one.since < step:
                self.leave("due", one, "")

    def agree(self, step: int, is_new: bool) -> None:
        """Checks that all ranks have the same buckets, or will have, in a world that all have joined."""
        for one in self.learners:
            one.look()  # this rank may have done the step before by itself
            if is_new and self.published("counted", one) is not None:
                raise Refused(
                    "a static graph of DDP is in its second step, which a replacement cannot enter; restart all ranks"
                )
            if not one.is_made() or one.has_begun_in(step):
                continue
            made = self.published("made", one)
            if made is None and is_new and self.published("due", one) is None:
                one.renew()
            elif made is None and is_new:
                self.compare(one, hashlib.sha256(self.published("newcomer", one)).hexdigest().encode())
            elif is_new or one.was_made_since(step - 1):
                self.compare(one, made)

    def compare(self, one: Any, theirs: Any) -> None:
        if theirs != one.digest().encode():
            raise Refused(
                "the buckets of DDP module %d are others than those of the other ranks; restart all ranks" % one.number
            )

    def leave(self, key: Any, one: Any, text: str) -> None:
        self.engine.store.set("taskd/ddp/%s/%d" % (key, one.number), text)

    def published(self, key: Any, one: Any) -> Any:
        key = "taskd/ddp/%s/%d" % (key, one.number)
        return self.engine.store.get(key) if self.engine.store.check([key]) else None

    def leave_loop(self) -> None:
        """Drops step numbers: the steps of another loop may have the same ones."""
        for one in self.learners:
            one.since = one.since if one.since is None else BEFORE_ALL
            one.made_at = None
