#!/usr/bin/env python3
"""Trains a small network on handwritten digits, data-parallel over gloo: an ordinary script for torchrun.

    torchrun --nproc-per-node 4 train_digits.py --dir out

It resumes from the newest checkpoint in --dir, so a recovery only has to start it again. Rank 0 writes checkpoints,
metrics.jsonl (one line for each step) and, at the end, result.json.
"""

import argparse
import gzip
import hashlib
import importlib.util
import io
import json
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 64  # over all ranks
CHECKPOINTS_KEPT = 3


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=pathlib.Path, required=True, help="checkpoints, metrics and result")
    parser.add_argument("--steps", type=int, default=400, help="training steps in all")
    parser.add_argument("--checkpoint-every", type=int, default=50, metavar="N", help="steps between checkpoints")
    parser.add_argument("--pace-ms", type=float, default=0, help="pause in every step, to stand for a larger model")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def digits():
    """Returns the 1797 digits of scikit-learn, from its data file: an import of scikit-learn takes a second."""
    package = importlib.util.find_spec("sklearn").submodule_search_locations[0]
    with gzip.open(os.path.join(package, "datasets", "data", "digits.csv.gz"), "rt") as file:
        rows = torch.tensor([[float(cell) for cell in line.split(",")] for line in file])
    return rows[:, :64] / 16.0, rows[:, 64].long()


def network():
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10))


def batch_of(step, seed, size, rank, world):
    """Returns this rank's samples of a step: a function of its arguments only, so that no state has to be stored."""
    per_epoch = size // BATCH
    shuffle = torch.Generator().manual_seed(seed * 1000003 + step // per_epoch)
    start = step % per_epoch * BATCH
    return torch.randperm(size, generator=shuffle)[start : start + BATCH][rank::world]


def write_whole(path, data):
    """Writes the whole file or none of it, even if the machine fails: to a temporary file, synced, renamed, synced."""
    aside = path.with_name(path.name + ".tmp")
    try:
        with open(aside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class Checkpoints:
    """The checkpoints in a directory; rank 0 writes them, all ranks read them."""

    def __init__(self, directory, rank):
        self.directory = directory
        self.rank = rank
        self.failed = False

    def path(self, step):
        return self.directory / f"checkpoint-{step:08}.pt"

    def steps(self):
        return sorted(int(path.stem.split("-")[1]) for path in self.directory.glob("checkpoint-*.pt"))

    def save(self, step, state):
        """Writes a checkpoint. A full disk costs checkpoints, not the training: it is reported once and retried
        later."""
        data = io.BytesIO()
        torch.save(state, data)
        try:
            write_whole(self.path(step), data.getbuffer())
            for old in self.steps()[:-CHECKPOINTS_KEPT]:
                self.path(old).unlink()
            self.failed = False
        except OSError as error:
            if not self.failed:
                print(f"checkpoint of step {step} not written, training goes on: {error}", file=sys.stderr, flush=True)
            self.failed = True

    def newest(self):
        """Returns the newest checkpoint that rank 0 can load; None if there is none."""
        state, step = None, -1
        if self.rank == 0:
            for step in reversed(self.steps()):
                state = self.load(step)
                if state is not None:
                    break
            else:
                step = -1
        chosen = torch.tensor(step)
        dist.broadcast(chosen, src=0)
        if self.rank != 0 and chosen.item() >= 0:
            state = self.load(chosen.item())
            if state is None:
                raise RuntimeError(f"{self.path(chosen.item())} loads on rank 0 but not on rank {self.rank}")
        return state

    def load(self, step):
        try:
            return torch.load(self.path(step), weights_only=True)
        except Exception as error:
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            print(f"{self.path(step)} is passed over: {why}", file=sys.stderr, flush=True)
            return None


def random_states(rank, world):
    """Returns every rank's random state, on rank 0: dropout draws different numbers on every rank."""
    own = torch.get_rng_state()
    states = [torch.empty_like(own) for _ in range(world)] if rank == 0 else None
    dist.gather(own, states, dst=0)
    return states


def bytes_of(state):
    """Yields a state's content in a fixed order: tensors as their bytes, everything else as its text."""
    if isinstance(state, torch.Tensor):
        yield state.detach().numpy().tobytes()
    elif isinstance(state, dict):
        for key in sorted(state, key=str):
            yield str(key).encode()
            yield from bytes_of(state[key])
    elif isinstance(state, (list, tuple)):
        for item in state:
            yield from bytes_of(item)
    else:
        yield repr(state).encode()


def digest(*states):
    sha = hashlib.sha256()
    for part in bytes_of(states):
        sha.update(part)
    return sha


def same_everywhere(model, world):
    """Returns True if all ranks have the same parameters, bit by bit."""
    own = torch.frombuffer(bytearray(digest(model.state_dict()).digest()), dtype=torch.uint8)
    all_of_them = [torch.empty_like(own) for _ in range(world)]
    dist.all_gather(all_of_them, own)
    return all(torch.equal(own, other) for other in all_of_them)


class Metrics:
    """One JSON line for each step. A line that cannot be written is left out, which is reported once."""

    def __init__(self, path):
        self.path = path
        self.generation = int(os.environ.get("TASKD_GENERATION", 0))
        self.failed = False

    def add(self, step, loss):
        line = json.dumps({"step": step, "loss": loss, "t": time.time(), "generation": self.generation})
        try:
            with open(self.path, "a") as file:
                file.write(line + "\n")
            self.failed = False
        except OSError as error:
            if not self.failed:
                print(f"metrics of step {step} not written, training goes on: {error}", file=sys.stderr, flush=True)
            self.failed = True


def main():
    args = arguments()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    args.dir.mkdir(parents=True, exist_ok=True)

    inputs, labels = digits()
    torch.manual_seed(args.seed)  # the same parameters on all ranks,
    model = network()
    torch.manual_seed(args.seed * 1000003 + rank)  # but different dropout
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    checkpoints, first = Checkpoints(args.dir, rank), 0
    state = checkpoints.newest()
    if state is not None:
        first = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"][rank])

    # find_unused_parameters=True because it keeps DDP's first gradient buckets. Otherwise DDP makes them again after
    # the first step, in another order, and with three or more ranks the sums of a resumed run differ in their last bits
    # from those of an uninterrupted run.
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    metrics = Metrics(args.dir / "metrics.jsonl")
    for step in range(first + 1, args.steps + 1):
        mine = batch_of(step - 1, args.seed, len(labels), rank, world)
        loss = nn.functional.cross_entropy(ddp(inputs[mine]), labels[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            metrics.add(step, loss.item())
        if step % args.checkpoint_every == 0:
            random = random_states(rank, world)
            if rank == 0:
                state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
                checkpoints.save(step, {**state, "random": random})
        time.sleep(args.pace_ms / 1000)

    same = same_everywhere(model, world)
    if rank == 0:
        model.eval()
        with torch.no_grad():
            loss = nn.functional.cross_entropy(model(inputs), labels).item()
        sha = digest(model.state_dict(), optimizer.state_dict(), torch.get_rng_state()).hexdigest()
        result = json.dumps({"steps": args.steps, "world": world, "loss": loss, "sha256": sha, "ranks_equal": same})
        print(result, flush=True)
        try:
            write_whole(args.dir / "result.json", result.encode())
        except OSError as error:
            print(f"result.json not written: {error}", file=sys.stderr, flush=True)
    dist.barrier()
    dist.destroy_process_group()
    if not same:
        sys.exit("the ranks ended with different parameters")


if __name__ == "__main__":
    main()
