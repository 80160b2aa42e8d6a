"""Times torch's TCPStore with many clients. The server is a process of its own, and the clients share four more.

Arguments: the number of clients, and the seconds after which no further client connects. Prints one line of JSON: how
many clients have connected, and what it took. A client that fails is the last one that its process tries.
"""

import json
import multiprocessing
import os
import queue
import resource
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

PROCESSES = 4
THREADS = 16
# Between two lines about the progress, in seconds.
TELL_EVERY = 5
# For the end of a part after the time for clients is over, in seconds.
GRACE = 30

# torch looks up a name for both ends of each connection. Where nothing answers such questions, each takes the
# resolver's time limit, for hundreds of clients one after the other.
os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"
os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # else a warning for each connection without a name


def loopback():
    """Returns the loopback address. That of IPv6 needs no look-up: 127.0.0.1 is mapped, and not in /etc/hosts."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
            return "::1"
    except OSError:
        return "127.0.0.1"


ADDRESS = loopback()


def tell(text):
    print(f"torch's store: {text}", file=sys.stderr, flush=True)


def raise_limit():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def rss_mib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:")) / 1024


def connection(port, until):
    from torch.distributed import TCPStore

    within = timedelta(seconds=max(1.0, until - time.monotonic()))
    return TCPStore(ADDRESS, port, is_master=False, wait_for_workers=False, timeout=within)


def serve(port, up, stop, memory):
    raise_limit()
    from torch.distributed import TCPStore

    store = TCPStore(ADDRESS, 0, is_master=True, wait_for_workers=False)
    port.value = store.port
    before = rss_mib()
    up.set()
    stop.wait()
    memory.put((before, rss_mib()))


def clients(numbers, port, until, begin, connected, registered, announced, read):
    raise_limit()
    full = multiprocessing.Event()

    def client(number):
        if full.is_set() or time.monotonic() > until:
            return None
        try:
            store = connection(port, until)
            store.set(f"client-{number}", "here")
        except Exception as error:  # the store has as many clients as it can take
            if not full.is_set():
                tell(f"client {number}: {str(error).splitlines()[0]}")
            full.set()
            return None
        with connected.get_lock():
            connected.value += 1
        return store

    begin.wait()
    with ThreadPoolExecutor(THREADS) as pool:
        stores = [store for store in pool.map(client, numbers) if store is not None]
        registered.put((len(stores), time.monotonic()))
        announced.wait()
        list(pool.map(lambda store: store.get("world"), stores))
        read.put(time.monotonic())


def gather(source, what, connected, until):
    """Returns one answer of each process, and tells how far it is meanwhile."""
    answers, begun = [], time.monotonic()
    while len(answers) < PROCESSES:
        try:
            answers.append(source.get(timeout=TELL_EVERY))
        except queue.Empty:
            tell(f"{what}: {connected.value} clients connected, {time.monotonic() - begun:.0f} s")
            if time.monotonic() > until:
                raise SystemExit(f"torch's store: {what} is not done in time, with {connected.value} clients")
    return answers


def main():
    wanted, seconds = int(sys.argv[1]), float(sys.argv[2])
    context = multiprocessing.get_context("fork")
    import torch.distributed  # noqa: F401, once, before the processes begin

    port, connected, memory = context.Value("q", 0), context.Value("q", 0), context.Queue()
    up, stop, begin, announced = (context.Event() for _ in range(4))
    registered, read = context.Queue(), context.Queue()
    context.Process(target=serve, args=(port, up, stop, memory), daemon=True).start()
    if not up.wait(GRACE):
        raise SystemExit("torch's store: its server does not start")
    until = time.monotonic() + seconds
    for first in range(PROCESSES):
        numbers = range(first, wanted, PROCESSES)
        arguments = (numbers, port.value, until, begin, connected, registered, announced, read)
        context.Process(target=clients, args=arguments, daemon=True).start()
    started = time.monotonic()
    begin.set()
    counts = gather(registered, "registration", connected, until + GRACE)
    register_s = max(at for _, at in counts) - started
    one = connection(port.value, time.monotonic() + GRACE)
    sent = time.monotonic()
    one.set("world", "1")
    announced.set()
    broadcast_ms = (max(gather(read, "broadcast", connected, sent + seconds + GRACE)) - sent) * 1e3
    stop.set()
    before, after = memory.get(timeout=GRACE)
    total = sum(count for count, _ in counts)
    figures = dict(clients=total, wanted=wanted, register_s=register_s, broadcast_ms=broadcast_ms)
    figures.update(rss_mib=after, rss_of_clients_mib=after - before)
    print(json.dumps(figures), flush=True)


main()
