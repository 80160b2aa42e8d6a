"""Checksums of replicas in real process groups of four ranks, over a stand-in for libtaskd: of each case what each rank
reports."""

import json
import os
import subprocess
import sys
import tempfile

from figures import forget, install, watch

RANKS, STEPS, EVERY = 4, 12, 2


def network(width=24, seed=7):
    import torch

    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.Tanh(), torch.nn.Linear(width, 3))


def train(model, optimizer, rank, at=lambda step: None):
    import torch

    source = torch.Generator().manual_seed(rank)
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        model(torch.randn(4, 8, generator=source)).square().mean().backward()
        optimizer.step()
        at(step)


def flip(parameter, bit):
    import torch

    with torch.no_grad():
        parameter.view(-1).view(torch.int32)[-1] ^= 1 << bit


def ddp(model, **kwargs):
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model, **kwargs)


def sgd(model):
    import torch

    return torch.optim.SGD(model.parameters(), lr=0.01)


def equal(rank):
    """One group of all ranks, in parts of 256 bytes."""
    model = ddp(network())
    train(model, sgd(model), rank)


def flipped(rank):
    """After step 5 the lowest bit of the last element of the last parameter flips on rank 2."""
    model = ddp(network())
    train(model, sgd(model), rank, lambda step: flip(model.module[2].bias, 0) if step == 5 and rank == 2 else None)


def stages(rank):
    """Two stages of a pipeline, with two replicas each."""
    import torch.distributed as dist

    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model = ddp(network(seed=rank // 2), process_group=groups[rank // 2])
    train(model, sgd(model), rank)


def sharded_optimizer(rank):
    """Each rank updates a part of the parameters, and the others receive it."""
    import torch
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = ddp(network())
    train(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.01), rank)


def sharded_parameters(rank):
    """FSDP2: no rank has a replica."""
    from torch.distributed.fsdp import fully_shard

    model = network()
    fully_shard(model)
    train(model, sgd(model), rank)


def alone(rank):
    """No wrapper keeps the ranks equal."""
    model = network()
    train(model, sgd(model), rank)


def left_out(rank):
    """A parameter that DDP is not to keep equal differs, and so do types and layouts of memory."""
    import torch

    class Mixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network(width=5)
            self.own = torch.nn.Parameter(torch.full((3,), float(rank)))
            self.short = torch.nn.Parameter(torch.ones(7, dtype=torch.bfloat16))
            self.image = torch.nn.Conv2d(2, 3, 3, bias=False).to(memory_format=torch.channels_last)

        def forward(self, x):
            return self.inner(x) * self.short.float().sum() * self.image.weight.sum() + self.own.sum()

    model = Mixed()
    from torch.nn.parallel import DistributedDataParallel

    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["own"])
    model = DistributedDataParallel(model)
    train(model, sgd(model), rank)


CASES = equal, flipped, stages, sharded_optimizer, sharded_parameters, alone, left_out


def rank_main(path):
    native = install()
    import torch
    import torch.distributed as dist
    from taskd.torch.numerical import checksums

    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method="file://%s.store" % path, rank=rank, world_size=RANKS)
    checksums.PART_BYTES = 256
    found = {}
    for case in CASES:
        forget(native)
        watch().optimizers.clear()
        watch().modules = None
        native.figures = []
        case(rank)
        steps = native.by_step()
        reported = {step: {n: v for n, v in of.items() if "checksum" in n} for step, of in steps.items()}
        found[case.__name__] = {step: of for step, of in reported.items() if of}
    found["failed"] = watch().counts["failed"]
    with open("%s.%d" % (path, rank), "w") as file:
        json.dump(found, file)
    dist.destroy_process_group()


def main():
    if "RANK" in os.environ:
        return rank_main(sys.argv[1])
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "found")
        env = dict(os.environ, TASKD_CHECKSUM_EVERY=str(EVERY))
        ranks = [
            subprocess.Popen([sys.executable, __file__, path], env=dict(env, RANK=str(rank))) for rank in range(RANKS)
        ]
        codes = [one.wait() for one in ranks]
        if any(codes):
            sys.exit("ranks ended with %s" % codes)
        found = []
        for rank in range(RANKS):
            with open("%s.%d" % (path, rank)) as file:
                found.append(json.load(file))
    with open(sys.argv[1], "w") as file:
        json.dump({name: [of[name] for of in found] for name in found[0]}, file)


if __name__ == "__main__":
    main()
