"""DDP with the few lines that keep a rank's process when another one is lost: `taskd.steps` around the loop.

Every rank trains on samples of its own, with dropout and batch normalisation. It writes one line for each completed step to
DIR/steps.RANK.PID.jsonl, with the hash of everything that the next step depends on, and at the end the hash to
DIR/result.RANK.json.
"""

import argparse
import hashlib
import json
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import taskd

HASHED_MIB_MAX = 8  # of more state only the end is hashed: it would take longer than the steps

parser = argparse.ArgumentParser()
parser.add_argument("--dir", required=True)
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--state-mib", type=float, default=1.0)
parser.add_argument("--pace-ms", type=float, default=20.0)
options = parser.parse_args()

dist.init_process_group("gloo")
width = max(16, int((options.state_mib * 2**20 / 12) ** 0.5))  # parameter and two moments: 12 bytes for each weight
torch.manual_seed(7)
model = torch.nn.Sequential(
    torch.nn.Linear(64, width), torch.nn.BatchNorm1d(width), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(width, width)
)
model = DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loss, trained, written, lines = None, None, None, None


def with_rank():
    """What needs the rank: a process that is to take another's place knows it when all else is built."""
    global lines
    rank = dist.get_rank()
    torch.manual_seed(100 + rank)
    lines = open(os.path.join(options.dir, "steps.%d.%d.jsonl" % (rank, os.getpid())), "a", buffering=1)


def state():
    """SHA-256 over model, optimizer and random numbers."""
    found = hashlib.sha256(torch.get_rng_state().numpy())
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode() + value.numpy().tobytes())
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for name, value in sorted(optimizer.state[parameter].items()):
                found.update(name.encode() + value.numpy().tobytes())
    return found.hexdigest()


def completed(number):
    """Notes a step, once all of it is done: that is known when the next one begins. Who is new has not computed its loss."""
    global written
    if number is None or number == written:
        return
    written, line = number, {"t": time.monotonic(), "step": number}
    line["loss"] = float(loss.detach()) if number == trained else None
    line["sha256"] = state() if options.state_mib <= HASHED_MIB_MAX else None
    lines.write(json.dumps(line) + "\n")


for step in taskd.steps({"model": model, "optimizer": optimizer}, until=options.steps, with_rank=with_rank):
    if not step.warming:
        completed(step.committed)
    with step:
        optimizer.zero_grad()
        loss = model(torch.randn(16, 64)).square().mean()
        loss.backward()
        optimizer.step()
        time.sleep(options.pace_ms / 1000.0)
        trained = None if step.warming else step.number
completed(options.steps - 1)

result = {"loss": float(loss.detach()), "sha256": state()}
whole = os.path.join(options.dir, "result.%d.json" % dist.get_rank())
with open(whole + ".new", "w") as file:
    json.dump(result, file)
os.rename(whole + ".new", whole)
dist.destroy_process_group()
