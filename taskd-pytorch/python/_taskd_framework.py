"""What sitecustomize.py does not know of PyTorch: when a training step is completed.

It goes by the calls of an optimizer's step(). How many steps an optimizer has behind it those remember that keep the number
in their state, and so in checkpoints: Adam and its kin do, SGD does not.

And who hosts the store at which ranks meet, where no service does: that one takes the launcher's listener.

It imports nothing of torch before the program does, and must parse on Python 3.6 and later.
"""

import os
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


STORE_PARAMETERS = ("host_name", "port", "world_size", "is_master", "timeout", "wait_for_workers", "multi_tenant", "master_listen_fd")


def hosts(after_import, port):
    """Called once, in every process that may host the store. `port` is _taskd_port.py."""
    if os.environ.get("RANK") == "0":
        port.here()
    after_import("torch.distributed.rendezvous", lambda module: host_with_listener(module.TCPStore, port))
    after_import("socket", lambda module: release_ahead_of_bind(module.socket, port))


def host_with_listener(store, port):
    """Every store, whether torch's rendezvous makes it or the program by hand."""
    init = store.__init__

    def __init__(self, *args, **kwargs):
        given = dict(zip(STORE_PARAMETERS, args), **kwargs)
        wants = given.get("is_master") and given.get("master_listen_fd") is None
        listener = port.take(given.get("port")) if wants and len(args) < len(STORE_PARAMETERS) else None
        if listener is None:
            return init(self, *args, **kwargs)
        if listener.is_for(given.get("host_name")):
            try:
                return init(self, *args, **dict(kwargs, master_listen_fd=listener.fd))  # it is torch's from here on
            except TypeError:
                pass  # an older torch takes none
        listener.close()  # torch listens there itself, at once
        return init(self, *args, **kwargs)

    store.__init__ = __init__


def release_ahead_of_bind(socket, port):
    """A program may have something else of Python's listen at the port."""
    bind = socket.bind

    def bind_released(self, address):
        if isinstance(address, tuple) and len(address) > 1 and str(address[1]) == os.environ.get("MASTER_PORT"):
            port.release(address[1])
        return bind(self, address)

    socket.bind = bind_released
