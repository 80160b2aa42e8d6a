"""What sitecustomize.py does not know of PyTorch: when a training step is completed.

It goes by the calls of an optimizer's step(). How many steps an optimizer has behind it those remember that keep the number
in their state, and so in checkpoints: Adam and its kin do, SGD does not.

It imports nothing of torch before the program does, and must parse on Python 3.6 and later.
"""

import sys

MODULE = "torch"  # what a program imports that trains
STEP_FRAMES_MAX = 10  # between the step of a class and that of its base class, or who has an optimizer make its state
# Functions that step an optimizer only to have it make its state: of torch's distributed checkpoints (when they are loaded, and of an
# optimizer that has no state also whenever they are saved), of its named optimizers, and of DeepSpeed's.
SET_UP = {"_init_optim_state", "init_state", "initialize_optimizer_states"}


def start(steps, after_import):
    """Called once, in the rank, before the program starts."""

    def after_step(optimizer, *_):
        if steps.is_rank() and not is_part_of_another(optimizer) and not is_tracing():
            steps.completed_by(optimizer, own_count)

    after_step._torchdynamo_disable = True  # torch.compile leaves it out of its graphs without a warning

    def register(module):
        module.register_optimizer_step_post_hook(after_step)
        version = getattr(sys.modules["torch"], "__version__", "")
        if version.split(".")[:2] in (["2", "0"], ["2", "1"]):
            after_import("torch._dynamo.eval_frame", keep_step_hooks)

    after_import("torch.optim.optimizer", register)


def is_tracing():
    """Whether torch only traces the step, in which case there is none."""
    try:
        from taskd import _tracing

        return _tracing.is_tracing()
    except Exception:  # an older Python than the package is for
        return False


def keep_step_hooks(module):
    """Before 2.2 torch.compile takes all hooks out of torch's optimizers, for good: no step would be seen any more. They are
    put back, where the compiler does not look into them."""
    patch = module.TorchPatcher.patch

    def patch_and_keep():
        classes = [one for one in vars(sys.modules["torch.optim"]).values() if isinstance(one, type) and hasattr(one, "step")]
        hooked = [one.step if getattr(one.step, "hooked", False) else None for one in classes]
        patch()
        for one, step in zip(classes, hooked):
            if step:
                step._torchdynamo_disable = True
                one.step = step
            elif getattr(one.step, "hooked", False):
                one.step.hooked = False  # by the first optimizer of the class

    module.TorchPatcher.patch = staticmethod(patch_and_keep)


def is_part_of_another(optimizer):
    """Whether this step is none of training: part of another one of the same optimizer, whose class calls the step of its base
    class, or part of what sets the optimizer up."""
    called_by = sys._getframe(1).f_back  # the function that torch puts around every class's step, and that calls its hooks
    frame = called_by
    for _ in range(STEP_FRAMES_MAX):
        frame = frame and frame.f_back
        if frame and frame.f_code.co_name in SET_UP:
            return True
        if frame and frame.f_code is called_by.f_code and frame.f_locals.get("self") is optimizer:
            return True
    return False


def own_count(optimizer):
    """The steps that an optimizer remembers, this one included; 0 where it does not, or not in host memory: looking
    there would make the program wait for its device."""
    try:
        for state in optimizer.state.values():
            step = state["step"]
            return int(step) if step.device.type == "cpu" else 0
    except Exception:
        pass
    return 0
