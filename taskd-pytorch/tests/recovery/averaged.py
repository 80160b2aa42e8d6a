"""Replicas until step 20; from then on each rank trains by itself, and parameters are averaged at times (local SGD).
LOCAL: `ddp`: under `no_sync`, `hand`: without DDP, whose gradients are all-reduced by hand, `flat`: so too, in
one operation, as the parameters are, `quiet`: as `ddp`, and nothing else is asked of a group, `always`: under `no_sync`
from the first step on, with averages where checksums are taken anyway, `hook`: by torch's own hook, optimizer and
averager; `power`: no local SGD, but gradients that PowerSGD compresses. The loss is all-reduced in every step, as for a
log. Ranks are killed as in `torch_training.rs`; `HOLD`: at that step a rank that lives completes the step after it was
given up."""

import hashlib
import os
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

import taskd

dist.init_process_group("gloo")
rank, size, how = dist.get_rank(), dist.get_world_size(), os.environ["LOCAL"]
torch.manual_seed(7)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
model = net if how in ("hand", "flat") else DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
begins = {"always": 0, "power": 99, "hook": 99}.get(how, 20)
if how == "hook":
    alone, _ = dist.new_subgroups(1)
    state = post_localSGD_hook.PostLocalSGDState(process_group=None, subgroup=alone, start_localSGD_iter=20)
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    averager = PeriodicModelAverager(period=4, warmup_steps=20)
    optimizer = PostLocalSGDOptimizer(optimizer, averager)
elif how == "power":
    state = powerSGD_hook.PowerSGDState(
        process_group=None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=0.1
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def die(step):
    name = "%d:%d" % (rank, step.number)
    mark = os.environ["RESULT"] + name
    if name in os.environ["DIE"].split() and not step.warming and not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getpid(), 9)


def hold(step):
    if os.environ["HOLD"] == str(step.number) and not os.path.exists(os.environ["RESULT"] + "held"):
        open(os.environ["RESULT"] + "held", "w").close()
        from taskd import _session

        limit = time.monotonic() + 30
        while not _session.current.given_up and time.monotonic() < limit:
            time.sleep(0.001)


def average(tensors):
    if how == "flat":
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(flat)
        flat /= size
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
            tensor.copy_(part.view_as(tensor))
        return
    for tensor in tensors:
        dist.all_reduce(tensor)
        tensor /= size


for step in taskd.steps({"model": model, "optimizer": optimizer}, until=40):
    with step:
        optimizer.zero_grad()
        given = torch.randn(4, 8, generator=torch.Generator().manual_seed(1000 * step.number + rank))
        is_local = step.number >= begins
        if model is not net:
            model.require_backward_grad_sync = not is_local  # as `no_sync` does
        loss = model(given).square().mean()
        die(step)
        loss.backward()
        hold(step)
        if model is net and not is_local:
            average([one.grad for one in net.parameters()])
        optimizer.step()
        if is_local and (step.number in (1, 3, 7, 15, 31) if how == "always" else step.number % 4 == 3):
            with torch.no_grad():
                average(list(net.parameters()))
        if not (how == "quiet" and is_local):
            dist.all_reduce(loss.detach())
        if how == "flat":
            dist.all_reduce(loss.detach() + 1)
digest = hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in net.parameters()))
with open("%s.%d" % (os.environ["RESULT"], rank), "w") as result:
    result.write("0 " + digest.hexdigest())
