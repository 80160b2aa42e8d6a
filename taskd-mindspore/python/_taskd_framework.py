"""What sitecustomize.py does not know of MindSpore: when a training step is completed.

A step is a call of an optimizer, or of a cell that trains one (`nn.TrainOneStepCell`, also inside of `Model.train`): of calls
inside of each other the outermost. How many steps lie behind it an optimizer remembers in `global_step`, and so in checkpoints
that have it.

And when the scheduler is about to listen, which takes no listener of another's: the launcher stops to listen then.

It imports nothing of MindSpore before the program does, and must parse on Python 3.6 and later.
"""

import os
from _thread import get_ident

MODULE = "mindspore"  # what a program imports that trains

def start(steps, after_import):
    """Called once, in the rank, before the program starts."""
    inside = set()  # threads that are inside of a step

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
    """The steps that an optimizer remembers, this one included; 0 where it does not, or not in host memory: looking there
    would make the program wait for its device."""
    try:
        from mindspore import context

        if context.get_context("device_target") != "CPU":
            return 0
        return int(getattr(cell, "optimizer", cell).global_step.asnumpy().item())
    except Exception:
        return 0


def hosts(after_import, port):
    """Called once, in every process that may be the scheduler. `port` is _taskd_port.py."""
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
