#!/usr/bin/env python3
"""Makes MindSpore's cluster fail and keeps what a process of it then prints: how the samples in the directories beside
this file were made.

    PYTHON_WITH_MINDSPORE capture.py DIRECTORY [CASE ...]

For each case CASE.stderr.txt has the last 4096 bytes of stderr of the process that the case observes. Paths of the
machine are replaced.
"""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

WORKERS = 2
SCHEDULER = "scheduler"
# Case -> the process whose words are kept.
OBSERVED = {
    "program-fails": 1,
    "peer-fails": 0,
    "peer-killed": 0,
    "peer-frozen": 0,
    "scheduler-killed": 0,
    "worker-killed-scheduler": SCHEDULER,
    "peer-never-joins": 0,
    "worker-never-joins-scheduler": SCHEDULER,
    "scheduler-never-there": 0,
    "port-in-use-scheduler": SCHEDULER,
    "out-of-host-memory": 0,
}
NEVER_THERE = {"peer-never-joins": 1, "worker-never-joins-scheduler": 1, "scheduler-never-there": SCHEDULER}
WITHIN_SECONDS = 600  # for the observed process to end; MindSpore alone takes a minute on a busy machine


def process_main(case, trains):
    import mindspore as ms
    import numpy
    from mindspore import ops
    from mindspore.communication import init

    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    init()  # the scheduler stays here
    rank = int(os.environ["MS_NODE_ID"])
    if case in ("program-fails", "peer-fails") and rank == 1:
        raise ValueError("boom")
    if case == "out-of-host-memory":
        print(ms.ops.zeros((1 << 40,), ms.float32) + 1)
    reduce, tensor = ops.AllReduce(), ms.Tensor(numpy.ones(1 << 20, numpy.float32))
    while True:
        reduce(tensor).asnumpy()
        pathlib.Path(trains).touch()


def environment(name, port):
    role = "MS_SCHED" if name == SCHEDULER else "MS_WORKER"
    own = {"MS_ROLE": role, "MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": str(port), "MS_WORKER_NUM": str(WORKERS)}
    own.update(RANK_SIZE=str(WORKERS), MS_TOPO_TIMEOUT="60", OMP_NUM_THREADS="1")
    if name != SCHEDULER:
        own.update(MS_NODE_ID=str(name), RANK_ID=str(name), DEVICE_ID=str(name))
    return {**os.environ, **own}


def strike(case, processes):
    """What befalls a process once all train."""
    if case in ("peer-killed", "worker-killed-scheduler"):
        processes[1].kill()
    if case == "peer-frozen":
        processes[1].send_signal(signal.SIGSTOP)
    if case == "scheduler-killed":
        processes[SCHEDULER].kill()


def start(case, out):
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    port = held.getsockname()[1]
    if case == "port-in-use-scheduler":
        held.listen()
    else:
        held.close()
    with tempfile.TemporaryDirectory() as directory:
        processes, trains = {}, {name: os.path.join(directory, "%s.trains" % name) for name in range(WORKERS)}
        for name in (SCHEDULER, *range(WORKERS)):
            if NEVER_THERE.get(case) != name:
                processes[name] = subprocess.Popen(
                    [sys.executable, __file__, "--process", case, trains.get(name, "")],
                    env=environment(name, port),
                    cwd=directory,
                    stdout=subprocess.DEVNULL,
                    stderr=open(os.path.join(directory, "%s.stderr" % name), "wb"),
                )
        observed = processes[OBSERVED[case]]
        until = time.monotonic() + WITHIN_SECONDS
        while observed.poll() is None and not all(map(os.path.exists, trains.values())) and time.monotonic() < until:
            time.sleep(0.1)
        strike(case, processes)
        observed.wait(WITHIN_SECONDS)
        for process in processes.values():
            process.kill()
            process.wait()
        words = pathlib.Path(directory, "%s.stderr" % OBSERVED[case]).read_bytes()
        for path, shown in ((sys.prefix, b"/venv"), (os.path.dirname(os.path.abspath(__file__)), b"/job")):
            words = words.replace(path.encode(), shown)
        (out / (case + ".stderr.txt")).write_bytes(words[-4096:])
    print(case, observed.returncode, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--process":
        process_main(*sys.argv[2:])
    else:
        target = pathlib.Path(sys.argv[1])
        target.mkdir(parents=True, exist_ok=True)
        for wanted in sys.argv[2:] or OBSERVED:
            start(wanted, target)
