"""Runs a function on the ranks of a gloo world: forked children of one process that has imported torch, which is what
takes the time. The group hook is put in place in each of them, or not, by `hook`.
"""

import json
import os
import signal
import sys
import tempfile
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.parallel  # noqa: F401  (ahead of the fork)

import stand_in

OFF, QUIET, ON = "off", "quiet", "on"
SOAK = os.environ.get("TASKD_SOAK") == "1"
PATIENCE_SECONDS = 60


def run(main, world, hook):
    """What `main(rank, world, native)` returns on each rank, by way of JSON; native is None where the hook is off.

    A rank that ended otherwise gives None, its exception is printed to stderr.
    """
    with tempfile.TemporaryDirectory() as directory:
        pids = [start(main, rank, world, hook, directory) for rank in range(world)]
        for pid in pids:
            os.waitpid(pid, 0)
        return [result(os.path.join(directory, str(rank))) for rank in range(world)]


def exit_codes(main, world, hook):
    """How the ranks end when they end in Python, as a program does: the exit codes, or less than 0 for a signal."""
    with tempfile.TemporaryDirectory() as directory:
        pids = [start(main, rank, world, hook, directory, end_in_python=True) for rank in range(world)]
        deadline = time.monotonic() + PATIENCE_SECONDS
        return [code(ended(pid, deadline)) for pid in pids]


def ended(pid, deadline):
    """The status of a rank that has ended; one that hangs is killed."""
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def code(status):
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def start(main, rank, world, hook, directory, end_in_python=False):
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    if end_in_python:
        join(rank, world, hook, directory)
        main(rank, world, None)
        sys.exit(0)
    try:
        native = join(rank, world, hook, directory)
        value = main(rank, world, native)
        with open(os.path.join(directory, str(rank)), "w") as file:
            json.dump(value, file)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def join(rank, world, hook, directory):
    """The rank as a member of its world; the stand-in that the hook records with, if there is one."""
    torch.set_num_threads(1)
    native = None if hook == OFF else stand_in.install(on=hook == ON)
    dist.init_process_group(
        "gloo",
        init_method="file://%s/store" % directory,
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=120),
    )
    return native


def result(path):
    if not os.path.exists(path):
        return None
    with open(path) as file:
        return json.load(file)


def report(what):
    """To the file that the test reads: torch itself prints to stdout."""
    with open(sys.argv[-1], "w") as file:
        json.dump(what, file)
