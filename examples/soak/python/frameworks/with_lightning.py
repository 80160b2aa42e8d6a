"""Lightning's Trainer, which has its own loop, and checkpoints at the end of each epoch."""

import os

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from plain_torch import WIDTH
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH = 8


class Model(lightning.LightningModule):
    def __init__(self, options, notes):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, WIDTH))
        self.notes = notes

    def training_step(self, batch, _):
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.layers(inputs), targets)
        self.notes.pause()
        self.notes.step(self.global_step, loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def newest(directory):
    """Returns the newest checkpoint, which gets its name only when it is complete."""
    names = [name for name in os.listdir(directory) if name.endswith(".ckpt")] if os.path.isdir(directory) else []
    return max(
        (os.path.join(directory, name) for name in names),
        key=lambda path: int(path.split("step=")[1].split(".")[0]),
        default=None,
    )


def run(options, notes):
    torch.manual_seed(1)
    inputs = torch.randn(options.every * BATCH * notes.world, WIDTH, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(inputs, torch.sin(2 * inputs)), batch_size=BATCH, shuffle=True)
    directory = os.path.join(options.dir, "checkpoints")
    saves = ModelCheckpoint(
        dirpath=directory, filename="{step}", save_top_k=-1, every_n_epochs=1, save_on_train_epoch_end=True
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=notes.world,
        max_epochs=options.steps // options.every,
        logger=False,
        callbacks=[saves],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Model(options, notes)
    trainer.fit(model, loader, ckpt_path=newest(directory))
    notes.end([model.layers], trainer.optimizers)
