"""A small training in a framework's own way, with or without `taskd.steps`, that resumes from its own checkpoints.

It writes a line for each completed step to DIR/steps.RANK.PID.jsonl, with all bits of the loss, and at the end the hash
of this rank's parameters and optimizer to DIR/result.RANK.json. Batches depend only on the number of the step, so that
an interrupted training must end with the same bits as an undisturbed one.
"""

import argparse
import hashlib
import json
import os
import time

PROGRAMS = {
    "ddp": "plain_torch",
    "pipeline": "plain_torch",
    "torch-pipelining": "plain_torch",
    "torch-zero1": "plain_torch",
    "fsdp2": "sharded",
    "hsdp": "sharded",
    "tensor-parallel": "sharded",
    "deepspeed-zero1": "with_deepspeed",
    "accelerate": "with_accelerate",
    "hf-trainer": "with_transformers",
    "lightning": "with_lightning",
}


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--what", choices=sorted(PROGRAMS), required=True)
    parser.add_argument("--dir", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--every", type=int, default=20, help="steps from one checkpoint to the next")
    parser.add_argument(
        "--pace-ms", type=float, default=20.0, help="the pause of every step: the work of a larger model"
    )
    parser.add_argument("--taskd-steps", action="store_true")
    return parser.parse_args()


class Notes:
    """The steps that this rank has completed, and its result."""

    def __init__(self, options):
        self.options, self.rank, self.world = options, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.lines = open(os.path.join(options.dir, "steps.%d.%d.jsonl" % (self.rank, os.getpid())), "a", buffering=1)

    def pause(self):
        time.sleep(self.options.pace_ms / 1000.0)

    def step(self, number, loss):
        """Writes the line of a completed step; `loss`, a number or a tensor, is None on a rank without loss (a pipeline
        stage that is not the last)."""
        bits = None if loss is None else float(loss.detach() if hasattr(loss, "detach") else loss).hex()
        self.lines.write(json.dumps({"step": number, "loss": bits}) + "\n")

    def saved(self, number):
        """Reports that this rank's part of the checkpoint of a step is on disk. A checkpoint that not all ranks have
        reported is not loaded."""
        open(os.path.join(self.options.dir, "saved.%d.%d" % (number, self.rank)), "w").close()

    def newest(self):
        """Returns the step of the newest complete checkpoint; 0 if there is none."""
        parts = [name.split(".")[1:] for name in os.listdir(self.options.dir) if name.startswith("saved.")]
        numbers = [int(number) for number, _ in parts]
        return max((number for number in set(numbers) if numbers.count(number) == self.world), default=0)

    def end(self, modules, optimizers):
        path = os.path.join(self.options.dir, "result.%d.json" % self.rank)
        with open(path + ".part", "w") as file:
            json.dump({"sha256": digest(modules, optimizers)}, file)
        os.rename(path + ".part", path)


def digest(modules, optimizers):
    """Returns the SHA-256 over this rank's parameters, buffers and optimizer states."""
    import torch

    found = hashlib.sha256()

    def add(name, value):
        if isinstance(value, torch.Tensor):
            value = value.to_local() if hasattr(value, "to_local") else value
            value = value.detach().cpu().contiguous().numpy().tobytes()
        found.update(name.encode() + (value if isinstance(value, bytes) else repr(value).encode()))

    for module in modules:
        for name, value in sorted(module.state_dict().items()):
            add(name, value)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                for name, value in sorted(optimizer.state.get(parameter, {}).items()):
                    add(name, value)
    return found.hexdigest()


def train(program, notes):
    """Runs the loop of a program whose framework has none."""
    options, start = program.options, program.load(notes.newest())
    if not options.taskd_steps:
        for number in range(start, options.steps):
            loss = program.step(number)
            notes.pause()
            completed(program, notes, number, loss)
        return
    import taskd

    for step in taskd.steps(program.state, start=start, until=options.steps):
        with step:
            loss = program.step(step.number)
            notes.pause()
        if step.completed:
            completed(program, notes, step.number, loss)


def completed(program, notes, number, loss):
    notes.step(number, loss)
    if (number + 1) % program.options.every == 0:
        program.save(number + 1)
        notes.saved(number + 1)


def main():
    given = options()
    notes = Notes(given)
    module = __import__(PROGRAMS[given.what])
    module.run(given, notes)


if __name__ == "__main__":
    main()
