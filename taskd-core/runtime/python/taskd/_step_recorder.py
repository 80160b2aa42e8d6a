"""Records training steps: from the end of one optimizer step to the end of the next.

The steps and their numbers are those of the lifeline page (`Steps` in sitecustomize.py): a step that accumulates
gradients over several batches is one step, and of several optimizers the one that steps most counts. The first step
begins with the first recorded batch or forward pass, so the program's setup belongs to no step. It has the number 1,
even if a resumed optimizer continues with another number.

The program has to mark steps that only it knows: those of an optimizer that the framework does not know, and those that
a gradient scaler skips. Once it marks a step itself (`taskd.range_start("step 7")`, or a vendor's function of that
kind), only its marks are recorded as steps. The step in progress then has no end.
"""

from taskd import _hooks
from taskd._kinds import STEP as KIND

at_begin = []  # functions to call when an optimizer begins a step, after the backward pass
at_end = []  # functions to call at the end of every optimizer step


class Steps:
    """Records the steps of the optimizers."""

    def __init__(self, native):
        self.native = native
        self.range = 0
        self.is_marked = False
        self.newest = 0  # number of the step that was completed last
        native.hooked(KIND)
        _hooks.hooks[KIND] = self
        _hooks.at_first.append(self.begin_first)

    def begin_first(self):
        if not self.is_marked and not self.range:
            self.range = self.native.begin_step(1)

    def completed(self, number):
        """Ends the range of a step that an optimizer has completed, and begins the next."""
        self.newest = number
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
        """Stops recording, since the program marks its steps itself or the recorder has failed."""
        self.is_marked = True
