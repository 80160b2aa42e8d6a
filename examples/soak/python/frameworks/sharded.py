"""Trainings whose state is torch's DTensors (FSDP2, HSDP, tensor parallel), with torch's own distributed
checkpoints."""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from plain_torch import WIDTH, samples
from run import train
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Sharded:
    def __init__(self, options, notes):
        self.options, self.rank = options, notes.rank
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, WIDTH))
        self.data_rank = self.shard(notes.world)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    @property
    def state(self):
        return {"model": self.model, "optimizer": self.optimizer}

    def shard(self, world):
        """Shards the model; returns which part of the data is this rank's."""
        what = self.options.what
        if what == "tensor-parallel":
            mesh = init_device_mesh("cpu", (world,))
            parallelize_module(self.model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
            return 0  # all ranks compute the same batch
        if what == "hsdp":
            mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
        else:
            mesh = init_device_mesh("cpu", (world,))
        for layer in self.model:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        return self.rank

    def step(self, number):
        inputs, targets = samples(number, self.data_rank)
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def directory(self, number):
        return os.path.join(self.options.dir, "checkpoint.%d" % number)

    def save(self, number):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=self.directory(number))

    def load(self, number):
        if number:
            model, optimizer = get_state_dict(self.model, self.optimizer)
            held = {"model": model, "optimizer": optimizer}
            dcp.load(held, checkpoint_id=self.directory(number))
            set_state_dict(
                self.model, self.optimizer, model_state_dict=held["model"], optim_state_dict=held["optimizer"]
            )
        return number


def run(options, notes):
    dist.init_process_group("gloo")
    training = Sharded(options, notes)
    train(training, notes)
    notes.end([training.model], [training.optimizer])
    dist.destroy_process_group()
