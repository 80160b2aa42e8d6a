"""Ranks for tests: forked children of one process that has imported torch and done a first step as templates do, which
is what takes the time. Each of them gets a page, a name and the link's address as a launcher would give it, and has
sitecustomize.py do what it does in a fresh process.
"""

import faulthandler
import json
import mmap
import os
import random
import signal
import socket
import sys
import time
import traceback

import _taskd_standby_framework
import numpy  # noqa: F401  (ahead of the fork)
import torch
import torch._dynamo  # noqa: F401  (which the first optimizer imports, and takes a second for)
import torch.distributed as dist
import torch.nn.parallel  # noqa: F401

torch.set_num_threads(1)
assert _taskd_standby_framework.warm() is None
SOAK = os.environ.get("TASKD_SOAK") == "1"
PAGE_BYTES = 4096
AT_STEP, AT_STEP_TIME, AT_BEAT = 48, 56, 64


def start_time(pid):
    with open("/proc/%d/stat" % pid, "rb") as stat:
        return int(stat.read().rsplit(b")", 1)[1].split()[19])


class Process:
    """One process of a rank."""

    def __init__(self, directory, rank, size, incarnation, main, environment):
        self.rank, self.name = rank, "rank-%d.%d" % (rank, incarnation)
        self.path = os.path.join(directory, self.name)
        self.exit = None
        with open(self.path + ".page", "wb") as page:
            page.write(bytes(PAGE_BYTES))
        environment = dict(
            environment,
            RANK=str(rank),
            WORLD_SIZE=str(size),
            TASKD_PROC=self.name,
            TASKD_LIFELINE=self.path + ".page",
            TASKD_HANDOFF=os.path.join(directory, "%s-%d" % (environment["KEEP"], rank)),
            RESULT=self.path + ".json",
        )
        ready_read, ready_write = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            run(main, environment, ready_read, ready_write)
        with open(self.path + ".page", "r+b") as page:
            self.page = mmap.mmap(page.fileno(), PAGE_BYTES)
        self.page[0:8] = b"TASKDPG1"
        self.page[8:12] = (1).to_bytes(4, sys.byteorder)
        self.page[16:20] = self.pid.to_bytes(4, sys.byteorder)
        self.page[24:32] = start_time(self.pid).to_bytes(8, sys.byteorder)
        os.write(ready_write, b"1")
        os.close(ready_read)
        os.close(ready_write)

    def step(self):
        """Completed steps, from the page."""
        return int.from_bytes(self.page[AT_STEP : AT_STEP + 8], sys.byteorder)

    def ended(self):
        """Whether the process is gone; its exit code, or the signal as a negative number, is then in `exit`."""
        if self.exit is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.exit = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        return self.exit is not None

    def kill(self, number=signal.SIGKILL):
        if not self.ended():
            os.kill(self.pid, number)

    def result(self):
        with open(self.path + ".json") as file:
            return json.load(file)

    def count(self, what):
        """How many threads (`task`) or descriptors (`fd`) it has."""
        return len(os.listdir("/proc/%d/%s" % (self.pid, what)))


def run(main, environment, ready_read, ready_write):
    faulthandler.register(signal.SIGUSR1)  # where it stands, for a test that fails
    try:
        os.read(ready_read, 1)
        os.close(ready_read)
        os.close(ready_write)
        os.environ.update((name, value) for name, value in environment.items() if value is not None)
        seed = int(environment.get("SEED", "1"))
        random.seed(seed)
        numpy.random.seed(seed)
        torch.manual_seed(seed)
        native = record() if environment.get("RECORD") else None
        helper = sys.modules["_taskd_rank"]
        if environment.get("HOOKS") != "0":
            helper.join_page(helper.open_own_page())
        value = main()
        if native is not None:
            value["recorded"], value["reasons"] = native.begun, native.reasons
        whole = environment["RESULT"] + ".new"
        with open(whole, "w") as file:
            json.dump(value, file)
        os.rename(whole, environment["RESULT"])
        code = 0
    except SystemExit as error:
        code = error.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def record():
    """Has the hooks record into a stand-in for libtaskd."""
    import stand_in_recorder
    from taskd import _native

    os.environ["TASKD_LIB"] = "a stand-in"
    _native.native = stand_in_recorder.Native()
    return _native.native


def store_server():
    """A store in a process of its own: its pid and port. It listens on a socket of IPv4, since torch's server looks its
    clients' names up, and waits 5 s now and then where the address is not in /etc/hosts."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read)
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        store = dist.TCPStore(
            "127.0.0.1",
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
            use_libuv=True,
        )
        os.write(write, b"%d\n" % store.port)
        os.close(write)
        while True:
            time.sleep(3600)
    os.close(write)
    with os.fdopen(read) as file:
        return pid, int(file.readline())
