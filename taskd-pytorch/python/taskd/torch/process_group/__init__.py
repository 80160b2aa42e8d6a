"""Process groups of torch.distributed: `wrapper` wraps all of them, `abortable` those that can be aborted, `rebuild`
makes the groups of the next generation, `gloo` and `nccl` hold what only one backend has, and `record` records the
operations.
"""
