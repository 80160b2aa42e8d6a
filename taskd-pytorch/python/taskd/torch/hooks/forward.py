"""The forward pass: calls of the outermost module. Modules that it calls are part of it.

A module that is called while gradients are computed, to recompute activations, is not a forward pass, nor is one that
torch only traces. A module inside of a function that torch.compile has compiled is not called at all: if steps pass
without a call, and a function was compiled, the kind is reported as not recorded until a module is called again. (A
compiled module is called, and recorded.)
"""

from __future__ import annotations

import sys
from _thread import get_ident

from taskd import _hooks, _step_recorder
from taskd._kinds import FORWARD as KIND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STEPS_WITHOUT = 3
COMPILED = "the forward pass is inside of a compiled function (torch.compile)"


def prepare(module: Any) -> None:
    """Writes the current `__call__` to the class `Module`. A write to a class marks all classes derived from it, and a
    forked process copies the memory of each at its first write: a millisecond."""
    module.Module.__call__ = module.Module.__call__


def install(module: Any, native: Any) -> None:
    """Hooks `module`, torch.nn.modules.module, whose class `Module` has the one `__call__` of all modules."""
    from taskd.torch.tracing import is_tracing

    hook = _hooks.of(native, KIND)
    watch = Watch(hook)
    call, is_on, open_in = module.Module.__call__, native.is_on, hook.open_in
    in_backward = getattr(sys.modules["torch._C"], "_current_graph_task_id", lambda: -1)

    # Every call of every module reaches one of these two. For a module inside of another, the first does what torch's
    # own has done since 2.1, and takes no longer than without the hook; any other `__call__` is called as it is.
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
    _step_recorder.at_end.append(watch.step)


class Watch:
    """Tracks whether forward passes are seen at all."""

    def __init__(self, hook: Any) -> None:
        self.hook = hook
        self.seen = False
        self.steps_without = 0

    def see(self) -> None:
        self.seen = True
        if self.steps_without >= STEPS_WITHOUT:
            self.steps_without = 0
            self.hook.resume()

    def step(self) -> None:
        """Counts a completed step."""
        self.steps_without = 0 if self.seen or not self.hook.native.is_on(KIND) else self.steps_without + 1
        self.seen = False
        if self.steps_without == STEPS_WITHOUT and something_was_compiled():
            self.hook.pause(COMPILED)


def something_was_compiled() -> Any:
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return counters.get("frames", {}).get("ok", 0) > 0
