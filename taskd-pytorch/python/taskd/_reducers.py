"""DDP's reducers, where the step that is given up is one of the first: what ranks call for in it depends on how far each has come.

In the first step a reducer learns in which order gradients come. In the second one's forward pass rank 0 tells all others of its
order, in operations of all ranks, and each makes its buckets anew. Who had come further than others in a step that was given
up would call for other operations when it is done again, and wait for ever. So

  * a reducer that has learned anything in the step that is done again is made anew, as `DistributedDataParallel.__setstate__` does;
  * what was told of the order is left at the generation's store by those who have heard it, for those who have not;
  * a newcomer, which has been through both steps by itself, goes by what the others are: its reducers are made anew as well, or
    its order becomes the others', or has to be theirs.

It never changes what a step computes: with the order of the first time come the buckets of the first time.
"""

import hashlib
import json
import types
import weakref

import torch

from taskd._loop import CATCHING_UP, WARMING
from taskd._session import Refused

OF_MIXED_PRECISION = "_AllreduceUpcastHookState"  # torch's own, which keeps nothing from step to step
BEFORE_ALL = -1  # in place of the step in which a reducer began to learn: before this loop


class Learner:
    """What is known of the reducer of one DDP module."""

    def __init__(self, model, number):
        self.model, self.number = weakref.ref(model), number
        self.since = None  # the step in which it began to learn
        self.heard = []  # of the forward pass under way: the tensors of each operation that tells of the order
        self.own = []  # beside each, what they were before
        self.order = None  # as it was told, once buckets were made by it
        self.made_at = None  # in which step that was
        self.builtin = []  # hooks of DDP's own kind, which it does not remember itself

    def is_made(self):
        model = self.model()
        return model is not None and model._has_rebuilt_buckets

    def may_learn(self):
        model = self.model()
        return model is not None and (model.static_graph or not model.find_unused_parameters)

    def has_begun_in(self, step):
        return self.since is not None and self.since >= step

    def has_counted_before(self, step):
        """Whether this is the second step of a static graph: in the first one it has counted gradients, in this one it learns their
        order."""
        model = self.model()
        return model is not None and model.static_graph and self.since is not None and self.since + 1 == step and not self.is_made()

    def was_made_since(self, step):
        return self.made_at is not None and self.made_at >= step

    def look(self):
        """Takes what was heard, if buckets were made by it since."""
        if self.heard and self.is_made():
            self.order = [[one.tolist() for one in tensors] for tensors in self.heard]
        self.heard, self.own = [], []

    def digest(self):
        return hashlib.sha256(json.dumps(self.order).encode()).hexdigest()

    def renew(self):
        """All is as it was when the module was made."""
        import torch.distributed as dist

        model = self.model()
        if model._delay_all_reduce_params:
            raise Refused("the reducer of a DDP module cannot be made anew with all that was set for it; restart all ranks")
        parameters, sparse = model._build_params_for_reducer()
        model._ddp_init_helper(parameters, sparse, model._build_debug_param_to_name_mapping(parameters), model.static_graph)
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
        self.since, self.heard, self.own, self.order, self.made_at = None, [], [], None, None


CONSTANTS = (types.BuiltinFunctionType, type(None), bool, int, float, str, type, torch.dtype)
DEPTH_MAX = 8


def hook_with_state(model):
    """`("DDP", name)` of a communication hook of this DDP module that may keep a state of its own (PowerSGD's errors, a count of
    steps); None where there is none. Hooks that keep nothing are functions, and have a process group for their state, or nothing."""
    for hook, state in getattr(model, "_comm_hooks", ()):
        is_torchs_own = type(state).__name__ == OF_MIXED_PRECISION
        keeps_none = isinstance(state, (type(None), torch.distributed.ProcessGroup)) and is_plain(hook)
        if not is_torchs_own and not keeps_none:
            return "DDP", getattr(hook, "__name__", type(hook).__name__)
    return None


def is_plain(hook, depth=0):
    """Whether it is a function that holds nothing but such functions, as torch's wrappers of hooks do, and what cannot be changed."""
    if not isinstance(hook, types.FunctionType) or depth > DEPTH_MAX:
        return isinstance(hook, CONSTANTS) or isinstance(hook, torch.distributed.ProcessGroup)
    return all(is_plain(value_in(cell), depth + 1) for cell in hook.__closure__ or ())


def value_in(cell):
    try:
        return cell.cell_contents
    except ValueError:  # it has none yet
        return None


class Reducers:
    """Those of the process, in the order in which their modules are first used, which is the same on all ranks."""

    def __init__(self, engine):
        self.engine = engine
        self.learners = []
        self.current = None
        self.resumed_at = None  # the step with which this generation began

    def of(self, model):
        for one in self.learners:
            if one.model() is model:
                return one
        self.learners.append(Learner(model, len(self.learners)))
        return self.learners[-1]

    def modules(self):
        return [model for model in (one.model() for one in self.learners) if model is not None]

    # Of a forward pass.

    def forward(self, model):
        """One begins, in whatever part of the program."""
        if not torch.is_grad_enabled() or not hasattr(model, "_has_rebuilt_buckets"):
            return
        loop = self.engine.loop
        self.current = one = self.of(model)
        one.look()
        if one.since is None and model.require_backward_grad_sync:
            in_step = loop is not None and loop.in_step and loop.kind != WARMING
            one.since = loop.number if in_step else BEFORE_ALL

    def hears(self, tensors):
        """An operation that tells of the order is called for; what is there now is this rank's own, or was told before."""
        self.current.heard.append(tensors)
        self.current.own.append([one.clone() for one in tensors])
        self.current.made_at = self.engine.loop.number

    def hears_nothing(self, tensors):
        """It was given up, and the reducer goes on: with what it has learned itself, which is what the others have, or `agree` says
        that it is not."""
        for heard, own in zip(self.current.heard, self.current.own):
            if heard is tensors:
                for tensor, value in zip(heard, own):
                    tensor.copy_(value)

    def answers(self, tensors):
        """Fills in what others were told when they have heard it before; whether they have."""
        one, loop = self.current, self.engine.loop
        if self.engine.store is None or loop.kind == WARMING or loop.kind != CATCHING_UP and loop.number != self.resumed_at:
            return False
        known = self.left_by_others(one)
        if known is None:
            return False
        values = known[len(one.heard)]
        if [len(value) for value in values] != [tensor.numel() for tensor in tensors]:
            raise Refused("the buckets of DDP module %d are of other parameters on other ranks; restart all ranks" % one.number)
        for tensor, value in zip(tensors, values):
            tensor.copy_(torch.tensor(value, dtype=tensor.dtype))
        return True

    def left_by_others(self, one):
        for key in ("order", "newcomer"):
            left = self.told(key, one)
            if left is not None:
                return json.loads(left)
        return None

    # Of a recovery.

    def put_back(self, step):
        """What was learned in this step is forgotten."""
        for one in self.learners:
            if one.has_begun_in(step) and one.may_learn():
                one.renew()
            elif one.has_counted_before(step):
                one.model().reducer._reset_state()  # the order; it goes by what it has counted

    def are_made(self):
        """Whether all have the buckets that they will keep."""
        return all(one.is_made() for one in self.learners if one.may_learn())

    def is_settled(self, step):
        """Whether the buckets of the step before are those of this one."""
        return self.are_made() and not any(one.was_made_since(step) for one in self.learners if one.may_learn())

    def tell(self, step, is_new):
        """Leaves for the other ranks of a world what these know; all have joined before one of them goes on."""
        for one in self.learners:
            one.look()
            if one.has_begun_in(step):
                continue  # it is forgotten, or others know better
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

    def agree(self, step, is_new):
        """In a world that all have joined: whether all have the same buckets, or will have."""
        for one in self.learners:
            one.look()  # it may have done the step before by itself
            if is_new and self.told("counted", one) is not None:
                raise Refused("a static graph of DDP is in its second step, which a newcomer cannot come into; restart all ranks")
            if not one.is_made() or one.has_begun_in(step):
                continue
            made = self.told("made", one)
            if made is None and is_new and self.told("due", one) is None:
                one.renew()
            elif made is None and is_new:
                self.compare(one, hashlib.sha256(self.told("newcomer", one)).hexdigest().encode())
            elif is_new or one.was_made_since(step - 1):
                self.compare(one, made)

    def compare(self, one, theirs):
        if theirs != one.digest().encode():
            raise Refused("the buckets of DDP module %d are others than those of the other ranks; restart all ranks" % one.number)

    def leave(self, key, one, text):
        self.engine.store.set("taskd/ddp/%s/%d" % (key, one.number), text)

    def told(self, key, one):
        key = "taskd/ddp/%s/%d" % (key, one.number)
        return self.engine.store.get(key) if self.engine.store.check([key]) else None

    def leave_loop(self):
        """The steps of another loop may have the same numbers."""
        for one in self.learners:
            one.since = one.since if one.since is None else BEFORE_ALL
            one.made_at = None
