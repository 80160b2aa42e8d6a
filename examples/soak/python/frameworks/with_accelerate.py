"""A loop with accelerate, with gradients of several batches in a step, and checkpoints by `save_state` at the end of
each epoch."""

import os

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from plain_torch import WIDTH
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATED, BATCH = 2, 8


class Training:
    def __init__(self, options, notes):
        self.options, self.notes = options, notes
        loaders = DataLoaderConfiguration(use_seedable_sampler=True)  # otherwise a resumed training has another order
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED, dataloader_config=loaders)
        set_seed(7)
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(options.every * ACCUMULATED * BATCH * notes.world, WIDTH, generator=generator)
        loader = DataLoader(TensorDataset(inputs, torch.sin(2 * inputs)), batch_size=BATCH, shuffle=True)
        model = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, WIDTH))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
        prepared = self.accelerator.prepare(model, optimizer, loader, scheduler)
        self.model, self.optimizer, self.loader, self.scheduler = prepared

    def batch(self, inputs, targets):
        """Computes one of the batches of a step."""
        with self.accelerator.accumulate(self.model):
            loss = nn.functional.mse_loss(self.model(inputs), targets)
            self.accelerator.backward(loss)
            if self.accelerator.sync_gradients:
                self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
        return loss

    def directory(self, number):
        return os.path.join(self.options.dir, "checkpoint.%d" % number)

    def load(self):
        number = self.notes.newest()
        if number:
            self.accelerator.load_state(self.directory(number))
            self.loader.set_epoch(number // self.options.every)
            self.loader.iteration = number // self.options.every
        return number

    def completed(self, number, loss):
        self.notes.step(number, loss)
        if (number + 1) % self.options.every == 0:
            self.accelerator.save_state(self.directory(number + 1))
            self.notes.saved(number + 1)

    def plain(self, start):
        for epoch in range(start // self.options.every, self.options.steps // self.options.every):
            for at, (inputs, targets) in enumerate(self.loader):
                loss = self.batch(inputs, targets)
                if at % ACCUMULATED == ACCUMULATED - 1:
                    self.notes.pause()
                    last = epoch * self.options.every + at // ACCUMULATED, loss
                    if at + 1 < len(self.loader):
                        self.completed(*last)
            self.completed(*last)  # after the loader, whose end counts the epoch

    def with_steps(self, start):
        import taskd

        state = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        for step in taskd.steps(state, data=self.loader, start=start, until=self.options.steps):
            with step:
                for inputs, targets in step.batches(n=ACCUMULATED):
                    loss = self.batch(inputs, targets)
                self.notes.pause()
            if step.completed:
                self.completed(step.number, loss)


def run(options, notes):
    training = Training(options, notes)
    start = training.load()
    (training.with_steps if options.taskd_steps else training.plain)(start)
    notes.end([training.model], [training.optimizer.optimizer])
    training.accelerator.end_training()
