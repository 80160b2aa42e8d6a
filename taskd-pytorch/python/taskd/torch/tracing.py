"""Detection of calls that torch only traces: to compile, export or transform them. Such calls are no part of the
program's steps, their tensors have no values, and hooks ignore them.

The state of this thread counts. `torch.compiler.is_compiling` holds for the process, in which another thread may train.
Modes in which a program inspects what it really computes (FlopCounterMode) are not tracing.
"""

from __future__ import annotations

import ctypes
import sys

import torch
from torch import _C

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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


# Forms of a gate in `_taskd.prepare_operations`: a Python function; C++ functions that return a count, a reference to a
# `std::shared_ptr`, a reference to a `std::vector`; a word in memory; a dictionary's entry.
CALLED, COUNT, POINTER, VECTOR, WORD, ITEM = range(6)
# torch's C++ functions behind the three of Python above: a call of those takes up to ten microseconds when nothing of
# pybind11 is in the processor's caches, a call of these less than one. A function's type is not part of its symbol:
# they are used in the versions of torch whose headers declare these types.
CPP = {
    "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv": COUNT,
    "_ZN2at9functorch20getDynamicLayerStackEv": VECTOR,
    "_ZN5torch3jit6tracer15getTracingStateEv": POINTER,
}
CPP_SINCE, CPP_UNTIL = (2, 1), (2, 15)


fx_was_used = ctypes.c_uint64()  # not 0 once torch.fx has traced in any thread


def gates() -> tuple[Any, ...]:
    """Returns what native code asks in place of `is_tracing`: in any of these states it asks `is_tracing` itself."""
    of_torch = cpp_gates() or ((CALLED, modes_count), (CALLED, transform), (CALLED, graph_of_jit))
    return (*of_torch, fx_gate(sys.modules.get("torch.fx._symbolic_trace")))


def fx_gate(fx: Any) -> tuple[Any, ...]:
    if hasattr(fx, "_is_fx_tracing_flag"):  # an older torch
        return ITEM, vars(fx), "_is_fx_tracing_flag"
    set_is_tracing = getattr(fx, "_set_is_fx_tracing", None)
    if set_is_tracing is None or not hasattr(fx, "_is_fx_tracing_tls"):
        return CALLED, lambda: is_fx_tracing()

    # Data of a thread takes four microseconds to find when it is in no cache; most programs never trace with torch.fx.
    def _set_is_fx_tracing(value):
        if value:
            fx_was_used.value = 1
        return set_is_tracing(value)

    if not hasattr(set_is_tracing, "_taskd"):
        _set_is_fx_tracing._taskd = True
        fx._set_is_fx_tracing = _set_is_fx_tracing
    return WORD, ctypes.addressof(fx_was_used)


def is_known_version() -> bool:
    """Returns true if this is a torch whose C++ declarations are known to be those that this package uses."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2] if part.isdigit())
    return CPP_SINCE <= version <= CPP_UNTIL and sys.platform == "linux"


def cpp_gates() -> tuple[Any, ...]:
    """Returns the gates of torch's C++ functions; none if this torch may have other ones."""
    if not is_known_version():
        return ()
    try:
        library = ctypes.CDLL(torch._C.__file__)  # loaded already, with all libraries that it needs
        return tuple((form, ctypes.cast(getattr(library, name), ctypes.c_void_p).value) for name, form in CPP.items())
    except (AttributeError, OSError):
        return ()


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
