"""PyTorch part of taskd: what `taskd.steps`, `taskd.load_checkpoint` and the recorder need from torch.

`framework` is the interface to the package `taskd`, `engine` the part in a recovery. The modules:

  * `process_group`: groups that can be aborted and rebuilt, and the record of their operations;
  * `standby`: a process that waits to replace another one, from its start to its first step with the other ranks;
  * `abort_points`, `step_snapshot`, `undo`: abort of a step, and its repetition;
  * `state`, `state_dicts`, `transfer`, `digest`: the state of a rank, and its copy from another rank;
  * `emergency_checkpoint`, `in_memory_checkpoint`, `load_checkpoint`: checkpoints;
  * `data`, `ddp`, `fsdp`, `accelerate`: support for DataLoaders, DDP, FSDP and accelerate;
  * `numerical`: loss, norm of gradients, and checksums of replicas, without marks of the program;
  * `hooks`: the records of a step, a forward pass, a data loader and a saved checkpoint.

An import of this package does not import torch; its modules do. Programs import `taskd`; functions here may change with
any version.
"""
