"""Finds out from the call stack if an optimizer, a scheduler or a scaler has called the step loop."""

import sys


def is_in_optimizer():
    """Returns true if an optimizer's `step` is among the callers (LBFGS calls a closure several times)."""
    return any(
        frame.f_code.co_name == "step" and hasattr(frame.f_locals.get("self"), "param_groups") for frame in callers()
    )


def is_in_another():
    """Returns true if the `step` of an optimizer, scheduler or scaler has called that of another one, as a scaler's
    step calls its optimizer's."""
    return (
        sum(
            frame.f_code.co_name == "guarded" and frame.f_globals.get("__name__") == "taskd.torch.abort_points"
            for frame in callers()
        )
        > 1
    )


def callers():
    frame = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back
