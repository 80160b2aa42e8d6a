"""MindSpore's part of sitecustomize.py: it reports completed training steps.

A step is a call of an optimizer, or of a cell with one (`nn.TrainOneStepCell`, also inside `Model.train`); of nested
calls, only the outermost counts. An optimizer stores its number of steps in `global_step`, which a checkpoint may
contain.

It also has the launcher stop listening before the scheduler listens, since the scheduler cannot take over a listener.

This module imports nothing of MindSpore before the program does, and must parse on Python 3.6 and later.
"""

import os
from _thread import get_ident

MODULE = "mindspore"  # the module that a training program imports


def start(steps, after_import):
    """Counts steps. Called once, in the rank, before the program starts."""
    inside = set()  # threads inside a step

    def count(module, name):
        cls = getattr(module, name)
        call = cls.__call__

        def stepped(self, *args, **kwargs):
            thread = get_ident()
            if thread in inside:
                return call(self, *args, **kwargs)
            inside.add(thread)
            try:
                result = call(self, *args, **kwargs)
            finally:
                inside.discard(thread)
            if steps.is_rank():
                steps.completed_by(self, own_count)
            return result

        cls.__call__ = stepped

    after_import("mindspore.nn.optim.optimizer", lambda module: count(module, "Optimizer"))
    after_import("mindspore.nn.wrap.cell_wrapper", lambda module: count(module, "TrainOneStepCell"))


def own_count(cell):
    """Returns the number of steps in an optimizer's state, this one included; 0 if it has none, or not in host memory:
    reading it from the device would make the program wait."""
    try:
        from mindspore import context  # pyright: ignore[reportMissingImports]

        if context.get_context("device_target") != "CPU":
            return 0
        return int(getattr(cell, "optimizer", cell).global_step.asnumpy().item())
    except Exception:
        return 0


def hosts(after_import, port):
    """Wraps the start of the scheduler. Called once, in every process that may be it. `port` is _taskd_port.py."""
    if os.environ.get("MS_ROLE") != "MS_SCHED":
        return
    port.here()

    def release_ahead_of(module, name):
        begin = getattr(module, name)

        def begin_alone(*args, **kwargs):
            port.release(int(os.environ.get("MS_SCHED_PORT", 0)))
            return begin(*args, **kwargs)

        setattr(module, name, begin_alone)

    after_import("mindspore.communication.management", lambda module: release_ahead_of(module, "init_cluster"))
