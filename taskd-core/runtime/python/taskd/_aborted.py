"""The exception that aborts a training step."""


class StepAborted(BaseException):
    """Aborts the current step: a peer has ended, or a collective has failed.

    The output of the collective is undefined, so the program must not compute with it. `with step:` catches this
    exception; the step is repeated once all ranks are there. It is not an `Exception`, so that `except Exception` does
    not swallow it. Code that has to undo something in a step does so in a `finally` and lets the exception pass.
    """
