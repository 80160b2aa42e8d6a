"""PyTorch's part of sitecustomize.py: it reports completed training steps.

A step is a call of an optimizer's step(). Some optimizers have their number of steps in their state, and so in
checkpoints: Adam and its variants do, SGD does not.

If no service hosts the rendezvous store, the process that hosts it takes over the launcher's listener here.

This module imports nothing of torch before the program does, and must parse on Python 3.6 and later.
"""

import os
import sys

MODULE = "torch"  # the module that a training program imports
STEP_FRAMES_MAX = 10  # between the step of a class and that of its base class, or a function of SET_UP
# Functions that step an optimizer only to create its state: of torch's distributed checkpoints (when one is loaded, and
# also whenever one is saved, if the optimizer has no state), of torch's named optimizers, and of DeepSpeed.
SET_UP = {"_init_optim_state", "init_state", "initialize_optimizer_states"}


def start(steps, after_import):
    """Counts steps. Called once, in the rank, before the program starts."""

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
    """Returns true if torch only traces the step and executes none."""
    try:
        from taskd.torch import tracing

        return tracing.is_tracing()
    except Exception:  # a Python that is too old for the package
        return False


def keep_step_hooks(module):
    """Keeps the hooks of torch's optimizers, which torch.compile before 2.2 removes for good: no step would be counted
    any more. The hooks are restored where the compiler does not trace them."""
    patch = module.TorchPatcher.patch

    def patch_and_keep():
        classes = [
            one for one in vars(sys.modules["torch.optim"]).values() if isinstance(one, type) and hasattr(one, "step")
        ]
        hooked = [one.step if getattr(one.step, "hooked", False) else None for one in classes]
        patch()
        for one, step in zip(classes, hooked):
            if step:
                step._torchdynamo_disable = True
                one.step = step
            elif getattr(one.step, "hooked", False):
                one.step.hooked = False  # the first optimizer of the class hooks it

    module.TorchPatcher.patch = staticmethod(patch_and_keep)


def is_part_of_another(optimizer):
    """Returns true if this step is not a training step: part of another step of the same optimizer, whose class calls
    the step of its base class, or part of the optimizer's setup."""
    # the function that torch wraps around every class's step, and that calls the hooks
    called_by = sys._getframe(1).f_back
    frame = called_by
    for _ in range(STEP_FRAMES_MAX):
        frame = frame and frame.f_back
        if frame and frame.f_code.co_name in SET_UP:
            return True
        if frame and frame.f_code is called_by.f_code and frame.f_locals.get("self") is optimizer:
            return True
    return False


def own_count(optimizer):
    """Returns the number of steps in an optimizer's state, this one included; 0 if it has none, or not in host memory:
    reading it from the device would make the program wait."""
    try:
        for state in optimizer.state.values():
            step = state["step"]
            return int(step) if step.device.type == "cpu" else 0
    except Exception:
        pass
    return 0


STORE_PARAMETERS = (
    "host_name",
    "port",
    "world_size",
    "is_master",
    "timeout",
    "wait_for_workers",
    "multi_tenant",
    "master_listen_fd",
)


def hosts(after_import, port):
    """Hooks the store. Called once, in every process that may host it. `port` is _taskd_port.py."""
    if os.environ.get("RANK") == "0":
        port.here()
    after_import("torch.distributed.rendezvous", lambda module: host_with_listener(module.TCPStore, port))
    after_import("socket", lambda module: release_ahead_of_bind(module.socket, port))


def host_with_listener(store, port):
    """Has every store use the launcher's listener: those of torch's rendezvous, and those that the program creates."""
    init = store.__init__

    def __init__(self, *args, **kwargs):
        given = dict(zip(STORE_PARAMETERS, args), **kwargs)
        wants = given.get("is_master") and given.get("master_listen_fd") is None
        listener = port.take(given.get("port")) if wants and len(args) < len(STORE_PARAMETERS) else None
        if listener is None:
            return init(self, *args, **kwargs)
        if listener.is_for(given.get("host_name")):
            try:
                return init(self, *args, **dict(kwargs, master_listen_fd=listener.fd))  # torch owns it from here on
            except TypeError:
                pass  # a torch without this parameter
        listener.close()  # torch itself listens there next
        return init(self, *args, **kwargs)

    store.__init__ = __init__


def release_ahead_of_bind(socket, port):
    """Releases the launcher's listener before any Python socket binds MASTER_PORT, also for another service."""
    bind = socket.bind

    def bind_released(self, address):
        if isinstance(address, tuple) and len(address) > 1 and str(address[1]) == os.environ.get("MASTER_PORT"):
            port.release(address[1])
        return bind(self, address)

    socket.bind = bind_released
