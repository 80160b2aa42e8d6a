#!/usr/bin/env python3
"""Trains a small network on handwritten digits with MindSpore, data-parallel: an ordinary script for msrun.

    msrun --worker_num=3 --local_worker_num=3 --join=True train_mindspore.py --data digits.bin --dir out

It resumes from the newest checkpoint in --dir, so a recovery only has to start it again. Rank 0 writes checkpoints,
metrics.jsonl (one line for each step) and, at the end, result.json.
"""

import argparse
import hashlib
import json
import os
import pathlib
import struct
import sys
import time


def begun():
    """Returns the time when this process was started, in seconds since 1970."""
    with open("/proc/self/stat", "rb") as stat:
        ticks = int(stat.read().rsplit(b")", 1)[1].split()[22 - 3])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


BEGUN = begun()

import mindspore as ms  # noqa: E402
import numpy as np  # noqa: E402
from mindspore import Tensor, nn, ops  # noqa: E402
from mindspore.communication import get_group_size, get_rank, init  # noqa: E402

BATCH = 60  # over all ranks: divisible by 1 to 6
CHECKPOINTS_KEPT = 3


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, required=True, help="the digits")
    parser.add_argument("--dir", type=pathlib.Path, required=True, help="checkpoints, metrics and result")
    parser.add_argument("--steps", type=int, default=200, help="training steps in all")
    parser.add_argument("--checkpoint-every", type=int, default=20, metavar="N", help="steps between checkpoints")
    parser.add_argument("--pace-ms", type=float, default=0, help="pause in every step, to stand for a larger model")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def digits(path):
    raw = path.read_bytes()
    if raw[:8] != b"DIGITS01":
        sys.exit("%s does not hold the digits" % path)
    (images,) = struct.unpack_from("<I", raw, 8)
    pixels = np.frombuffer(raw, np.uint8, images * 64, 12).reshape(images, 64)
    return pixels.astype(np.float32) / 16, np.frombuffer(raw, np.uint8, images, 12 + images * 64).astype(np.int32)


def batch_of(step, seed, size, rank, world):
    """Returns this rank's samples of a step: a function of its arguments only, so that no state has to be stored."""
    per_epoch = size // BATCH
    order = np.random.RandomState(seed * 1000003 + step // per_epoch).permutation(size)
    start = step % per_epoch * BATCH
    return order[start : start + BATCH][rank::world]


def network():
    return nn.SequentialCell(nn.Dense(64, 128), nn.ReLU(), nn.Dense(128, 10))


def sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(aside, path):
    """Replaces `path` by `aside`: the whole file or none of it, even if the machine fails."""
    sync(aside)
    os.replace(aside, path)
    sync(path.parent)


class Checkpoints:
    """The checkpoints in a directory; rank 0 writes them, all ranks read them."""

    def __init__(self, directory):
        self.directory = directory

    def path(self, step):
        return self.directory / f"checkpoint-{step:08}.ckpt"

    def steps(self):
        return sorted(int(path.stem.split("-")[1]) for path in self.directory.glob("checkpoint-*.ckpt"))

    def save(self, step, state):
        aside = self.directory / "new.ckpt"
        parameters = [{"name": name, "data": parameter} for name, parameter in state.items()]
        ms.save_checkpoint(parameters, str(aside), append_dict={"step": step})
        replace(aside, self.path(step))
        for old in self.steps()[:-CHECKPOINTS_KEPT]:
            self.path(old).unlink()

    def load_newest(self, state):
        """Loads the newest checkpoint into `state`. Returns its step, 0 if there is none."""
        for step in reversed(self.steps()):
            try:
                found = ms.load_checkpoint(str(self.path(step)))
            except (ValueError, RuntimeError, OSError) as error:
                print(f"{self.path(step)} is passed over: {error}", file=sys.stderr, flush=True)
                continue
            for name, parameter in state.items():
                parameter.set_data(found[name].value())
            return step
        return 0


def state_of(model, optimizer):
    """Returns everything that a training step changes, by name."""
    both = list(model.parameters_dict().items()) + list(optimizer.parameters_dict().items())
    return {name: parameter for name, parameter in both}


def digest(state):
    sha = hashlib.sha256()
    for name in sorted(state):
        sha.update(name.encode())
        sha.update(np.ascontiguousarray(state[name].asnumpy()).tobytes())
    return sha


class Metrics:
    """One JSON line for each step. A line that cannot be written is left out, which is reported once."""

    def __init__(self, path):
        self.path = path
        self.generation = int(os.environ.get("TASKD_GENERATION", 0))
        self.failed = False

    def add(self, **values):
        try:
            with open(self.path, "a") as file:
                file.write(json.dumps({**values, "t": time.time(), "generation": self.generation}) + "\n")
            self.failed = False
        except OSError as error:
            if not self.failed:
                print(f"metrics not written, training goes on: {error}", file=sys.stderr, flush=True)
            self.failed = True


def main():
    args = arguments()
    imported = time.time()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_device("CPU")
    init()  # in the scheduler, which runs the same script, this call does not return
    joined = time.time()
    rank, world = get_rank(), get_group_size()
    args.dir.mkdir(parents=True, exist_ok=True)

    inputs, labels = digits(args.data)
    ms.set_seed(args.seed)
    np.random.seed(args.seed)
    model = network()
    optimizer = nn.Adam(model.trainable_params(), learning_rate=1e-3)
    loss_of = nn.CrossEntropyLoss(reduction="sum")
    both = ms.value_and_grad(lambda x, y: loss_of(model(x), y), None, optimizer.parameters)
    all_reduce = ops.AllReduce(ops.ReduceOp.SUM)

    state, checkpoints, metrics = state_of(model, optimizer), Checkpoints(args.dir), Metrics(args.dir / "metrics.jsonl")
    first = checkpoints.load_newest(state)
    if rank == 0:
        print(f"from step {first} on, in a world of {world}", flush=True)
    phases = {"begun": BEGUN, "imported": imported, "joined": joined, "built": time.time()}
    for step in range(first + 1, args.steps + 1):
        mine = batch_of(step - 1, args.seed, len(labels), rank, world)
        loss, gradients = both(Tensor(inputs[mine]), Tensor(labels[mine]))
        flat = ops.concat([loss.reshape((1,))] + [gradient.reshape((-1,)) for gradient in gradients])
        flat = all_reduce(flat) / BATCH
        parts, at = [], 1
        for gradient in gradients:
            parts.append(flat[at : at + gradient.size].reshape(gradient.shape))
            at += gradient.size
        optimizer(tuple(parts))
        if rank == 0:
            metrics.add(step=step, loss=float(flat[0].asnumpy()), **phases)
            phases = {}
            if step % args.checkpoint_every == 0:
                checkpoints.save(step, state)
        time.sleep(args.pace_ms / 1000)

    sha = digest(state)
    own = np.frombuffer(sha.digest(), np.uint8).astype(np.float32)
    same = bool((all_reduce(Tensor(own)).asnumpy() == own * world).all())
    if rank == 0:
        loss = float((loss_of(model(Tensor(inputs)), Tensor(labels)) / len(labels)).asnumpy())
        result = {"steps": args.steps, "world": world, "loss": loss, "sha256": sha.hexdigest(), "ranks_equal": same}
        print(json.dumps(result), flush=True)
        aside = args.dir / "result.new"
        aside.write_text(json.dumps(result))
        replace(aside, args.dir / "result.json")
    if not same:
        sys.exit("the ranks ended with different parameters")


if __name__ == "__main__":
    main()
