"""One rank of gloo groups, one after the other, over a store that another process hosts.

group.py RANK WORLD_SIZE PORT...: a group at each port; prints "at PORT" before it joins, "done PORT" after its
collectives.
"""

import datetime
import os
import sys

os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # every rank is only a client
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
import torch
import torch.distributed as dist

rank, world_size, ports = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), MASTER_ADDR="127.0.0.1")
for port in ports:
    os.environ["MASTER_PORT"] = port
    print("at", port, flush=True)
    sys.stdin.readline()
    try:
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
        sum_of_ranks = torch.tensor([float(rank)])
        dist.all_reduce(sum_of_ranks)
        assert sum_of_ranks.item() == sum(range(world_size)), sum_of_ranks
        names = [None] * world_size
        dist.all_gather_object(names, "rank %d" % rank)
        assert names == ["rank %d" % other for other in range(world_size)], names
        half = dist.new_group(list(range(0, world_size, 2)))
        if rank % 2 == 0:
            dist.barrier(half)
        dist.barrier()
        dist.destroy_process_group()
    except Exception as error:
        print("failed", port, type(error).__name__, flush=True)
        continue
    print("done", port, flush=True)
