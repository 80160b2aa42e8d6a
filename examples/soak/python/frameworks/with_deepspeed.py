"""ZeRO-1 with DeepSpeed, with its own checkpoints."""

import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch
import torch.distributed as dist
from plain_torch import WIDTH, samples
from run import train
from torch import nn

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else it is compiled, and some operations bypass gloo

CONFIG = {
    "train_micro_batch_size_per_gpu": 16,
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
    "gradient_clipping": 1.0,
    "steps_per_print": 1_000_000,
}


class Training:
    def __init__(self, options, notes):
        self.options, self.rank = options, notes.rank
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, WIDTH))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)

    @property
    def state(self):
        return {"model": self.engine.module, "optimizer": self.engine.optimizer}

    def step(self, number):
        inputs, targets = samples(number, self.rank)
        loss = nn.functional.mse_loss(self.engine(inputs), targets)
        self.engine.backward(loss)
        self.engine.step()
        return loss.item()

    def save(self, number):
        self.engine.save_checkpoint(self.options.dir, tag="checkpoint.%d" % number)

    def load(self, number):
        if number:
            self.engine.load_checkpoint(self.options.dir, tag="checkpoint.%d" % number)
        return number


def run(options, notes):
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    training = Training(options, notes)
    train(training, notes)
    notes.end([training.engine.module], [training.engine.optimizer.optimizer])
    dist.destroy_process_group()
