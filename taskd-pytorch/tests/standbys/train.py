"""A small training, unmodified: DDP over gloo, a checkpoint, and what the test wants to know of it."""

import time

BEGUN = time.monotonic_ns()

import ctypes
import json
import os
import sys

IS_WARM = "torch.distributed" in sys.modules

import numpy
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

IMPORTED = time.monotonic_ns()
# Functions that return the number of threads of a library, by the beginning of its file's name.
ASKS = (
    ("libgomp", "omp_get_max_threads"),
    ("libtorch_cpu", "MKL_Get_Max_Threads"),
    ("libscipy_openblas", "scipy_openblas_get_num_threads64_"),
)


def libraries():
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if ".so" in line}
    found = {}
    for path in paths:
        for prefix, name in ASKS:
            if os.path.basename(path).startswith(prefix):
                ask = getattr(ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY), name, None)
                found.update({name: ask()} if ask else {})
    return found


STEPS = int(sys.argv[1])
drawn = [float(torch.rand(1)), float(numpy.random.random())]
seed_was = torch.initial_seed()
torch.manual_seed(5)
generator = torch.Generator().manual_seed(int(os.environ["RANK"]))
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
losses, first = [], 0
for step in range(STEPS):
    optimizer.zero_grad()
    inputs = torch.randn(8, 16, generator=generator)
    loss = torch.nn.functional.cross_entropy(model(inputs), torch.arange(8) % 4)
    loss.backward()
    optimizer.step()
    losses.append(loss.item().hex())
    first = first or time.monotonic_ns()
big = torch.randn(600, 600, generator=generator)
total = float((big @ big).sum())  # in parallel, where there are threads for it
with open("save-%s" % os.environ["TASKD_PROC"], "wb") as file:
    torch.save(model.state_dict(), file)
out = "report-%s" % os.environ["TASKD_PROC"]
with open(out + ".new", "w") as file:
    json.dump(
        dict(
            begun=BEGUN,
            imported=IMPORTED,
            first=first,
            is_warm=IS_WARM,
            losses=losses,
            total=total.hex(),
            drawn=drawn,
            seed_was=str(seed_was),
            threads=torch.get_num_threads(),
            libraries=libraries(),
            cpus=len(os.sched_getaffinity(0)),
            interop=torch.get_num_interop_threads(),
            omp=os.environ.get("OMP_NUM_THREADS"),
            tasks=len(os.listdir("/proc/self/task")),
            hooked=[function.__module__.split(".")[0] for function in (torch.save, torch.serialization.save)]
            + [torch.save.__wrapped__ is not None, torch.save is torch.serialization.save],
            group=type(dist.group.WORLD).__name__,
            group_is_ours=hasattr(dist.group.WORLD, "_inner"),
        ),
        file,
    )
os.rename(out + ".new", out)
time.sleep(600)
