"""FSDP without sharding (NO_SHARD): all ranks have all parameters, so a module is recovered as with DDP. This module
resets a pass that was aborted in its middle, as the end of a backward pass would, and updates the group size that a
module stores.

It uses torch's own functions for this, which are not public. FSDP with sharding has no replica: it is detected here,
and left as it is.
"""

from __future__ import annotations

import torch

from taskd._session import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable


def is_fsdp(part: Any) -> bool:
    return type(part).__name__.startswith(("FullyShardedDataParallel", "FSDP"))


def keeps_all(part: Any) -> Any:
    """Returns True if each rank has all of a part."""
    return getattr(getattr(part, "sharding_strategy", None), "name", None) == "NO_SHARD"


def wrapped(module: Any) -> Any:
    """Returns the parts of a module that FSDP has wrapped, the outer ones first; the module itself may be one."""
    return [part for part in module.modules() if is_fsdp(part)] if isinstance(module, torch.nn.Module) else []


def is_replica(module: Any) -> bool:
    """Returns True if a module is wrapped, and each rank has all of it."""
    parts = wrapped(module)
    return bool(parts) and all(keeps_all(part) for part in parts)


def replicas(modules: Iterable[torch.nn.Module]) -> Any:
    """Returns the wrapped parts of the modules that every rank holds completely."""
    return [part for module in modules if is_replica(module) for part in wrapped(module)]


def hook_of(module: Any) -> Any:
    """Returns `("FSDP", name)` of the program's communication hook. The state of torch's own hooks contains the size of
    the group, which changes when a world shrinks; the state of the program's may contain anything."""
    hook = getattr(module, "_comm_hook", None) if is_fsdp(module) and keeps_all(module) else None
    return None if hook is None else ("FSDP", getattr(hook, "__name__", type(hook).__name__))


def leave_passes(modules: Iterable[torch.nn.Module]) -> None:
    """Resets the forward and backward passes that these modules have begun."""
    for part in replicas(modules):
        try:
            leave_pass(part)
        except Exception as error:
            raise Refused("a pass of FSDP that was given up cannot be left (%s); restart this rank" % error)


def leave_pass(part: Any) -> None:
    """Does what `_post_backward_final_callback` does to each part at the end of a backward pass, except for gradients,
    which are restored."""
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
        # modules contain the program's parameters again, not views of them
        _runtime_utils._reshard(part, handle, False)
    part.training_state = _common_utils.TrainingState.IDLE
    if part._is_root:
        part._exec_order_data.next_iter()
        part._post_backward_callback_queued = False


def look_at_groups(modules: Iterable[torch.nn.Module]) -> None:
    """Updates the group size by which a part divides gradients, which FSDP stores when it makes the part."""
    for part in replicas(modules):
        size = part.process_group.size()
        if part.world_size != size:
            from torch.distributed.algorithms._comm_hooks.default_hooks import DefaultState

            part.world_size = size
            part._gradient_predivide_factor = DefaultState._get_gradient_predivide_factor(size)
            part._gradient_postdivide_factor = size / part._gradient_predivide_factor
