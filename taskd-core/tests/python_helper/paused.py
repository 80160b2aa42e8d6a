"""Hooks that need what another profiler may hold. There is none here: these are doubles, and this program is the
profiler."""

from taskd import _hooks
from taskd._native import native

assert _hooks.PROFILER_ACTIVE == "another profiler is active"
resuming, waiting = _hooks.of(native, 16), _hooks.of(native, 17)
for hook in (resuming, waiting):
    hook.end(hook.begin("before"))
    hook.pause(_hooks.PROFILER_ACTIVE)
    assert hook.begin("while it is active") == 0
resuming.resume()
resuming.end(resuming.begin("after"))
