"""DDP with the few lines that keep a rank's process when another rank is lost: `taskd.steps` around the loop.

Every rank trains on its own samples, with dropout and batch normalisation. It writes one line for each completed step
to DIR/steps.RANK.PID.jsonl, with the hash of everything that the next step depends on, and at the end the hash to
DIR/result.RANK.json.

Two files control it: DIR/until contains the step before which it ends, and DIR/fault.RANK names a fault of this rank's
next step (FAULTS below). When the fault occurs, its time is written to DIR/struck.RANK, and DIR/fault.RANK is removed.

State beyond TRAINED_MIB is ballast that no gradient changes, as of a frozen model that is adapted: steps take the same
time with it, so any additional time of a recovery is due to its size.

With --sharded each rank has a part of parameters and optimizer (FSDP) that no other rank has: a lost rank's part comes
from a checkpoint, so --resumes belongs to it.
"""

import argparse
import faulthandler
import hashlib
import json
import os
import signal
import socket
import stat
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import taskd

HASHED_MIB_MAX = 8  # larger state is hashed only at the end: a hash would take longer than a step
TRAINED_MIB = 1.0  # parameters and optimizer
BALLAST_PARTS = 50
FAULTS = ("exception", "collective", "nan", "late", "torn", "commit")
COMMIT_SECONDS = 0.5  # time of the fault `commit` in its commit window: the other ranks begin the next step
BUCKETS = 4  # approximate number for gradients: the first is reduced while the last is still computed

parser = argparse.ArgumentParser()
parser.add_argument("--dir", required=True)
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--state-mib", type=float, default=1.0)
parser.add_argument("--pace-ms", type=float, default=20.0)
parser.add_argument(
    "--resumes",
    action="store_true",
    help="from the newest emergency checkpoint, with the bits of a run that never ended",
)
parser.add_argument("--sharded", action="store_true", help="each rank has a part of the state (FSDP)")
parser.add_argument("--timeout-s", type=float, default=1800.0, help="after which a collective operation has failed")
parser.add_argument("--children", type=int, help="leaves children of every kind, under this number")
options = parser.parse_args()

faulthandler.register(signal.SIGUSR1)  # a rank that receives SIGUSR1 writes its stacks to stderr
dist.init_process_group("gloo", timeout=timedelta(seconds=options.timeout_s))
trained_mib = min(options.state_mib, TRAINED_MIB)
width = max(16, int((trained_mib * 2**20 / 12) ** 0.5))  # parameter and two moments: 12 bytes for each weight
torch.manual_seed(7)
model = torch.nn.Sequential(
    torch.nn.Linear(64, width),
    torch.nn.BatchNorm1d(width),
    torch.nn.ReLU(),
    torch.nn.Dropout(0.1),
    torch.nn.Linear(width, width),
)
if options.sharded:
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        fully_shard(layer)
    fully_shard(model)
else:
    # Without `find_unused_parameters`, DDP makes its buckets again after its first step, and sums in another order.
    bucket = trained_mib / 3 / BUCKETS
    model = DistributedDataParallel(model, bucket_cap_mb=bucket, find_unused_parameters=options.resumes)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
part = int((options.state_mib - trained_mib) * 2**20 / 4 / BALLAST_PARTS)
ballast = torch.nn.ParameterList(
    torch.nn.Parameter(torch.full((part,), float(at)), requires_grad=False)
    for at in range(BALLAST_PARTS if part else 0)
)
loss, trained, ended, written, rank, lines = None, None, None, None, None, None
fault = None  # the fault of this step


def with_rank():
    """Does what needs the rank: a standby knows its rank only after all else is built."""
    global rank, lines
    rank = dist.get_rank()
    torch.manual_seed(100 + rank)
    if options.children is not None:
        import children

        children.leave(options.children)
    lines = open(os.path.join(options.dir, "steps.%d.%d.jsonl" % (rank, os.getpid())), "a", buffering=1)


def state():
    """Returns the SHA-256 over model, optimizer and random numbers."""
    found = hashlib.sha256(torch.get_rng_state().numpy())
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode() + own(value))
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for name, value in sorted(optimizer.state[parameter].items()):
                found.update(name.encode() + own(value))
    for one in ballast:
        found.update(one.numpy())
    return found.hexdigest()


def local(tensor):
    """Returns this rank's part of a tensor."""
    return getattr(tensor, "to_local", lambda: tensor)()


def own(tensor):
    """Returns the bytes of this rank's part of a tensor."""
    return local(tensor).detach().numpy().tobytes()


def completed(number):
    """Writes the line of a step that is completed, which is known when the next one begins, possibly after a recovery.
    A replacement has not computed the step's loss."""
    global written
    if number is None or number == written:
        return
    is_own = number == trained
    written, line = number, {"t": ended if is_own else time.monotonic(), "step": number}
    line["loss"] = float(loss.detach()) if is_own else None
    line["sha256"] = state() if options.state_mib <= HASHED_MIB_MAX else None
    lines.write(json.dumps(line) + "\n")


def path_of(name):
    return os.path.join(options.dir, "%s.%d" % (name, rank))


def read(path):
    """Returns the content of a file; None if there is no file."""
    try:
        with open(path) as file:
            return file.read()
    except FileNotFoundError:
        return None


def write(path, text):
    """Writes a file completely or not at all."""
    with open(path + ".new", "w") as file:
        file.write(text)
    os.rename(path + ".new", path)


def strikes(name):
    """Returns True if this fault occurs here and now, which it does once."""
    global fault
    if fault != name:
        return False
    fault = None
    os.remove(path_of("fault"))
    write(path_of("struck"), repr(time.monotonic()))
    return True


def spoil(grad):
    """Returns a gradient, or NaN if the fault `nan` occurs, before another rank has received it."""
    return grad * float("nan") if strikes("nan") else grad


def cut(grad):
    """Cuts connections at the gradient of the first layer, while the first buckets are reduced (fault `collective`)."""
    if not strikes("collective"):
        return
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            one = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue  # closed meanwhile
        with one:
            try:
                # not the connection to the store
                if one.family == socket.AF_INET and one.getpeername()[1] != int(os.environ["MASTER_PORT"]):
                    one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # not connected any more


def check():
    """Raises FloatingPointError if a gradient is not finite, on all ranks: the mean brings one's NaN to all."""
    if not all(bool(local(parameter.grad).isfinite().all()) for parameter in model.parameters()):
        raise FloatingPointError("a gradient of step %d is not a number" % step.number)


if not options.sharded:  # FSDP computes gradients of other tensors
    next(model.parameters()).register_hook(cut)
training = {"model": model, "optimizer": optimizer}
if part:
    training["ballast"] = ballast
start = options.resumes and taskd.load_checkpoint(training) or 0
for step in taskd.steps(training, start=start, until=options.steps, retry_on=[FloatingPointError], with_rank=with_rank):
    if not step.warming:
        completed(step.committed)
        if step.number >= int(read(os.path.join(options.dir, "until")) or options.steps):
            break
        fault = read(path_of("fault"))
    else:
        fault = None
    with step:
        if strikes("exception"):
            raise MemoryError("injected: there is no memory for step %d" % step.number)
        optimizer.zero_grad()
        loss = model(torch.randn(16, 64)).square().mean()
        loss.register_hook(spoil)
        loss.backward()
        check()
        if strikes("late"):  # the other ranks commit the step
            raise MemoryError("injected: there is no memory to commit step %d" % step.number)
        optimizer.step()
        if part:
            ballast[step.number % BALLAST_PARTS].add_(1.0)  # a missing copy would be detected
        if strikes("torn"):
            raise MemoryError("injected: there is no memory to end step %d" % step.number)
        if strikes("commit"):
            time.sleep(COMMIT_SECONDS)
        time.sleep(options.pace_ms / 1000.0)
        trained, ended = None if step.warming else step.number, time.monotonic()
completed(step.committed)

weights = hashlib.sha256(b"".join(own(one) for one in model.parameters())).hexdigest()
result = {"loss": float(loss.detach()), "sha256": state(), "weights": weights}
write(os.path.join(options.dir, "result.%d.json" % rank), json.dumps(result))
dist.destroy_process_group()
