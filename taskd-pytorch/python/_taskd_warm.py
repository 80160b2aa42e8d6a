"""What a process that waits for its rank does with PyTorch: a training step ahead of time, and what must be as before it.

torch imports half of itself only when it is used first, in the first step of an optimizer for instance. A template takes that step
here, in a group of its own that is gone afterwards. For Python 3.8 and later; every function is called by `_taskd_standby.py`,
and does nothing where torch was not imported.
"""

import ctypes
import functools
import gc
import io
import os
import sys

DEVICES = ("cuda", "xpu", "npu", "mlu", "hpu")  # whose contexts do not survive a fork
# DDP imports them when it is made. What is the default group then, functions of theirs have as the default of an argument, for
# good: they are to find that there is none.
BEFORE_A_GROUP = ("torch.distributed.nn.functional", "torch.distributed.optim", "torch.distributed.tensor")


def threads():
    """How many threads torch computes with, where nobody says how many."""
    torch = sys.modules.get("torch")
    return torch and torch.get_num_threads()


def set_threads(count):
    torch = sys.modules.get("torch")
    if torch:
        torch.set_num_threads(mkl_number(count))


@functools.lru_cache(maxsize=None)  # as torch tells MKL how many, it tells it not to look at the cores any more
def mkl_number(count):
    """In a new process torch that was built with MKL has as many threads as MKL: its own variable says it first, and there are no more
    than there are cores."""
    own = os.environ.get("MKL_NUM_THREADS", "")
    path = os.path.join(os.path.dirname(sys.modules["torch"].__file__), "lib", "libtorch_cpu.so")
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        library.mkl_serv_set_num_threads(int(own) if own.isdigit() and int(own) else count)
        return library.MKL_Get_Max_Threads()
    except (OSError, AttributeError):
        return count  # there is no MKL in it


def generators():
    torch = sys.modules.get("torch")
    return {"torch": bytes(torch.get_rng_state().numpy())} if torch else {}


def seed(name, state):
    torch = sys.modules["torch"]
    if state is None:
        torch.default_generator.seed()
    else:
        torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def why_not_to_fork():
    torch = sys.modules.get("torch")
    for name in DEVICES:
        device = getattr(torch, name, None)
        if getattr(device, "is_initialized", bool)():
            return "an imported module has made a context on a device (torch.%s), which no child could use" % name


def hold_device(slot):
    """Makes this process's context on the device that the rank of this number on its host will use."""
    torch = sys.modules.get("torch")
    for name in DEVICES:
        device = getattr(torch, name, None)
        if device is not None and hasattr(device, "is_available") and device.is_available():
            if slot < device.device_count():
                device.set_device(slot)
                torch.empty(1, device="%s:%d" % (name, slot))
            return


def warm():
    """A training step, as most are. Returns what could not be done: the program will do that for the first time."""
    if "torch" not in sys.modules:
        return None
    try:
        train(distributed())
    except Exception as error:
        return "%s: %s" % (type(error).__name__, error)
    finally:
        leave()
        keep_first_group()


def distributed():
    """A group of one, which dials nobody; None where torch has none."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_gloo_available():
        return None
    for name in BEFORE_A_GROUP:
        try:
            __import__(name)
        except ImportError:
            pass  # of another version
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return dist


def train(dist):
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    if dist:
        model = torch.nn.parallel.DistributedDataParallel(model)
    data = DataLoader(TensorDataset(torch.ones(4, 4), torch.zeros(4, dtype=torch.long)), batch_size=2, shuffle=True)
    for kind in (torch.optim.SGD, torch.optim.Adam):
        optimizer = kind(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        for inputs, targets in data:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        schedule.step()
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    torch.load(file)
    if dist:
        dist.all_reduce(torch.ones(1))
        dist.broadcast_object_list([None])
        dist.barrier()


def keep_first_group():
    """In a new process the functions of `BEFORE_A_GROUP` keep the first default group, to the end: it is not DDP that takes it down,
    which does so with the interpreter's lock and hangs if a thread of gloo's wants that."""
    module, kept = sys.modules.get("torch.distributed.distributed_c10d"), []
    update = getattr(module, "_update_default_pg", None)
    if update is None:
        return

    def _update_default_pg(group):
        if group is not None and not kept:
            kept.append(group)
        return update(group)

    module._update_default_pg = _update_default_pg


def leave():
    """Nothing is left of the group: its threads end with the last who knows it."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
    gc.collect()
