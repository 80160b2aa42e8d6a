#!/usr/bin/env python3
"""Makes torch's connection errors happen and keeps what a rank then prints: how the samples beside this file were made.

    PYTHON_WITH_TORCH capture.py DIRECTORY [CASE ...]

For each case CASE.json is the error file that torch's @record wrote, CASE.stderr.txt the last 4096 bytes of stderr,
both of the rank that the case observes. Paths of the machine are replaced.
"""

import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from datetime import timedelta

# Case -> the rank whose words are kept.
OBSERVED = {
    "peer-killed-in-all-reduce": 0,
    "store-host-killed-in-all-reduce": 1,
    "peer-killed-in-ddp": 0,
    "peer-exited-before-barrier": 0,
    "peer-never-takes-part": 0,
    "peer-fails-monitored-barrier": 0,
    "peer-never-joins": 0,
    "store-host-never-joins": 1,
    "store-host-exited-before-new-group": 1,
    "store-host-exited-before-get": 1,
    "peer-address-is-stale": 0,
    "port-in-use": 0,
    "out-of-host-memory": 0,
    "program-fails": 1,
    "interrupted": 1,
}


def rank_main(case):
    import threading

    import torch
    import torch.distributed as dist
    from torch.distributed.elastic.multiprocessing.errors import record
    from torch.nn.parallel import DistributedDataParallel

    rank = int(os.environ["RANK"])

    def die_later(seconds):
        threading.Timer(seconds, os.kill, (os.getpid(), 9)).start()

    @record
    def main():
        short = timedelta(seconds=4)
        if (case, rank) in {("peer-never-joins", 1), ("store-host-never-joins", 0)}:
            time.sleep(3600)
        if case == "peer-address-is-stale":
            store = dist.TCPStore("127.0.0.1", int(os.environ["STORE_PORT"]), None, False, timeout=short)
            if os.environ["ATTEMPT"] == "2" and rank == 0:
                time.sleep(2)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=short)
            os._exit(0)
        joins_in_time = "killed" in case or case in {"program-fails", "interrupted", "out-of-host-memory"}
        dist.init_process_group("gloo", timeout=timedelta(minutes=1) if joins_in_time else short)
        big = torch.ones(2_000_000)
        if case in {"peer-killed-in-all-reduce", "store-host-killed-in-all-reduce"}:
            if rank != OBSERVED[case]:
                die_later(0.7)
            while True:
                dist.all_reduce(big)
        if case == "peer-killed-in-ddp":
            model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(500, 500) for _ in range(6)]))
            if rank == 1:
                die_later(1.5)
            while True:
                model(torch.ones(8, 500)).sum().backward()
        if case == "peer-never-takes-part":
            time.sleep(3600 * rank)
            dist.all_reduce(big)
        if case == "peer-fails-monitored-barrier":
            time.sleep(3600 * rank)
            dist.monitored_barrier(timeout=short)
        if case == "out-of-host-memory" and rank == 0:
            torch.empty(10**15)
        if case == "program-fails" and rank == 1:
            raise ValueError("boom")
        if case == "interrupted" and rank == 1:
            raise KeyboardInterrupt
        if rank != OBSERVED[case]:
            os._exit(3)
        time.sleep(1)
        if case == "store-host-exited-before-new-group":
            dist.new_group([0, 1])
        if case == "store-host-exited-before-get":
            dist.distributed_c10d._get_default_store().get("a key that nobody sets")
        dist.barrier()

    main()


def attempt(case, directory, environment):
    """Starts both ranks, waits for the observed one, ends the other; gives the observed one's words."""
    ranks, observed = {}, OBSERVED[case]
    for rank in (0, 1):
        error_file = os.path.join(directory, f"{rank}.json")
        if os.path.exists(error_file):
            os.remove(error_file)
        ranks[rank] = subprocess.Popen(
            [sys.executable, __file__, "--rank", case],
            env={**os.environ, **environment, "RANK": str(rank), "TORCHELASTIC_ERROR_FILE": error_file},
            stdout=subprocess.DEVNULL,
            stderr=open(os.path.join(directory, f"{rank}.stderr"), "wb"),
        )
    ranks[observed].wait(300)
    time.sleep(0.2)
    for process in ranks.values():
        process.kill()
        process.wait()


def start(case, out):
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(held.getsockname()[1]), "WORLD_SIZE": "2"}
    environment.update(OMP_NUM_THREADS="1", TORCHELASTIC_USE_AGENT_STORE="False")
    if case != "port-in-use":
        held.close()
    with tempfile.TemporaryDirectory() as directory:
        if case == "peer-address-is-stale":
            import torch.distributed as dist

            store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
            environment["STORE_PORT"] = str(store.port)
            attempt(case, directory, {**environment, "ATTEMPT": "1"})
        attempt(case, directory, {**environment, "ATTEMPT": "2"})
        rank, home = OBSERVED[case], sys.prefix
        for name, end in ((f"{rank}.json", ".json"), (f"{rank}.stderr", ".stderr.txt")):
            path = pathlib.Path(directory, name)
            if path.exists():
                words = (
                    path.read_bytes()
                    .replace(home.encode(), b"/venv")
                    .replace(os.path.dirname(__file__).encode(), b"/job")
                )
                (out / (case + end)).write_bytes(words[-4096:] if end == ".stderr.txt" else words)
    print(case, [path.name for path in sorted(out.glob(case + ".*"))], flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        rank_main(sys.argv[2])
    else:
        target = pathlib.Path(sys.argv[1])
        target.mkdir(parents=True, exist_ok=True)
        for wanted in sys.argv[2:] or OBSERVED:
            start(wanted, target)
