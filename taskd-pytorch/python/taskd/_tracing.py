"""Whether torch only traces what a thread calls: to compile, to export, to transform it. Nothing of that is a step of the program's,
its tensors are no numbers, and hooks leave it alone.

It asks for what holds for this thread. `torch.compiler.is_compiling` holds for the process, in which another thread may train. Modes
in which a program looks at what it really computes (FlopCounterMode) are none of these.
"""

import sys

from torch import _C

TRACERS = {"FakeTensorMode", "ProxyTorchDispatchMode", "FunctionalTensorMode"}
modes_count = getattr(_C, "_len_torch_dispatch_stack", int)  # `int()` is 0
mode_at = getattr(_C, "_get_dispatch_stack_at", None)
transform = getattr(getattr(_C, "_functorch", None), "peek_interpreter_stack", lambda: None)  # of torch.func, the innermost
graph_of_jit = getattr(_C, "_get_tracing_state", lambda: None)


def is_tracing():
    """Whether this thread compiles, exports, traces, or is inside of a functional transform. Every operation of a group asks."""
    if modes_count() and any(traces(mode_at(at)) for at in range(modes_count())):
        return True
    return transform() is not None or graph_of_jit() is not None or is_fx_tracing()


def is_fx_tracing():
    """Whether torch.fx does. In an older torch it says so of the whole process."""
    global is_fx_tracing
    fx = sys.modules.get("torch.fx._symbolic_trace")
    if fx is None:
        return False
    is_fx_tracing = asker(fx)  # from now on
    return is_fx_tracing()


def asker(fx):
    of_thread = getattr(fx, "_is_fx_tracing_tls", None)
    if of_thread is not None:
        # Not by torch's own function: that raises and catches an AttributeError where nothing is traced, for half a microsecond.
        return lambda: of_thread.__dict__.get("flag", False)
    return getattr(fx, "_get_is_fx_tracing", None) or (lambda: getattr(fx, "_is_fx_tracing_flag", False))


def traces(mode):
    return any(kind.__name__ in TRACERS for kind in type(mode).__mro__)


def is_made_up(tensor):
    """Whether a tensor has no numbers: a fake one, or one of torch's meta device."""
    return tensor.device.type == "meta" or any(kind.__name__ == "FakeTensor" for kind in type(tensor).__mro__)


def has_numbers(what):
    """Whether all parameters of a module or an optimizer are real."""
    if hasattr(what, "param_groups"):
        return not any(is_made_up(one) for group in what.param_groups for one in group["params"])
    return not any(is_made_up(one) for one in what.parameters()) if hasattr(what, "parameters") else True
