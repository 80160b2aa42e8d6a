"""Detection of calls that torch only traces: to compile, export or transform them. Such calls are no part of the
program's steps, their tensors have no values, and hooks ignore them.

The state of this thread counts. `torch.compiler.is_compiling` holds for the process, in which another thread may train.
Modes in which a program inspects what it really computes (FlopCounterMode) are not tracing.
"""

from __future__ import annotations

import sys

from torch import _C

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import torch

TRACERS = {"FakeTensorMode", "ProxyTorchDispatchMode", "FunctionalTensorMode"}
modes_count = getattr(_C, "_len_torch_dispatch_stack", int)  # `int()` is 0
mode_at = getattr(_C, "_get_dispatch_stack_at", None)
# the innermost transform of torch.func
transform = getattr(getattr(_C, "_functorch", None), "peek_interpreter_stack", lambda: None)
graph_of_jit = getattr(_C, "_get_tracing_state", lambda: None)


def is_tracing() -> Any:
    """Returns True if this thread compiles, exports, traces, or is inside a functional transform. Called for every
    operation of a group."""
    if modes_count() and any(traces(mode_at(at)) for at in range(modes_count())):
        return True
    return transform() is not None or graph_of_jit() is not None or is_fx_tracing()


def is_fx_tracing() -> bool:  # noqa: F811  (it replaces itself once torch.fx is imported)
    """Returns True if torch.fx traces in this thread; with an older torch, in any thread of the process."""
    global is_fx_tracing
    fx = sys.modules.get("torch.fx._symbolic_trace")
    if fx is None:
        return False
    is_fx_tracing = asker(fx)  # from now on
    return is_fx_tracing()


def asker(fx: Any) -> Any:
    of_thread = getattr(fx, "_is_fx_tracing_tls", None)
    if of_thread is not None:
        # torch's own function raises and catches an AttributeError if nothing is traced, which takes half a
        # microsecond.
        return lambda: of_thread.__dict__.get("flag", False)
    return getattr(fx, "_get_is_fx_tracing", None) or (lambda: getattr(fx, "_is_fx_tracing_flag", False))


def traces(mode: Any) -> bool:
    return any(kind.__name__ in TRACERS for kind in type(mode).__mro__)


def is_made_up(tensor: torch.Tensor) -> bool:
    """Returns True if a tensor has no values: a fake one, or one of torch's meta device."""
    return tensor.device.type == "meta" or any(kind.__name__ == "FakeTensor" for kind in type(tensor).__mro__)


def has_numbers(what: Any) -> bool:
    """Returns True if all parameters of a module or an optimizer have values."""
    if hasattr(what, "param_groups"):
        return not any(is_made_up(one) for group in what.param_groups for one in group["params"])
    return not any(is_made_up(one) for one in what.parameters()) if hasattr(what, "parameters") else True
