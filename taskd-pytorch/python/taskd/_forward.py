"""The forward pass: calls of the outermost module. Modules that it calls are part of it.

A module that is called while gradients are computed, to compute activations again, is no forward pass, nor is one that torch only
traces. A module inside of a
function that torch.compile has compiled is not called at all: where steps go by without one, and something was compiled, the
kind is reported as not recorded until a module is called again. (A compiled module is called, and recorded.)
"""

import sys
from _thread import get_ident

from taskd import _hooks, _steps
from taskd._kinds import FORWARD as KIND

STEPS_WITHOUT = 3
COMPILED = "the forward pass is inside of a compiled function (torch.compile)"


def prepare(module):
    """Writes to the class what it has. Writing to a class marks all that are derived from it, and a process that was forked copies the
    memory of each when it does so for the first time: a millisecond."""
    module.Module.__call__ = module.Module.__call__


def install(module, native):
    """`module` is torch.nn.modules.module, in which a class `Module` has the one `__call__` of all modules."""
    from taskd._tracing import is_tracing

    hook = _hooks.of(native, KIND)
    watch = Watch(hook)
    call, is_on, open_in = module.Module.__call__, native.is_on, hook.open_in
    in_backward = getattr(sys.modules["torch._C"], "_current_graph_task_id", lambda: -1)

    # Every call of every module comes to one of these two. Since 2.1 torch's own does what the first one does for a module
    # inside of another, which then takes no longer than without us; any other is called as it is.
    def in_place(self, *args, **kwargs):
        if get_ident() in open_in or not is_on(KIND):
            return (self._compiled_call_impl or self._call_impl)(*args, **kwargs)
        return outermost(self, args, kwargs)

    def around(self, *args, **kwargs):
        if get_ident() in open_in or not is_on(KIND):
            return call(self, *args, **kwargs)
        return outermost(self, args, kwargs)

    def outermost(self, args, kwargs):
        if in_backward() != -1 or is_tracing():
            return call(self, *args, **kwargs)
        thread = get_ident()
        watch.see()
        range_ = hook.begin(type(self).__name__)
        try:
            open_in.add(thread)
            return call(self, *args, **kwargs)
        finally:
            open_in.discard(thread)
            hook.end(range_)

    is_known = call.__code__.co_names == ("_compiled_call_impl", "_call_impl")
    module.Module.__call__ = _hooks.in_place_of(call, in_place if is_known else around)
    _steps.at_end.append(watch.step)


class Watch:
    """Whether forward passes are seen at all."""

    def __init__(self, hook):
        self.hook = hook
        self.seen = False
        self.steps_without = 0

    def see(self):
        self.seen = True
        if self.steps_without >= STEPS_WITHOUT:
            self.steps_without = 0
            self.hook.resume()

    def step(self):
        """A step was completed."""
        self.steps_without = 0 if self.seen or not self.hook.native.is_on(KIND) else self.steps_without + 1
        self.seen = False
        if self.steps_without == STEPS_WITHOUT and something_was_compiled():
            self.hook.pause(COMPILED)


def something_was_compiled():
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return counters.get("frames", {}).get("ok", 0) > 0
