"""Two ranks, of which the second comes to their first meeting before a process listens there: `RANK PORT MARK`. Prints
whether a process listens when torch dials."""

import os
import socket
import sys
import time

rank, port, mark = sys.argv[1:]
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=rank, WORLD_SIZE="2")

import torch.distributed as dist

rendezvous = sys.modules["torch.distributed.rendezvous"]  # its package has a function of this name
store = rendezvous.TCPStore


def dialled(*args, **kwargs):
    try:
        socket.create_connection(("127.0.0.1", int(port)), 5).close()
        print("listens")
    except ConnectionRefusedError:
        print("refused")
    return store(*args, **kwargs)


rendezvous.TCPStore = dialled
if rank == "1":
    open(mark, "w").close()
else:
    while not os.path.exists(mark):
        time.sleep(0.01)
    time.sleep(0.3)  # the other one is there by now
dist.init_process_group("gloo")
dist.barrier()
