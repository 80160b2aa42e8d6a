"""Training steps: from the end of one optimizer step to the end of the next.

Steps are counted where the lifeline page counts them (`Steps` in sitecustomize.py), and have the same numbers: a step
that accumulates gradients over several batches is one, and of several optimizers the one that steps most counts. The first
step begins with the first batch or forward pass that is recorded, so what a program does to set itself up is no step's; it
has number 1, whatever number a resumed optimizer then goes on with.

What only the program knows it has to mark: steps of an optimizer that the framework does not know, and those that a gradient
scaler skips. Once it marks a step itself (`taskd.range_start("step 7")`, or a vendor's function of that kind), its own marks
are the steps. The step that was under way then has no end.
"""

from taskd import _hooks
from taskd._kinds import STEP as KIND

at_begin = []  # what is to be called when an optimizer begins a step: backward is over then
at_end = []  # what is to be called at the end of every step of an optimizer


class Steps:
    """The steps that are taken from the optimizers."""

    def __init__(self, native):
        self.native = native
        self.range = 0
        self.is_marked = False
        native.hooked(KIND)
        _hooks.hooks[KIND] = self
        _hooks.at_first.append(self.begin_first)

    def begin_first(self):
        if not self.is_marked and not self.range:
            self.range = self.native.begin_step(1)

    def completed(self, number):
        """An optimizer has completed this step."""
        try:
            if not self.is_marked:
                self.native.end(self.range)
                self.range = self.native.begin_step(number + 1)
            for then in at_end:
                then()
        except Exception as error:
            self.stop()
            _hooks.failed(self.native, KIND, error)

    def stop(self):
        """The program marks its steps itself."""
        self.is_marked = True
