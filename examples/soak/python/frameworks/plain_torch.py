"""Trainings in plain torch: DDP, a pipeline by hand, torch's own pipeline, and its ZeRO-1. Each rank saves its own
file."""

import os

import torch
import torch.distributed as dist
from run import train
from torch import nn

WIDTH, BATCH = 32, 16


def samples(number, rank):
    """Returns the batch of a step."""
    generator = torch.Generator().manual_seed(1000 * number + rank)
    inputs = torch.randn(BATCH, WIDTH, generator=generator)
    return inputs, torch.sin(2 * inputs)


def layers(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))


class Training:
    """Base of all trainings: a checkpoint file for each rank, written under another name and renamed."""

    def __init__(self, options, notes):
        self.options, self.rank, self.world = options, notes.rank, notes.world
        self.make()

    @property
    def state(self):
        return {"model": self.model, "optimizer": self.optimizer}

    def path(self, number):
        return os.path.join(self.options.dir, "checkpoint.%d.%d.pt" % (number, self.rank))

    def optimizer_state(self):
        return self.optimizer.state_dict()

    def save(self, number):
        path = self.path(number)
        held = {"model": self.model.state_dict(), "optimizer": self.optimizer_state(), "random": torch.get_rng_state()}
        torch.save(held, path + ".part")
        os.rename(path + ".part", path)

    def load(self, number):
        if number:
            held = torch.load(self.path(number))
            self.model.load_state_dict(held["model"])
            self.optimizer.load_state_dict(held["optimizer"])
            torch.set_rng_state(held["random"])
        return number

    def held(self):
        return [self.model], [self.optimizer]


class Ddp(Training):
    """Replicas with dropout and batch normalisation, whose random numbers and averages differ between ranks."""

    def make(self):
        torch.manual_seed(1)
        model = nn.Sequential(
            nn.Linear(WIDTH, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, WIDTH)
        )
        self.model = nn.parallel.DistributedDataParallel(model)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        torch.manual_seed(100 + self.rank)

    def step(self, number):
        inputs, targets = samples(number, self.rank)
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        loss.backward()
        self.optimizer.step()
        return loss.item()


class Zero1(Ddp):
    """Replicas that shard the optimizer's state; rank 0 saves all of it."""

    def make(self):
        from torch.distributed.optim import ZeroRedundancyOptimizer

        super().make()
        self.optimizer = ZeroRedundancyOptimizer(self.model.parameters(), torch.optim.AdamW, lr=1e-3)

    def optimizer_state(self):
        self.optimizer.consolidate_state_dict(to=0)
        return self.optimizer.state_dict() if self.rank == 0 else None

    def load(self, number):
        if number:
            held = torch.load(self.path(number))
            whole = torch.load(self.path(number).replace(".%d.pt" % self.rank, ".0.pt"))
            self.model.load_state_dict(held["model"])
            self.optimizer.load_state_dict(whole["optimizer"])
            torch.set_rng_state(held["random"])
        return number

    def held(self):
        return [self.model], [self.optimizer.optim]


class Pipeline(Training):
    """Two stages of one shape, by send and receive."""

    def make(self):
        self.model = layers(5 + self.rank)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)

    def step(self, number):
        inputs, targets = samples(number, 0)
        self.optimizer.zero_grad()
        loss = None
        if self.rank == 0:
            passed = self.model(inputs)
            dist.send(passed.detach(), 1)
            gradient = torch.empty_like(passed)
            dist.recv(gradient, 1)
            passed.backward(gradient)
        else:
            passed = torch.empty_like(inputs)
            dist.recv(passed, 0)
            passed.requires_grad_(True)
            loss = nn.functional.mse_loss(self.model(passed), targets)
            loss.backward()
            dist.send(passed.grad, 0)
        self.optimizer.step()
        return None if loss is None else loss.item()


class Pipelining(Training):
    """Two stages of one shape, by torch.distributed.pipelining."""

    def make(self):
        from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

        self.model = layers(5 + self.rank)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        stage = PipelineStage(self.model, self.rank, self.world, torch.device("cpu"))
        self.schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)

    def step(self, number):
        inputs, targets = samples(number, 0)
        self.optimizer.zero_grad()
        losses = []
        if self.rank == 0:
            self.schedule.step(inputs)
        else:
            self.schedule.step(target=targets, losses=losses)
        self.optimizer.step()
        return sum(loss.item() for loss in losses) if losses else None


TRAININGS = {"ddp": Ddp, "pipeline": Pipeline, "torch-pipelining": Pipelining, "torch-zero1": Zero1}


def run(options, notes):
    dist.init_process_group("gloo")
    training = TRAININGS[options.what](options, notes)
    train(training, notes)
    notes.end(*training.held())
    dist.destroy_process_group()
