"""Checkpoints: `torch.save`, and `save` and `async_save` of torch.distributed.checkpoint.

Of an asynchronous save the time that the training loop waits is one range, and the writing, on a thread of torch's, is another.
"""

from taskd import _hooks
from taskd._kinds import SAVE_CHECKPOINT as KIND


def install(module, native):
    """`module` is torch.serialization or torch.distributed.checkpoint.state_dict_saver, from which others take them."""
    hook = _hooks.of(native, KIND)
    package = module.__name__.rpartition(".")[0]
    for name in ("save", "async_save", "save_state_dict"):
        function = getattr(module, name, None)
        if function is not None:
            setattr(module, name, _hooks.outermost(hook, "%s.%s" % (package, name), function))
