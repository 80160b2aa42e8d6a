"""Training engines that keep parts of a step where taskd cannot put them back: gradients in buckets of their own, activations of a schedule
under way. Where a program makes one, recovery in place is off, and that is reported where its step loop begins.

It never changes what they do.
"""

import functools

# (module, class, what keeps it from being recovered)
ENGINES = (
    ("torch.distributed.pipelining.stage", "_PipelineStageBase", "a stage of torch.distributed.pipelining keeps what a schedule has under way"),
    ("deepspeed.runtime.engine", "DeepSpeedEngine", "DeepSpeed keeps gradients, and with ZeRO shards of the optimizer, in buckets of its own"),
    ("megatron.core.distributed.distributed_data_parallel", "DistributedDataParallel", "Megatron keeps gradients in buffers of its own"),
)
WHY = "%s, and does not come back from a step that was given up in its middle: restart all ranks"


def install(after_import, session):
    for module, name, what in ENGINES:
        after_import(module, functools.partial(watch, name=name, why=WHY % what, session=session))


def watch(module, name, why, session):
    """Reports when the first object of this class is made."""
    made = getattr(module, name, None)
    if made is None:
        return  # another version, which has it elsewhere
    init = made.__init__

    @functools.wraps(init)
    def reporting(self, *args, **kwargs):
        init(self, *args, **kwargs)
        if session.engine is not None:
            session.engine.refuses(why)

    made.__init__ = reporting
