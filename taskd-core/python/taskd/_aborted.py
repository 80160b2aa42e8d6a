"""What is raised where a training step cannot go on."""


class StepAborted(BaseException):
    """The step that is under way is given up: a peer is gone, or a collective operation has failed.

    What the operation should have filled holds garbage, so nothing after it may be computed with. `with step:` catches it;
    the step is done again once all ranks are there. It is no `Exception`, so that `except Exception` does not swallow it.
    Code that has something to undo in a step does so in a `finally` and lets it pass.
    """
