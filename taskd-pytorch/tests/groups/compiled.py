"""A compiled training step and compiled collectives: the same graphs and results, and all operations recorded."""

import torch
import torch._dynamo.testing
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._dynamo import trace_rules
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

import ranks


class Small(torch.nn.Module):
    """Of the program's own: torch compiles none of its modules by themselves."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 64), torch.nn.Linear(64, 1)

    def forward(self, batch):
        return self.second(torch.relu(self.first(batch)))


def main(rank, world, native):
    trace_rules.add("taskd")  # as the shim does
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    torch.manual_seed(0)
    module = DistributedDataParallel(Small())
    step = torch.compile(module, backend=counter)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    before = native and len(native.records)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(4):
            optimizer.zero_grad()
            step(torch.full((4, 8), float(rank))).sum().backward()
            optimizer.step()
        group = dist.group.WORLD
        whole = torch.compile(lambda tensor: collectives(tensor, group), backend=counter, fullgraph=True)
        results = [whole(torch.arange(4.0) + rank).tolist() for _ in range(2)]
    answers = {
        "parameters": [parameter.sum().item() for parameter in module.parameters()],
        "results": results,
        "graphs": counter.frame_count,
        "operators": counter.op_count,
        "breaks": sum(torch._dynamo.utils.counters["graph_break"].values()),
    }
    seen = sum(event.name.startswith("c10d::") for event in profiler.events())
    return {"answers": answers, "seen": seen, "recorded": native and len(native.records) - before}


def collectives(tensor, group):
    """With the group itself in the graph, and with its name."""
    dist.all_reduce(tensor, group=group)
    gathered = functional.all_gather_tensor(tensor * 2, 0, group)
    return functional.all_reduce(gathered, "sum", group.group_name) + dist.get_world_size(group)


if __name__ == "__main__":
    ranks.report({hook: ranks.run(main, 2, hook) for hook in (ranks.OFF, ranks.ON)})
