"""FSDP that shards nothing (NO_SHARD): all ranks have all of it, so it is recovered as DDP is. A pass of it that was given up in its
middle is left here, as the end of a backward pass would, and the size of its group that it has noted becomes the present one.

It goes by torch's own functions for this, which are not public. FSDP that shards has no replica: it is told apart here, and
nothing is done to it.
"""

import torch

from taskd._session import Refused


def is_fsdp(part):
    return type(part).__name__.startswith(("FullyShardedDataParallel", "FSDP"))


def keeps_all(part):
    """Whether each rank has all of it."""
    return getattr(getattr(part, "sharding_strategy", None), "name", None) == "NO_SHARD"


def wrapped(module):
    """Its parts that FSDP has wrapped, the outer ones first; itself may be one."""
    return [part for part in module.modules() if is_fsdp(part)] if isinstance(module, torch.nn.Module) else []


def is_replica(module):
    """Whether it is wrapped, and each rank has all of it."""
    parts = wrapped(module)
    return bool(parts) and all(keeps_all(part) for part in parts)


def replicas(modules):
    """All wrapped parts of those of these modules of which each rank has all."""
    return [part for module in modules if is_replica(module) for part in wrapped(module)]


def hook_of(module):
    """`("FSDP", name)` of a communication hook that the program has given it. What torch's own hooks keep has the size of the group in
    it, which would be another one in a world that shrinks, and the program's may keep anything."""
    hook = getattr(module, "_comm_hook", None) if is_fsdp(module) and keeps_all(module) else None
    return None if hook is None else ("FSDP", getattr(hook, "__name__", type(hook).__name__))


def leave_passes(modules):
    """Of these modules, what has begun a forward or backward pass has begun none."""
    for part in replicas(modules):
        try:
            leave_pass(part)
        except Exception as error:
            raise Refused("a pass of FSDP that was given up cannot be left (%s); restart this rank" % error)


def leave_pass(part):
    """What `_post_backward_final_callback` does to each part at the end of a backward pass, gradients aside: these are put back."""
    from torch.distributed.fsdp import _common_utils, _runtime_utils

    handle = part._handle
    if handle is not None:
        parameter = handle.flat_param
        hook = vars(parameter).pop("_post_backward_hook_state", None)
        if hook is not None:
            hook[-1].remove()
        parameter._post_backward_called = False
        handle._ran_pre_backward_hook = handle._needs_pre_backward_unshard = handle._prefetched = False
        handle._post_forward_index = None
        handle._training_state = _common_utils.HandleTrainingState.IDLE
        _runtime_utils._reshard(part, handle, False)  # the program's parameters are in its modules again, not views of them
    part.training_state = _common_utils.TrainingState.IDLE
    if part._is_root:
        part._exec_order_data.next_iter()
        part._post_backward_callback_queued = False


def look_at_groups(modules):
    """A part divides gradients by the size that its group had when it was made: by the present one from now on."""
    for part in replicas(modules):
        size = part.process_group.size()
        if part.world_size != size:
            from torch.distributed.algorithms._comm_hooks.default_hooks import DefaultState

            part.world_size = size
            part._gradient_predivide_factor = DefaultState._get_gradient_predivide_factor(size)
            part._gradient_postdivide_factor = size / part._gradient_predivide_factor
