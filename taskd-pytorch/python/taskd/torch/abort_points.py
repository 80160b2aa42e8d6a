"""Points at which a step can be aborted: the forward pass of DDP and FSDP, backward, and the step of an optimizer, a
scheduler or a gradient scaler. There an aborted step raises `StepAborted`, or skips the call if no `with step:` would
catch the exception.

The same points detect the modules and optimizers that a program uses. They are installed only if there is a supervisor,
and do nothing outside a step loop or while torch traces.

Compiled code calls them too. torch's compiler does not look into this package, and a point that changes a step's state
is not hidden from it (`_torchdynamo_inline`): the graph ends at the wrapper of an optimizer's step, as it does in
torch's own step anyway, and the next graph begins after it. A hidden pass is part of the graph, and cannot be aborted
in its middle.
"""

from __future__ import annotations

import functools
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    import torch

    from taskd._loop import Loop
    from taskd._session import Session

# modules and optimizers whose parameters are known to have values: a check of all parameters takes long
with_numbers = weakref.WeakSet()


def install(after_import: Callable[[str, Callable[[Any], object]], None], session: Session) -> None:
    guards = Guards(session)
    after_import("torch.autograd", guards.of_backward)
    after_import("torch.nn.parallel.distributed", guards.of_ddp)
    after_import("torch.distributed.fsdp.fully_sharded_data_parallel", guards.of_fsdp)
    after_import("torch.optim.optimizer", guards.of_optimizers)
    after_import("torch.optim.lr_scheduler", guards.of_schedulers)
    after_import("torch.amp.grad_scaler", guards.of_scalers)


class Guards:
    def __init__(self, session: Session) -> None:
        self.session = session

    def of_backward(self, module: Any) -> None:
        def before(loop, *_):
            loop.engine.backward()
            return loop.goes_on() or True  # if nothing catches the exception, the pass runs and does not count

        def before_grad(loop, *_):
            loop.engine.backward(adds=False)
            return loop.goes_on() or True

        def after(loop, *_):
            loop.engine.ends_backward()

        module.backward = self.around(module.backward, before, after)
        module.grad = self.around(module.grad, before_grad)

    def of_ddp(self, module: Any) -> None:
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

    def of_fsdp(self, module: Any) -> None:
        fsdp = module.FullyShardedDataParallel

        def before(loop, model, *_):
            if model._is_root is False:  # the pass of an inner module is part of the outer one's
                return True
            loop.engine.begins_pass(model)
            return forward(loop, model)

        fsdp.forward = self.around(fsdp.forward, before, is_hidden=True)

    def known(self, pre_forward: Any) -> Any:
        """Wraps `pre_forward` of DDP: each forward pass is reported to `engine.reducers`, also outside a step loop."""
        from taskd.torch.tracing import is_tracing

        session = self.session

        @functools.wraps(pre_forward)
        def keeping(model, *args, **kwargs):
            if session.engine is not None and session.engine.is_main() and not is_tracing():
                session.engine.reducers.forward(model)
            return pre_forward(model, *args, **kwargs)

        keeping._torchdynamo_inline = pre_forward  # pyright: ignore[reportAttributeAccessIssue]
        return keeping

    def of_optimizers(self, module: Any) -> None:
        wrap = module.Optimizer.profile_hook_step

        def before(loop, optimizer, *_):
            if not find(loop, "optimizer", optimizer):
                return True
            loop.engine.steps(optimizer)
            return loop.opens()

        def profile_hook_step(step):
            return self.around(wrap(step), before)

        module.Optimizer.profile_hook_step = staticmethod(profile_hook_step)
        # torch wraps the step of a class when its first object is made: a template process has made some
        for kind in kinds_of(module.Optimizer):
            if getattr(vars(kind).get("step"), "hooked", False):
                kind.step = self.around(kind.step, before)
        zero_grad = module.Optimizer.zero_grad

        def seen(loop, optimizer, *_):
            loop.engine.noter.zeroing.zeroes(optimizer.param_groups)
            return True

        module.Optimizer.zero_grad = self.around(zero_grad, seen)

    def of_schedulers(self, module: Any) -> None:
        def before(loop, scheduler, *_):
            of = getattr(scheduler, "optimizer", scheduler)  # a chained scheduler has several, each of which is checked
            return not find(loop, "scheduler", scheduler, of) or loop.opens()

        for one in list(vars(module).values()):
            if isinstance(one, type) and "step" in vars(one) and hasattr(one, "state_dict"):
                one.step = self.around(one.step, before)
                one.step.opens_window = True

    def of_scalers(self, module: Any) -> None:
        def before(loop, scaler, *_):
            loop.engine.find("scaler", scaler)
            return loop.opens()

        def before_unscaling(loop, scaler, *_):
            loop.engine.find("scaler", scaler)
            return not loop.tainted or loop.abort()

        module.GradScaler.step = self.around(module.GradScaler.step, before)
        module.GradScaler.update = self.around(module.GradScaler.update, before)
        module.GradScaler.unscale_ = self.around(module.GradScaler.unscale_, before_unscaling)

    def around(
        self, function: Callable[..., Any], before: Any = None, after: Any = None, is_hidden: bool = False
    ) -> Any:
        """Returns a wrapper that calls `function` unless `before(loop, *args)` is false, and then `after(loop, result,
        *args)`. If `is_hidden`, torch's compiler sees `function` in its place."""
        from taskd.torch.tracing import is_tracing  # now that the program has imported torch

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
            guarded._torchdynamo_inline = function  # pyright: ignore[reportAttributeAccessIssue]
        return guarded


def forward(loop: Loop, model: torch.nn.Module, *_: Any) -> bool:
    """Called before a forward pass of a whole model. Returns True, or raises if the step was aborted."""
    return not find(loop, "model", model) or loop.goes_on() or True


def find(loop: Loop, name: str, what: Any, of: Any = None) -> bool:
    """Registers an object that the program uses, or that is part `of` another object. Returns True if it is to be
    recovered: not if its tensors have no values (torch's fake tensors)."""
    is_state = is_real(of or what)
    if is_state:
        loop.engine.find(name, what)
    return is_state


def is_real(what: Any) -> bool:
    """Returns True if an object's tensors have values. An object that has had values is not checked again."""
    from taskd.torch.tracing import has_numbers

    try:
        if what in with_numbers:
            return True
        if has_numbers(what):
            with_numbers.add(what)
            return True
        return False
    except TypeError:  # a type of the program's that cannot be in a set
        return has_numbers(what)


def kinds_of(base: Any) -> Any:
    """Yields all classes derived from `base`."""
    for kind in base.__subclasses__():
        yield kind
        yield from kinds_of(kind)
