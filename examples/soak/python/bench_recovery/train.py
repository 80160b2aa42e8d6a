"""The training that bench_recovery runs under every system: the same model, data, pace and checkpoints, in a mode for
each kind of system.

    plain    configured by torchrun's environment; the loss of a rank ends this process, and the next start loads the
             checkpoint
    steps    the same with `taskd.steps` around the loop: surviving ranks keep their processes
    inproc   the loop of `plain` in NVRx's in-process restart
    torchft  a replica of one rank each, under torchft's manager

Every rank writes one line for each step that it has completed to DIR/steps.RANK.PID.jsonl: time, rank, size of the
world, life of the loop, and the hash of the state after the step. Rank 0 saves a checkpoint, DIR/checkpoint, every few
steps. If there is a file DIR/fault.RANK, that rank's next step raises an exception, whose time is written to
DIR/struck.RANK.

Imports and first uses that only one system needs are counted for that system only.
"""

import argparse
import hashlib
import json
import os
import struct
import time
from datetime import timedelta

import torch
import torch.distributed as dist

CHECKPOINT_EVERY = 10  # steps
SAMPLES = 32
# time limit of a collective operation; longer than any start takes
LOST_AFTER = timedelta(seconds=10)

parser = argparse.ArgumentParser()
parser.add_argument("mode", choices=("plain", "steps", "inproc", "torchft"))
parser.add_argument("--dir", required=True)
parser.add_argument("--state-mib", type=float, default=1.0)
parser.add_argument("--pace-ms", type=float, default=20.0)
parser.add_argument("--steps", type=int, help="ends before this one; without end if not given")
parser.add_argument("--tuning", type=json.loads, default={}, help="what the system is tuned by, as JSON")
options = parser.parse_args()
torch.set_num_threads(1)


class Momentum(torch.optim.Optimizer):
    """Gradient descent with momentum. torch's own optimizer imports a compiler when it is created (about 1 s), which
    would count in each restart of each system; the method that imports it is overridden here."""

    def __init__(self, parameters):
        super().__init__(parameters, {})
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter] = {"momentum": torch.zeros_like(parameter)}

    def add_param_group(self, group):
        self.param_groups.append(dict(group, params=list(group["params"])))

    @torch.no_grad()
    def step(self):
        for parameter, state in self.state.items():
            state["momentum"].mul_(0.9).add_(parameter.grad)
            parameter.sub_(state["momentum"], alpha=1e-3)


class Training:
    """The model and its optimizer, with one step of both."""

    def __init__(self):
        torch.manual_seed(7)
        weights = options.state_mib * 2**20 / 8  # each is a parameter and its momentum; width**2 + 66 * width of them
        width = max(1, int((weights + 33**2) ** 0.5) - 33)
        self.model = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, width))
        self.optimizer = Momentum(self.model.parameters())
        self.lines = None

    def has_rank(self, rank, life=0):
        """Sets rank and life of the loop for all further lines."""
        self.rank, self.life = rank, life
        self.lines = open(path_of("steps", rank, "%d.jsonl" % os.getpid()), "a", buffering=1)

    def tensors(self):
        """Yields the whole state: each parameter with its momentum."""
        for parameter, state in self.optimizer.state.items():
            yield parameter.detach()
            yield state["momentum"]

    def gradients(self, step, rank):
        """Runs forward and backward on the rank's own samples of this step."""
        time.sleep(options.pace_ms / 1000.0)  # stands for a larger model
        samples = torch.randn(SAMPLES, 64, generator=torch.Generator().manual_seed(1 + 64 * step + rank))
        for parameter in self.model.parameters():
            parameter.grad = None
        self.model(samples).square().mean().backward()
        return torch.cat([parameter.grad.view(-1) for parameter in self.model.parameters()])

    def update(self, mean):
        """Applies the optimizer's step to the mean of all ranks' gradients."""
        at = 0
        for parameter in self.model.parameters():
            parameter.grad.copy_(mean[at : at + parameter.numel()].view_as(parameter))
            at += parameter.numel()
        self.optimizer.step()

    def step(self, step, rank, world):
        """Runs one complete step, with torch's own groups."""
        flat = self.gradients(step, rank)
        dist.all_reduce(flat)
        self.update(flat.div_(world))

    def completed(self, step, world):
        """Writes the line of a completed step."""
        at = time.monotonic()
        found = hashlib.sha256()
        for tensor in self.tensors():
            found.update(tensor.numpy())
        line = {"t": at, "step": step, "rank": self.rank, "pid": os.getpid(), "world": world, "life": self.life}
        self.lines.write(json.dumps(dict(line, sha256=found.hexdigest())) + "\n")

    def save(self, step):
        """Saves a checkpoint before this step, completely or not at all, if one is due."""
        if step % CHECKPOINT_EVERY == 0:
            parts = [struct.pack("<q", step)] + [tensor.numpy().tobytes() for tensor in self.tensors()]
            write("checkpoint", b"".join(parts))

    def load(self):
        """Loads the checkpoint, if there is one; returns the step to continue with."""
        try:
            with open(path_of("checkpoint"), "rb") as file:
                data = bytearray(file.read())
        except FileNotFoundError:
            return 0
        at = 8
        for tensor in self.tensors():
            size = tensor.numel() * tensor.element_size()
            tensor.copy_(torch.frombuffer(data, dtype=tensor.dtype, count=tensor.numel(), offset=at).view_as(tensor))
            at += size
        return struct.unpack_from("<q", data)[0]


def path_of(*parts):
    return os.path.join(options.dir, ".".join(str(part) for part in parts))


def write(name, data):
    """Writes a file completely or not at all."""
    new = path_of(name, os.getpid(), "new")
    with open(new, "wb") as file:
        file.write(data)
    os.rename(new, path_of(name))


def strike(rank):
    """Raises an exception once, if it is requested."""
    try:
        os.remove(path_of("fault", rank))
    except FileNotFoundError:
        return
    write("struck.%d" % rank, repr(time.monotonic()).encode())
    raise MemoryError("injected: there is no memory for this step")


def plain(life=0, ping=None):
    """Runs the loop as it is written for torchrun."""
    dist.init_process_group("gloo", timeout=LOST_AFTER)
    rank, world = dist.get_rank(), dist.get_world_size()
    training = Training()
    training.has_rank(rank, life)
    step = training.load()
    while options.steps is None or step < options.steps:
        strike(rank)
        training.step(step, rank, world)
        training.completed(step, world)
        step += 1
        if rank == 0:
            training.save(step)
        if ping:
            ping()
    dist.destroy_process_group()


def steps():
    """Runs the same in taskd's step loop."""
    import taskd

    dist.init_process_group("gloo", timeout=LOST_AFTER)
    training = Training()
    computed = noted = None
    rank = 0  # during a warm-up, whose results are discarded

    def with_rank():
        nonlocal rank
        rank = dist.get_rank()
        training.has_rank(rank)

    state = {"model": training.model, "optimizer": training.optimizer}
    for step in taskd.steps(state, until=options.steps, start=training.load(), with_rank=with_rank):
        done = None if step.warming else step.committed
        if done is not None and done == computed != noted:  # a copied step was not completed here
            training.completed(done, dist.get_world_size())
            noted = done
            if rank == 0:
                training.save(done + 1)
        with step:
            if not step.warming:
                strike(rank)
            training.step(step.number, rank, dist.get_world_size())
            computed = None if step.warming else step.number
    dist.destroy_process_group()


def inproc():
    """Runs the plain loop in NVRx's wrapper, which calls it again in each surviving rank."""
    import nvidia_resiliency_ext.inprocess as inprocess

    settings = {name: timedelta(seconds=seconds) for name, seconds in options.tuning["seconds"].items()}
    active = options.tuning.get("active")
    if active is not None:  # higher ranks are a warm reserve
        assign = inprocess.rank_assignment
        settings["rank_assignment"] = inprocess.Compose(assign.MaxActiveWorldSize(active), assign.ShiftRanks())
    port = int(os.environ["TRAIN_PORT"])

    @inprocess.Wrapper(**settings)
    def entry(call_wrapper: inprocess.CallWrapper = None):
        os.environ["MASTER_PORT"] = str(port + call_wrapper.iteration)  # a store for each life
        plain(call_wrapper.iteration, call_wrapper.ping)

    entry()


def torchft():
    """Runs a replica; a new one copies its state from a living one."""
    from torchft import Manager, ProcessGroupGloo

    rank, training = int(os.environ["REPLICA_GROUP_ID"]), Training()
    training.has_rank(rank)

    def load(state):
        for tensor, value in zip(training.tensors(), state):
            tensor.copy_(value)

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # for this replica's one rank
    manager = Manager(
        pg=ProcessGroupGloo(timeout=LOST_AFTER),
        load_state_dict=load,
        state_dict=lambda: [tensor.clone() for tensor in training.tensors()],
        min_replica_size=1,
        replica_id="bench_%d" % rank,
        hostname="127.0.0.1",
        timeout=LOST_AFTER,
        heartbeat_interval=timedelta(milliseconds=options.tuning["heartbeat_ms"]),
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
    )
    while True:
        manager.start_quorum()
        flat = training.gradients(manager.current_step(), rank)
        manager.allreduce(flat).wait()  # not its DDP, in which survivors of a lost peer die
        if manager.should_commit():
            training.update(flat)
            if manager.is_participating():  # a new rank only copies in its first step
                training.completed(manager.current_step() - 1, manager.num_participants())


{"plain": plain, "steps": steps, "inproc": inproc, "torchft": torchft}[options.mode]()
