"""PyTorch's part of a standby: a training step before the standby has a rank, and the reset of its effects.

torch imports about half of its modules only at their first use, for example in the first step of an optimizer. A
template takes that step here, in its own process group, which is destroyed afterwards. For Python 3.8 and later.
`_taskd_standby.py` calls every function; none does anything if torch is not imported.
"""

import ctypes
import functools
import gc
import io
import os
import sys

DEVICES = ("cuda", "xpu", "npu", "mlu", "hpu")  # devices whose contexts do not survive a fork
# Modules that DDP imports when it is created. Some of their functions take the default group of that moment as the
# default of an argument, for good. So they are imported while there is no group.
BEFORE_A_GROUP = ("torch.distributed.nn.functional", "torch.distributed.optim", "torch.distributed.tensor")


def threads():
    """Returns the number of threads that torch computes with by default."""
    torch = sys.modules.get("torch")
    return torch and torch.get_num_threads()


def set_threads(count):
    torch = sys.modules.get("torch")
    if torch:
        torch.set_num_threads(mkl_number(count))


@functools.lru_cache(maxsize=None)  # once torch sets the number in MKL, MKL ignores the cores
def mkl_number(count):
    """Returns the number of threads that torch would have in a new process. A torch that is built with MKL uses MKL's
    number: MKL_NUM_THREADS, else `count`, and at most the number of cores."""
    own = os.environ.get("MKL_NUM_THREADS", "")
    path = os.path.join(os.path.dirname(sys.modules["torch"].__file__), "lib", "libtorch_cpu.so")  # pyright: ignore[reportArgumentType, reportCallIssue]
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        library.mkl_serv_set_num_threads(int(own) if own.isdigit() and int(own) else count)
        return library.MKL_Get_Max_Threads()
    except (OSError, AttributeError):
        return count  # torch is built without MKL


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
    """Creates this process's context on the device of the rank with this number on its host."""
    torch = sys.modules.get("torch")
    for name in DEVICES:
        device = getattr(torch, name, None)
        if device is not None and hasattr(device, "is_available") and device.is_available():
            if slot < device.device_count():
                device.set_device(slot)
                torch.empty(1, device="%s:%d" % (name, slot))
            return


def warm():
    """Does a typical training step. Returns its error, if any: the program then does that part for the first time."""
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
    """Creates a group of one rank, without connections; returns None if torch has no process groups."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_gloo_available():
        return None
    for name in BEFORE_A_GROUP:
        try:
            __import__(name)
        except ImportError:
            pass  # this torch version does not have it
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
    """Keeps the first default group to the end, as the functions of `BEFORE_A_GROUP` do in a new process. Otherwise DDP
    destroys it while it holds the interpreter lock, and hangs if a gloo thread needs the lock."""
    module, kept = sys.modules.get("torch.distributed.distributed_c10d"), []
    update = getattr(module, "_update_default_pg", None)
    if update is None:
        return

    def _update_default_pg(group):
        if group is not None and not kept:
            kept.append(group)
        return update(group)

    module._update_default_pg = _update_default_pg  # pyright: ignore[reportAttributeAccessIssue]


def leave():
    """Destroys the group. Its threads end with the last reference to it."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
    gc.collect()
