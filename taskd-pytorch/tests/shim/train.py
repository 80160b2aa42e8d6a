"""A training program as people write it, without a word of taskd. It prints what it did, and the result.

Argument: how workers of its data loaders are started, or `none` for no workers.
"""

import hashlib
import json
import os
import sys
import tempfile

import torch
import torch.distributed.checkpoint as checkpoint
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self):
        return 800

    def __getitem__(self, index):
        return torch.full((4,), float(index)), torch.tensor([index % 3 / 2.0])


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Dropout(0.1))
        self.head = torch.nn.Linear(8, 1)

    def forward(self, numbers):
        return self.head(self.body(numbers))


class Theirs(torch.optim.Adam):
    """An optimizer of their own, which calls the step of its base class."""

    def step(self, closure=None):
        return super().step(closure)


def main(method):
    torch.manual_seed(7)
    workers = {} if method == "none" else {"num_workers": 2, "multiprocessing_context": method}
    loader = DataLoader(Numbers(), batch_size=4, shuffle=True, **workers)
    net, loss_of = Net(), torch.nn.MSELoss()
    torch.optim.Adam(net.parameters())  # so that the base class's step is wrapped as well
    optimizer, second = Theirs(net.body.parameters()), torch.optim.SGD(net.head.parameters(), lr=0.01)
    did = {"step": 0, "data loader": 0, "forward": 0, "save": 0}
    with tempfile.TemporaryDirectory() as directory:
        for epoch in range(2):
            for batch, (numbers, expected) in enumerate(loader):
                loss_of(net(numbers), expected).backward()
                did["forward"] += 2  # the loss is a module, too
                if batch % 2:  # gradients of two batches are accumulated
                    optimizer.step()
                    second.step()
                    net.zero_grad()
                    did["step"] += 1
            did["data loader"] += len(loader) + 1  # the last one finds nothing
            torch.save({"net": net.state_dict()}, os.path.join(directory, "one"))
            did["save"] += 1
        writer = checkpoint.FileSystemWriter(os.path.join(directory, "two"))
        if hasattr(checkpoint, "save"):
            checkpoint.save({"net": net.state_dict()}, storage_writer=writer)
        else:  # before 2.2
            checkpoint.save_state_dict({"net": net.state_dict()}, writer, no_dist=True)
        did["save"] += 1
    digest = hashlib.sha256()
    for tensor in list(net.state_dict().values()) + [torch.get_rng_state()]:
        digest.update(tensor.numpy().tobytes())
    print(json.dumps({"did": did, "digest": digest.hexdigest()}))


if __name__ == "__main__":
    main(sys.argv[1])
