"""Parameters and optimizer state after training, as one SHA-256: with the hook and without."""

import hashlib

import torch
from torch.distributed import fsdp
from torch.nn.parallel import DistributedDataParallel

import ranks

STEPS = {"ddp": 200, "fsdp2": 200 if ranks.SOAK else 50}


def model():
    return torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 8)
    )


def main(rank, world, native):
    torch.manual_seed(1)
    wrapped = {"ddp": DistributedDataParallel(model())}
    if hasattr(fsdp, "fully_shard"):
        wrapped["fsdp2"] = fsdp.fully_shard(model())
    return {name: digest(train(module, rank, STEPS[name])) for name, module in wrapped.items()}


def train(module, rank, steps):
    optimizer = torch.optim.Adam(module.parameters())
    data = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        optimizer.zero_grad()
        module(torch.randn(16, 32, generator=data)).square().mean().backward()
        optimizer.step()
    return module, optimizer


def digest(trained):
    digest = hashlib.sha256()
    module, optimizer = trained
    states = [state for states in optimizer.state.values() for state in states.values()]
    for tensor in [*module.state_dict().values(), *states]:
        digest.update(getattr(tensor, "_local_tensor", tensor).detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    ranks.report({hook: ranks.run(main, 2, hook) for hook in (ranks.OFF, ranks.ON)})
