"""How many operations of DDP, FSDP and FSDP2 are recorded, beside what torch itself counted in the same run: the calls
that its profiler saw (`c10d::allreduce_` and the like), and the sequence number of gloo, which its collectives advance.
"""

import collections

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d, fsdp
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

import ranks
from taskd.torch.process_group.names import with_members

STEPS = 4


def model():
    torch.manual_seed(0)
    # Batch norm has buffers, which DDP broadcasts; two buckets, which it rebuilds.
    return torch.nn.Sequential(
        torch.nn.Linear(32, 600),
        torch.nn.BatchNorm1d(600),
        torch.nn.ReLU(),
        torch.nn.Linear(600, 600),
        torch.nn.Linear(600, 8),
    )


def ddp(group):
    return DistributedDataParallel(model(), process_group=group, bucket_cap_mb=1)


def fsdp1(group):
    cpu = torch.device("cpu")
    return fsdp.FullyShardedDataParallel(model(), process_group=group, device_id=cpu, use_orig_params=True)


def fsdp2(_):
    whole = model()
    for layer in whole:
        if isinstance(layer, torch.nn.Linear):
            fsdp.fully_shard(layer)
    return fsdp.fully_shard(whole)


def train(wrap, group):
    wrapped = wrap(group)
    optimizer = torch.optim.Adam(wrapped.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        wrapped(torch.randn(16, 32)).square().mean().backward()
        optimizer.step()


def main(rank, world, native):
    counted = {}
    pair = [dist.new_group([0, 1]), dist.new_group(range(2, world)) if world > 2 else None][rank // 2]
    wraps = [("ddp", ddp, None), ("ddp of a group", ddp, pair)]
    if hasattr(fsdp, "fully_shard") and (world == 2 or ranks.SOAK):  # before, gloo could not reduce and scatter
        wraps += [("fsdp", fsdp1, None), ("fsdp2", fsdp2, None)]
    for name, wrap, group in wraps:
        group_used = group or dist.group.WORLD
        members = dist.get_process_group_ranks(group_used)
        name_used = with_members(distributed_c10d._world.pg_names[group_used], members)
        before, sequence = len(native.records), group_used._get_sequence_number_for_group()
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            train(wrap, group)
        seen = collections.Counter(event.name for event in profiler.events() if event.name.startswith("c10d::"))
        records = native.records[before:]
        counted[name] = {
            "recorded": len(records),
            "of its group": sum(record["group"] == name_used for record in records),
            "profiler": sum(seen.values()),
            "sequence": group_used._get_sequence_number_for_group() - sequence,
            "by operation": collections.Counter(record["name"] for record in records),
            "by the profiler": seen,
            "numbers": [record["sequence"] for record in records if record["group"] == name_used],
            "unended": sum(record["end"] is None for record in records),
        }
    return {"counted": counted, "exceptions": native.exceptions}


if __name__ == "__main__":
    ranks.report({"2": ranks.run(main, 2, ranks.ON), "4": ranks.run(main, 4, ranks.ON)})
