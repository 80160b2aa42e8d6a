"""Groups that are made in other ways than most, and by others than ranks. Each program returns what became of it."""

import os
import socket
import subprocess
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

TIMEOUT = timedelta(seconds=60)
HELPER = """
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

timeout = timedelta(seconds=60)
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), 2, False, timeout, wait_for_workers=False)
for name in ("first", "second"):
    own = dist.PrefixStore(name, store)
    dist.init_process_group("gloo", store=own, rank=1, world_size=2, timeout=timeout)
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
"""


def summed(group=None):
    one = torch.ones(1)
    dist.all_reduce(one, group=group)
    return one.item()


def found(**more):
    """What the process knows of its limits, and whether its default group can be given up."""
    from taskd import _session

    inside = type(dist.group.WORLD._inner).__name__ if dist.is_initialized() else None
    return {"inside": inside, "cannot": _session.current.engine.cannot, **more}


def no_backend():
    """torch takes the one of the device."""
    dist.init_process_group()
    sub = dist.new_group([0, 1])
    return found(sums=[summed(), summed(sub)], backend=dist.get_backend())


def again():
    """The same groups over the same store, again and again."""
    sums = []
    for _ in range(3):
        dist.init_process_group("gloo", timeout=TIMEOUT)
        sub = dist.new_group([0, 1])
        sums += [summed(), summed(sub)]
        dist.destroy_process_group(sub)
        dist.destroy_process_group()
    dist.init_process_group("gloo", timeout=TIMEOUT)
    return found(sums=[*sums, summed()])


def default_timeout():
    """Whether the sockets of the program's own that wait do so afterwards."""
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    socket.setdefaulttimeout(0.5)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    sub = dist.new_group([0, 1])
    return found(sums=[summed(), summed(sub)], blocking=[os.get_blocking(one.fileno()) for one in (server, client)])


def own_world():
    """Each rank has a world of its own."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return found(sums=[summed()])


def with_helper():
    """A rank and a process that is none, in a group of their own."""
    store = dist.TCPStore("127.0.0.1", 0, 2, True, TIMEOUT, wait_for_workers=False)
    environment = dict(os.environ, TASKD_HOOKS="0")
    sums = []
    with subprocess.Popen([sys.executable, "-c", HELPER, str(store.port)], env=environment) as helper:
        for name in ("first", "second"):
            own = dist.PrefixStore(name, store)
            dist.init_process_group("gloo", store=own, rank=0, world_size=2, timeout=TIMEOUT)
            sums.append(summed())
            known = found()
            dist.destroy_process_group()
    return dict(known, sums=sums, helper=helper.returncode)


def reconfigured():
    """A group that the program asks to be able to reconfigure."""
    try:
        dist.init_process_group("gloo", enable_reconfigure=True, timeout=TIMEOUT)
    except (TypeError, RuntimeError, ValueError) as error:  # an older torch, or a backend that has it not
        return found(refused=type(error).__name__)
    return found()


def tried_by_one():
    """A group that one rank cannot make, as the other does not come, and makes again with that, by the same name."""
    dist.init_process_group("gloo", timeout=TIMEOUT)
    store, world, tried = dist.distributed_c10d._get_default_store(), dist.distributed_c10d._world, 0
    count = world.group_count
    if dist.get_rank() == 0:
        try:
            dist.new_group([0, 1], timeout=timedelta(seconds=2), use_local_synchronization=True)
        except RuntimeError:
            # a newer torch would have another name for it, and the ranks never meet
            tried, world.group_count = 1, count
        store.set("tried", "1")
    else:
        store.wait(["tried"], TIMEOUT)
        time.sleep(1)  # until the other has put its new address in the place of the old one
    sub = dist.new_group([0, 1], timeout=timedelta(seconds=20), use_local_synchronization=True)
    return found(sums=[summed(), summed(sub)], tried=tried)


def later_than_waited_for():
    """Where a group is made without its members, one of which comes when the other does not wait for it any more."""
    from taskd.torch.process_group import rendezvous

    rendezvous.LAZY_SECONDS = 1
    if os.environ["RANK"] == "1":
        time.sleep(3)
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    return found(sums=[summed()])


PROGRAMS = (no_backend, again, default_timeout, own_world, with_helper, reconfigured, tried_by_one)


def outcomes(world):
    """By program: what both ranks return. `world` makes one of a program."""
    results = {}
    for program in PROGRAMS:
        with world(2, program) as ranks:
            results[program.__name__] = ranks.finish()
    with world(2, again, TORCH_GLOO_LAZY_INIT="1") as ranks:
        results["again, lazily"] = ranks.finish()
    with world(2, later_than_waited_for, TORCH_GLOO_LAZY_INIT="1") as ranks:
        results["later_than_waited_for"] = ranks.finish()
    return results
