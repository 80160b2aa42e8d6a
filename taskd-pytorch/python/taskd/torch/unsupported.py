"""Training engines whose steps taskd cannot restore: they keep gradients in buckets of their own, or activations of a
schedule in flight. If a program makes one, recovery in place is off, which is reported when its step loop begins.

This module does not change what the engines do.
"""

from __future__ import annotations

import functools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from taskd._session import Session

# (module, class, the reason why it cannot be recovered)
ENGINES = (
    (
        "torch.distributed.pipelining.stage",
        "_PipelineStageBase",
        "a stage of torch.distributed.pipelining keeps what a schedule has under way",
    ),
    (
        "deepspeed.runtime.engine",
        "DeepSpeedEngine",
        "DeepSpeed keeps gradients, and with ZeRO shards of the optimizer, in buckets of its own",
    ),
    (
        "megatron.core.distributed.distributed_data_parallel",
        "DistributedDataParallel",
        "Megatron keeps gradients in buffers of its own",
    ),
)
WHY = "%s, and does not come back from a step that was given up in its middle: restart all ranks"


def install(after_import: Callable[[str, Callable[[Any], object]], None], session: Session) -> None:
    for module, name, what in ENGINES:
        after_import(module, functools.partial(watch, name=name, why=WHY % what, session=session))


def watch(module: Any, name: str, why: str, session: Session) -> None:
    """Reports when the first object of this class is made."""
    made = getattr(module, name, None)
    if made is None:
        return  # another version, which has the class elsewhere
    init = made.__init__

    @functools.wraps(init)
    def reporting(self, *args, **kwargs):
        init(self, *args, **kwargs)
        if session.engine is not None:
            session.engine.refuses(why)

    made.__init__ = reporting
