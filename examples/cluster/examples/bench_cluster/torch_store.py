"""Times torch's TCPStore with many clients. The server is a process of its own, and the clients share four more."""

import json
import multiprocessing
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

PROCESSES = 4
THREADS = 16
PATIENCE = timedelta(seconds=300)


def raise_limit():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def serve(port, ready, stop):
    raise_limit()
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=PATIENCE)
    port.value = store.port
    ready.set()
    stop.wait()
    port.value = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def connect(first, count, port, ready, begin, registered, announced, results):
    raise_limit()
    from torch.distributed import TCPStore

    def client(number):
        try:
            store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=PATIENCE)
            store.set(f"client-{number}", "here")
            return store
        except Exception as error:  # the store has as many clients as it can take
            print(error, file=sys.stderr)
            return None

    ready.release()
    begin.wait()
    with ThreadPoolExecutor(THREADS) as pool:
        stores = [store for store in pool.map(client, range(first, first + count)) if store is not None]
        registered.put((len(stores), time.monotonic()))
        announced.wait()
        list(pool.map(lambda store: store.get("world"), stores))
        results.put(time.monotonic())


def main():
    clients = int(sys.argv[1])
    context = multiprocessing.get_context("fork")
    import torch.distributed  # once, before the processes begin

    port, up, stop = context.Value("q", 0), context.Event(), context.Event()
    server = context.Process(target=serve, args=(port, up, stop))
    server.start()
    up.wait()
    ready, begin, announced = context.Semaphore(0), context.Event(), context.Event()
    registered, results = context.Queue(), context.Queue()
    share = [clients // PROCESSES + (at < clients % PROCESSES) for at in range(PROCESSES)]
    for at, count in enumerate(share):
        args = (sum(share[:at]), count, port.value, ready, begin, registered, announced, results)
        context.Process(target=connect, args=args).start()
    for _ in share:
        ready.acquire()
    started = time.monotonic()
    begin.set()
    counts = [registered.get() for _ in share]
    register_s = max(at for _, at in counts) - started
    torch.distributed.TCPStore("127.0.0.1", port.value, is_master=False, wait_for_workers=False).set("world", "1")
    sent = time.monotonic()
    announced.set()
    broadcast_ms = (max(results.get() for _ in share) - sent) * 1e3
    stop.set()
    server.join()
    rss_mib = port.value / 1024
    total = sum(count for count, _ in counts)
    figures = dict(clients=total, register_s=register_s, broadcast_ms=broadcast_ms, rss_mib=rss_mib)
    print(json.dumps(figures), flush=True)


main()
