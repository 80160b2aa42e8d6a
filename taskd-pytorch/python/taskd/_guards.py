"""Stands at the points of a step at which it can be given up: the forward pass of DDP and FSDP, backward, the step of an optimizer, a
scheduler, a gradient scaler. There a step that is lost raises `StepAborted`, or does nothing where nobody would catch it.

The same places tell which modules and optimizers a program uses. In place only where a supervisor is; without a step loop they
do nothing, and while torch traces neither.

Compiled code goes through them as well. torch's compiler does not look into this package, and what changes a step's state is not
hidden from it (`_torchdynamo_inline`): the graph ends at the guard of an optimizer's step, as it does in torch's own step anyway, and
the next one begins behind it. A pass that is hidden is a part of the graph, and is not given up in its middle.
"""

import functools
import weakref

with_numbers = weakref.WeakSet()  # modules and optimizers that are known to have numbers: to look at all parameters takes long


def install(after_import, session):
    guards = Guards(session)
    after_import("torch.autograd", guards.of_backward)
    after_import("torch.nn.parallel.distributed", guards.of_ddp)
    after_import("torch.distributed.fsdp.fully_sharded_data_parallel", guards.of_fsdp)
    after_import("torch.optim.optimizer", guards.of_optimizers)
    after_import("torch.optim.lr_scheduler", guards.of_schedulers)
    after_import("torch.amp.grad_scaler", guards.of_scalers)


class Guards:
    def __init__(self, session):
        self.session = session

    def of_backward(self, module):
        def before(loop, *_):
            loop.engine.backward()
            return loop.goes_on() or True  # where it is not caught the pass goes on, and counts for nothing

        def before_grad(loop, *_):
            loop.engine.backward(adds=False)
            return loop.goes_on() or True

        def after(loop, *_):
            loop.engine.ends_backward()

        module.backward = self.around(module.backward, before, after)
        module.grad = self.around(module.grad, before_grad)

    def of_ddp(self, module):
        ddp = module.DistributedDataParallel

        def after(loop, output, model, *_):
            loop.engine.has_passed(model, module._find_tensors(output))

        ddp._pre_forward = self.known(self.around(ddp._pre_forward, forward, is_hidden=True))
        ddp._post_forward = self.around(ddp._post_forward, after=after, is_hidden=True)

        builtin = ddp._register_builtin_comm_hook

        def register(model, kind):
            builtin(model, kind)
            self.session.engine.reducers.of(model).builtin.append(kind)

        ddp._register_builtin_comm_hook = functools.wraps(builtin)(register)

    def of_fsdp(self, module):
        fsdp = module.FullyShardedDataParallel

        def before(loop, model, *_):
            if model._is_root is False:  # an inner one's pass is a part of the outer one's
                return True
            loop.engine.begins_pass(model)
            return forward(loop, model)

        fsdp.forward = self.around(fsdp.forward, before, is_hidden=True)

    def known(self, pre_forward):
        """What comes before a forward pass of DDP, of which its reducer's keeper hears wherever it is."""
        from taskd._tracing import is_tracing

        session = self.session

        @functools.wraps(pre_forward)
        def keeping(model, *args, **kwargs):
            if session.engine is not None and session.engine.is_main() and not is_tracing():
                session.engine.reducers.forward(model)
            return pre_forward(model, *args, **kwargs)

        keeping._torchdynamo_inline = pre_forward
        return keeping

    def of_optimizers(self, module):
        wrap = module.Optimizer.profile_hook_step

        def before(loop, optimizer, *_):
            if not find(loop, "optimizer", optimizer):
                return True
            loop.engine.steps(optimizer)
            return loop.opens()

        def profile_hook_step(step):
            return self.around(wrap(step), before)

        module.Optimizer.profile_hook_step = staticmethod(profile_hook_step)
        for kind in kinds_of(module.Optimizer):  # torch wraps a kind's step when the first of it is made: a template has made some
            if getattr(vars(kind).get("step"), "hooked", False):
                kind.step = self.around(kind.step, before)
        zero_grad = module.Optimizer.zero_grad

        def seen(loop, optimizer, *_):
            loop.engine.noter.zeroing.zeroes(optimizer.param_groups)
            return True

        module.Optimizer.zero_grad = self.around(zero_grad, seen)

    def of_schedulers(self, module):
        def before(loop, scheduler, *_):
            of = getattr(scheduler, "optimizer", scheduler)  # a chained one has several, each of which is asked
            return not find(loop, "scheduler", scheduler, of) or loop.opens()

        for one in list(vars(module).values()):
            if isinstance(one, type) and "step" in vars(one) and hasattr(one, "state_dict"):
                one.step = self.around(one.step, before)
                one.step.opens_window = True

    def of_scalers(self, module):
        def before(loop, scaler, *_):
            loop.engine.find("scaler", scaler)
            return loop.opens()

        def before_unscaling(loop, scaler, *_):
            loop.engine.find("scaler", scaler)
            return not loop.tainted or loop.abort()

        module.GradScaler.step = self.around(module.GradScaler.step, before)
        module.GradScaler.update = self.around(module.GradScaler.update, before)
        module.GradScaler.unscale_ = self.around(module.GradScaler.unscale_, before_unscaling)

    def around(self, function, before=None, after=None, is_hidden=False):
        """`function`, which is left out where `before(loop, *args)` says so; `after` is told `(loop, what it gave, *args)`. Where it
        is hidden, torch's compiler sees `function` in its place."""
        from taskd._tracing import is_tracing  # now that the program has imported torch

        session = self.session

        @functools.wraps(function)
        def guarded(*args, **kwargs):
            loop = session.loop
            if loop is None or not loop.in_step or not session.engine.is_main() or is_tracing():
                return function(*args, **kwargs)
            if before is not None and not before(loop, *args):
                return loop.instead(args, kwargs)
            given = function(*args, **kwargs)
            if after is not None:
                after(loop, given, *args)
            return given

        if is_hidden:
            guarded._torchdynamo_inline = function
        return guarded


def forward(loop, model, *_):
    """A forward pass of a whole model begins; it does in any case, where it does not raise."""
    return not find(loop, "model", model) or loop.goes_on() or True


def find(loop, name, what, of=None):
    """The program uses this, which is a part `of` another thing; whether it is something to be recovered. What has no numbers is
    not: torch's fake tensors."""
    is_state = is_real(of or what)
    if is_state:
        loop.engine.find(name, what)
    return is_state


def is_real(what):
    """Whether it has numbers. What has some once is not looked at again."""
    from taskd._tracing import has_numbers

    try:
        if what in with_numbers:
            return True
        if has_numbers(what):
            with_numbers.add(what)
            return True
        return False
    except TypeError:  # a program's own kind, which a set does not take
        return has_numbers(what)


def kinds_of(base):
    """All classes derived from this one."""
    for kind in base.__subclasses__():
        yield kind
        yield from kinds_of(kind)
