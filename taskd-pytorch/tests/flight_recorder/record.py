"""Makes flight-recorder dumps of small gloo jobs: `record.py DIR SCENARIO`.

Scenarios: clean, skip (rank 2 leaves out one all-reduce), size (rank 1 passes another size), frozen (rank 3 stops, and
writes no dump), groups (rank 1 is absent from its pair, so that the other pair waits for the first). All ranks are
processes of this program. Each writes `DIR/dump_RANK` (pickle) and `DIR/json/dump_RANK.json` two seconds after the
fault.
"""

import os
import signal
import sys
import threading
import time
from datetime import timedelta

os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "200")

import torch  # noqa: E402 (the size of the ring is read once)
import torch.distributed as dist  # noqa: E402
from torch._C import _distributed_c10d as c10d  # noqa: E402

RANKS = 4
TURNS = 3
DUMP_AFTER_S = 2.0


def train_step(turn):
    dist.all_reduce(torch.ones(64))
    dist.broadcast(torch.ones(16), 0)
    return turn


def block():
    while True:
        time.sleep(0.05)


def load_batch_forever():
    block()


def last_step(rank, scenario, pair):
    if scenario == "clean":
        train_step(TURNS)
        block()
    if scenario == "skip" and rank == 2:
        dist.broadcast(torch.ones(16), 0)
    if scenario == "size" and rank == 1:
        dist.all_reduce(torch.ones(96))
    if scenario == "frozen" and rank == 3:
        os.kill(os.getpid(), signal.SIGSTOP)
    if scenario == "groups" and rank == 1:
        load_batch_forever()
    if scenario == "groups":
        dist.all_reduce(torch.ones(8), group=pair)
    train_step(TURNS)


def dump(directory, rank):
    time.sleep(DUMP_AFTER_S)
    dumps = {f"dump_{rank}": c10d._dump_fr_trace(), f"json/dump_{rank}.json": c10d._dump_fr_trace_json()}
    for name, content in dumps.items():
        with open(f"{directory}/{name}", "wb") as file:
            file.write(content)
    time.sleep(1.0)  # the end of a rank would end calls of the others before they have written their dumps
    os._exit(0)


def run(directory, scenario, rank):
    store = dist.FileStore(f"{directory}/store", RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=timedelta(seconds=60))
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    for turn in range(TURNS):
        if scenario == "groups":
            dist.all_reduce(torch.ones(8), group=pairs[rank // 2])
        train_step(turn)
    threading.Thread(target=dump, args=(directory, rank), daemon=True).start()
    try:
        last_step(rank, scenario, pairs[rank // 2])
    except RuntimeError:
        pass  # a library may notice the difference: the positions stay as they are
    block()


def main():
    directory, scenario = sys.argv[1:3]
    os.makedirs(f"{directory}/json", exist_ok=True)
    children = {}
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            run(directory, scenario, rank)
        children[rank] = child
    for rank, child in children.items():
        if scenario == "frozen" and rank == 3:
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    os.remove(f"{directory}/store")


main()
