"""Hugging Face's Trainer, which has its own loop and checkpoints."""

import os

import torch
from plain_torch import WIDTH
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments


class Samples(Dataset):
    def __init__(self, count):
        self.inputs = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, at):
        return {"inputs": self.inputs[at], "labels": torch.sin(2 * self.inputs[at])}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, WIDTH))

    def forward(self, inputs, labels):
        logits = self.layers(inputs)
        return {"loss": nn.functional.mse_loss(logits, labels), "logits": logits}


class Saved(TrainerCallback):
    def __init__(self, notes):
        self.notes = notes

    def on_save(self, args, state, control, **_):
        if state.global_step < state.max_steps:  # from a checkpoint of the last step the Trainer would train one more
            self.notes.saved(state.global_step)


class Noted(Trainer):
    notes = None

    def compute_loss(self, *given, **named):
        loss = super().compute_loss(*given, **named)
        self.notes.pause()
        self.notes.step(self.state.global_step, loss[0] if isinstance(loss, tuple) else loss)
        return loss


def run(options, notes):
    torch.manual_seed(1)
    arguments = TrainingArguments(
        output_dir=options.dir,
        use_cpu=True,
        max_steps=options.steps,
        per_device_train_batch_size=8,
        save_steps=options.every,
        save_strategy="steps",
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        seed=3,
    )
    trainer = Noted(model=Model(), args=arguments, train_dataset=Samples(1024), callbacks=[Saved(notes)])
    trainer.notes, newest = notes, notes.newest()
    trainer.train(resume_from_checkpoint=os.path.join(options.dir, "checkpoint-%d" % newest) if newest else None)
    notes.end([trainer.model], [getattr(trainer.optimizer, "optimizer", trainer.optimizer)])
    torch.distributed.destroy_process_group()
