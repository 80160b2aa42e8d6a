"""Every call of torch's TCPStore client, and what it comes to, as JSON.

calls.py HOST PORT uv|plain: PORT 0 runs torch's own server in this process. Clients stand above no server of their own.
"""

import datetime
import json
import sys
import threading
import time

from torch.distributed import PrefixStore, TCPStore

HOST, PORT, USE_LIBUV = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "uv"
IS_TORCHS = PORT == 0
OF_TORCH_GOES = 5
found = []


def seconds(count):
    return datetime.timedelta(seconds=count)


def store(port, server=False, timeout=60, world_size=None, wait_for_workers=False):
    return TCPStore(HOST, port, world_size, server, seconds(timeout), wait_for_workers, use_libuv=USE_LIBUV)


if IS_TORCHS:
    server = store(0, server=True)
    PORT = server.port


def client(timeout=60):
    return store(PORT, timeout=timeout)


def note(name, call):
    """Notes what a call comes to. Of an exception its class and the words before numbers and addresses."""
    try:
        result = call()
    except Exception as error:
        text = str(error).split("\n")[0]
        is_closed = "Connection" in text or "Broken pipe" in text  # which of them is a race
        text = "the connection is closed" if is_closed else text
        result = "%s: %s" % (type(error).__name__, text)
    if isinstance(result, bytes):
        result = result.decode() if len(result) < 100 else "%d bytes" % len(result)
    if isinstance(result, list):
        result = [value.decode() for value in result]
    found.append([name, result])


def synced(store, call):
    """Does an act that is not answered, and waits for an answer after it: only then may another client rely on it."""
    result = call()
    store.num_keys()
    return result


def single_calls():
    a, b = client(), client()
    note("set", lambda: synced(a, lambda: a.set("k", "v")))
    note("get by another", lambda: b.get("k"))
    note("set again", lambda: synced(b, lambda: b.set("k", "")))
    note("get of nothing", lambda: a.get("k"))
    for name, key, expected, new in [
        ("missing, expected", "x", "exp", "new"),
        ("missing, nothing expected", "x", "", "new"),
        ("another value", "x", "no", "newer"),
        ("the value", "x", "new", "newer"),
        ("nothing expected, and there", "x", "", "e"),
        ("an empty value", "k", "", "e"),
    ]:
        note("compare_set: " + name, lambda: a.compare_set(key, expected, new))
        note("check after it", lambda: a.check([key]))
    for value in ["", " \t12abc", "+3", "-7", "9223372036854775807", "007"]:
        synced(a, lambda: a.set("n", value))
        note("add to %r" % value, lambda: client().add("n", 1))
        note("get after it", lambda: a.get("n"))
    for value in ["word", "-", "9223372036854775808"]:
        synced(a, lambda: a.set("n", value))
        note("add to %r" % value, lambda: client().add("n", 1))
        note("get after it", lambda: a.get("n"))
    note("add", lambda: a.add("fresh", 5))
    note("add less", lambda: b.add("fresh", -7))
    note("get a number", lambda: a.get("fresh"))
    note("add nothing", lambda: a.add("fresh", 0))
    note("empty key", lambda: (a.set("", "empty"), a.get(""))[1])
    note("odd bytes", lambda: (synced(a, lambda: a.set("a\0b\n\u00e9", "c\0d")), b.get("a\0b\n\u00e9"))[1])
    note("append to none", lambda: synced(a, lambda: a.append("ap", "1")))
    note("append", lambda: synced(b, lambda: b.append("ap", "23")))
    note("get appended", lambda: a.get("ap"))
    note("num_keys", a.num_keys)
    note("delete", lambda: a.delete_key("k"))
    note("delete again", lambda: b.delete_key("k"))
    note("num_keys after it", a.num_keys)
    note("check of none", lambda: a.check([]))
    note("check of some", lambda: a.check(["x", "nowhere"]))
    note("check of all", lambda: a.check(["x", "ap", "x"]))
    note("clone", lambda: a.clone().get("ap"))


def several_at_once():
    a = client()
    keys = ["m%d" % i for i in range(1000)]
    note("multi_set", lambda: synced(a, lambda: a.multi_set(keys, [key * 3 for key in keys])))
    note("multi_get", lambda: client().multi_get(keys) == [(key * 3).encode() for key in keys])
    note("multi_get twice the same", lambda: a.multi_get(["m1", "m2", "m1"]))
    note("multi_set of none", lambda: a.multi_set([], []))
    note("multi_get of none", lambda: a.multi_get([]))
    note("multi_set of unequal", lambda: a.multi_set(["a"], []))
    a.multi_set(["big1", "big2"], ["x" * 3000000, "y" * 3000000])
    note("multi_get of much", lambda: [str(len(value)).encode() for value in a.multi_get(["big1", "big2", "big1"])])
    note("wait for many", lambda: a.wait(keys, seconds(60)))


def timeouts():
    a = client()
    note("wait for none", lambda: a.wait([], seconds(60)))
    begun = time.monotonic()
    note("wait in vain", lambda: a.wait(["vain"], seconds(0.3)))
    note("took about that long", lambda: 0.25 < time.monotonic() - begun < 20)
    note("a call after it", lambda: a.add("after", 1))
    note("get in vain", lambda: client(timeout=1).get("vain"))
    note("multi_get in vain", lambda: client(timeout=1).multi_get(["after", "vain"]))
    a.set_timeout(seconds(1))
    note("timeout", lambda: a.timeout.total_seconds())
    note("get in vain, timeout set", lambda: a.get("vain"))
    for _ in range(200):  # a wait may end just when it is called off
        key = "race%d" % _
        other = threading.Thread(target=lambda: client().set(key, "1")) if _ % 50 == 0 else None
        if other:
            other.start()
        try:
            a.wait([key], seconds(0.001))
        except Exception:
            pass
        if other:
            other.join()
    note("still in step", lambda: a.add("after", 1))


def waiting():
    for name, act in [
        ("set", lambda a: a.set("w", "1")),
        ("add", lambda a: a.add("w", 1)),
        ("append", lambda a: a.append("w", "1")),
        ("multi_set", lambda a: a.multi_set(["other", "w"], ["2", "1"])),
        ("compare_set", lambda a: a.compare_set("w", "", "1")),
    ]:
        if name == "compare_set" and not USE_LIBUV:
            continue  # torch's plain server notifies no client then
        received = []
        threads = [threading.Thread(target=lambda c=client(): received.append(c.get("w"))) for _ in range(3)]
        for thread in threads:
            thread.start()
        act(client())
        for thread in threads:
            thread.join()
        note("get while waiting, ended by " + name, lambda: received)
        client().delete_key("w")  # answered: the next client that waits finds nothing
    both = client()
    thread = threading.Thread(
        target=lambda: note("wait for two, one of which went again", lambda: both.wait(["w1", "w2"], seconds(30)))
    )
    thread.start()
    time.sleep(0.3)  # the wait is there, else this shows less than it could
    other = client()
    other.set("w1", "1")
    other.delete_key("w1")
    other.set("w2", "1")
    thread.join()
    note("check after it", lambda: other.check(["w1"]))


def queues():
    a, b = client(), client()
    note("push", lambda: synced(a, lambda: a.queue_push("q", "1")))
    note("push", lambda: synced(b, lambda: b.queue_push("q", "2")))
    note("length", lambda: a.queue_len("q"))
    note("check", lambda: a.check(["q"]))
    note("pop", lambda: b.queue_pop("q"))
    note("pop", lambda: a.queue_pop("q", False))
    note("pop from none", lambda: a.queue_pop("q", False))
    # Of another queue: torch's server may hand what comes next to a client that has just left.
    note("pop in vain", lambda: client(timeout=1).queue_pop("vain"))
    note("length of none", lambda: a.queue_len("nowhere"))
    if not USE_LIBUV:
        return
    # torch's server may wake one client for a value that another one has taken meanwhile, and then answers neither: it
    # has more goes.
    for go in range(OF_TORCH_GOES if IS_TORCHS else 1):
        received = []
        threads = [
            threading.Thread(target=lambda c=client(): received.append(c.queue_pop("q%d" % go))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for number in range(8):
            a.queue_push("q%d" % go, str(number))
        for thread in threads:
            thread.join()
        if len(received) == 8:
            break
    note("each to one", lambda: sorted(received))


def prefixes():
    a = PrefixStore("p", client())
    deep = PrefixStore("q", PrefixStore("p", client()))
    note("prefix: set", lambda: synced(a, lambda: a.set("k", "1")))
    note("prefix: deep set", lambda: synced(deep, lambda: deep.set("k", "2")))
    note("prefix: get", lambda: a.get("k"))
    note("prefix: deep get", lambda: deep.get("k"))
    note("prefix: through", lambda: client().get("p/q/k"))
    note("prefix: add", lambda: deep.add("n", 3))
    note("prefix: compare_set", lambda: a.compare_set("k", "1", "3"))
    note("prefix: multi", lambda: (deep.multi_set(["a", "b"], ["1", "2"]), deep.multi_get(["b", "a"]))[1])
    note("prefix: append", lambda: (deep.append("a", "1"), deep.get("a"))[1])
    note("prefix: wait", lambda: deep.wait(["a", "b"], seconds(60)))
    note("prefix: wait in vain", lambda: deep.wait(["vain"], seconds(0.2)))
    note("prefix: delete", lambda: deep.delete_key("a"))
    note("prefix: check", lambda: deep.check(["a"]))


def many_clients():
    def rank(number):
        mine = client()
        count = mine.add("barrier", 1)
        mine.set("rank%d" % number, str(number))
        if count == 64:
            mine.set("all", "here")
        mine.wait(["all"], seconds(60))
        received[number] = mine.multi_get(["rank%d" % other for other in range(64)])

    received = {}
    threads = [threading.Thread(target=rank, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [str(number).encode() for number in range(64)]
    note("a barrier of 64", lambda: all(received.get(number) == expected for number in range(64)))


def workers():
    """What every rank does at its start: the count that wait_for_workers keeps."""
    for _ in range(3):
        store(PORT, world_size=3, wait_for_workers=True)
    note("workers", lambda: int(client().num_keys()) > 0)


def lengths():
    def there_and_back(key, value):
        a = client()
        a.set(key, value)
        return a.get(key)

    note("longest value", lambda: there_and_back("long", "x" * (8 << 20)))
    note("longest key", lambda: there_and_back("y" * ((8 << 10) - 1), "1"))
    note("value beyond the bound", lambda: there_and_back("long", "x" * ((8 << 20) + 1)))
    note("key beyond the bound", lambda: there_and_back("y" * (8 << 10), "1"))
    note("the value is as it was", lambda: client().get("long"))


for part in [single_calls, several_at_once, timeouts, waiting, queues, prefixes, many_clients, workers, lengths]:
    part()
print(json.dumps(found))
