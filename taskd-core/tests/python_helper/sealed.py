"""Values as bytes, signed values in a store, and authenticated connections between ranks. Prints what was found as
JSON.

`python sealed.py NAME`. The store is a dictionary; sockets are real.
"""

import collections
import json
import os
import pickle
import random
import socket
import subprocess
import sys
import threading
import time

from taskd import _auth, _codec, _copy, _link, _listener

os.environ["TASKD_SECRET"] = "5a" * 32
logged = []
_link.say = logged.append
SOAK = os.environ.get("TASKD_SOAK") == "1"


def until(is_so, seconds=10):
    limit = time.monotonic() + seconds
    while not is_so() and time.monotonic() < limit:
        time.sleep(0.005)
    return bool(is_so())


VALUES = [
    None,
    True,
    -(10**40),
    1.5,
    float("inf"),
    "\udc80\u00e9",
    b"",
    b"abc",
    (1, (2, b"x")),
    [1, [2]],
    {},
    {"a": 1, "b": 0},
    {1: 2, (1, b"k"): 3, None: 4},
    {1, 2},
    frozenset({(1, "a")}),
    collections.OrderedDict(b=1, a=2),
    collections.Counter("abca"),
    collections.defaultdict(list, {"a": [1]}),
    collections.deque([1, 2], 3),
    2 + 3j,
    bytearray(b"x"),
]


class Evil:
    """What pickle would call."""

    def __reduce__(self):
        return os.system, ("echo it was run",)


def codec():
    whole = VALUES + [VALUES[:9], {"all": tuple(VALUES)}]
    same = all(
        _codec.decode(_codec.encode(one)) == one and type(_codec.decode(_codec.encode(one))) is type(one)
        for one in whole
    )
    refused = []
    for one in (object(), Evil(), lambda: 1, {"a": [object]}, collections.defaultdict(dict.fromkeys)):
        try:
            _codec.encode(one)
        except _codec.NotEncodable as error:
            refused.append(str(error).split(" at 0x")[0])
    deep = []
    for _ in range(100):
        deep = [deep]
    outcomes = collections.Counter()
    dice, good = random.Random(7), _codec.encode(whole)
    garbage = [b"", b"\xff" * 4, b"\xff" * 40, pickle.dumps(Evil(), 4), b"\x02\0\0\0[]", json_only("[" * 100000)]
    garbage += [json_only('[{"b":%s},[1]]' % at) + b"x" for at in ("-1", "9", "true", '"0"', "1e99")] + [
        json_only('[{"q":[[],-1]},[]]')
    ]
    garbage += [damaged(dice, good) for _ in range(200000 if SOAK else 4000)]
    for one in garbage:
        try:
            _codec.decode(one)
            outcomes["decoded"] += 1
        except _codec.Malformed:
            outcomes["malformed"] += 1
    try:
        _codec.encode(deep)
    except _codec.NotEncodable as error:
        refused.append(str(error))
    return {
        "same": same,
        "refused": refused,
        "all": sum(outcomes.values()) == len(garbage),
        "malformed": outcomes["malformed"] > 1000,
    }


def json_only(text):
    return len(text).to_bytes(4, "little") + text.encode()


def damaged(dice, good):
    bad = bytearray(good)
    for _ in range(dice.randint(1, 4)):
        bad[dice.randrange(len(bad))] = dice.randrange(256)
    return bytes(bad[: dice.randrange(len(bad))] if dice.random() < 0.3 else bad)


class Dictionary(dict):
    set, check = dict.__setitem__, lambda self, keys: all(key in self for key in keys)

    def get(self, key):
        return self[key]


def store():
    inner = Dictionary()
    ours = _auth.Store(inner, _auth.key_of(_auth.store_of(3)), "part")
    ours.set("state/0", b"value")
    found, refused = {"read": ours.get("state/0").decode(), "there": ours.check(["state/0"])}, []
    replaced = {
        "nothing": b"",
        "by hand": b"value",
        "other bytes": inner["state/0"] + b"x",
        "another key's": signed(3, "part", "state/1"),
        "another part's": signed(3, "other", "state/0"),
        "an older generation's": signed(2, "part", "state/0"),
    }
    os.environ["TASKD_SECRET"] = "5b" * 32
    replaced["another job's"] = signed(3, "part", "state/0")
    os.environ["TASKD_SECRET"] = "5a" * 32
    for what, value in replaced.items():
        inner["state/0"] = value
        try:
            ours.get("state/0")
        except _auth.NotOurs:
            refused.append(what)
    found["refused"] = refused == list(replaced)
    without = []
    for secret in (None, "", "5a", "zz" * 32):
        os.environ.pop("TASKD_SECRET", None) if secret is None else os.environ.update(TASKD_SECRET=secret)
        try:
            _auth.key_of(b"x")
        except _auth.NotOurs as error:
            without.append(str(error))
    found["without"] = (len(without), without[0])
    return found


def signed(generation, part, key):
    inner = Dictionary()
    _auth.Store(inner, _auth.key_of(_auth.store_of(generation)), part).set(key, b"value")
    return inner[key]


def threads():
    return len(os.listdir("/proc/self/task"))


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def echo(peer):
    while True:
        peer.sendall(_auth.exactly(peer, 4))


def connections():
    """1,070 that say nothing beside two ranks of the job: neither threads nor descriptors go to them."""
    _listener.UNKNOWN_SECONDS = 2
    listener = _listener.Listener("127.0.0.1", b"test", echo)
    address = "127.0.0.1", listener.port()
    first = _auth.dial(address, listener.name, b"test", 5)
    first.sendall(b"here")
    _auth.exactly(first, 4)  # it has its thread
    before = threads(), descriptors()
    silent = os.fork()
    if not silent:  # descriptors of its own
        held = []
        for at in range(1070):
            one = socket.create_connection(address)
            if at % 3 == 0:
                one.sendall(os.urandom(48 if at % 2 else 5))
            held.append(one)
        time.sleep(30)
        os._exit(0)
    answers = []
    until(lambda: listener.closed >= 1000)
    second = _auth.dial(address, listener.name, b"test", 5)
    for peer in (first, second):
        peer.sendall(b"ping")
        answers.append(_auth.exactly(peer, 4).decode())
    at_most = threads() - before[0], descriptors() - before[1]
    over = until(lambda: descriptors() - before[1] <= 2)  # the second rank's two ends: those that say nothing have gone
    os.kill(silent, 9)
    os.waitpid(silent, 0)
    first.close()
    second.close()
    listener.close()
    ends = until(lambda: threads() == 1)
    return {
        "answers": answers,
        "threads": at_most[0],
        "few": at_most[1] <= _listener.UNKNOWN_MAX + 2,
        "over": over,
        "ends": ends,
        "logged": logged,
    }


def strangers():
    """A process without the secret is not served, and a listener without it is not trusted."""
    outcomes = {}
    listener = _listener.Listener("127.0.0.1", b"test", echo)
    address = "127.0.0.1", listener.port()
    for what, secret, purpose in (("another job's", "5b" * 32, b"test"), ("for another purpose", "5a" * 32, b"other")):
        os.environ["TASKD_SECRET"] = secret
        outcomes[what] = failure(lambda: _auth.dial(address, listener.name, purpose, 5))
    os.environ["TASKD_SECRET"] = "5a" * 32
    liar = socket.socket()
    liar.bind(("127.0.0.1", 0))
    liar.listen(4)
    threading.Thread(target=pretend, args=(liar,), daemon=True).start()
    outcomes["a liar"] = failure(lambda: _auth.dial(liar.getsockname(), listener.name, b"test", 5))
    mirror = socket.socket()
    mirror.bind(("127.0.0.1", 0))
    mirror.listen(4)
    threading.Thread(target=reflect, args=(mirror, address), daemon=True).start()
    outcomes["a peer that sends it back"] = failure(lambda: _auth.dial(mirror.getsockname(), listener.name, b"test", 5))
    gone = _listener.Listener("127.0.0.1", b"test", echo)
    gone.close()
    relay = socket.socket()
    relay.bind(("127.0.0.1", 0))
    relay.listen(4)
    threading.Thread(target=pass_on, args=(relay, address), daemon=True).start()
    outcomes["a relay to another rank"] = failure(lambda: _auth.dial(relay.getsockname(), gone.name, b"test", 5))
    listener.close()
    return outcomes


def failure(function):
    try:
        function()
        return "served"
    except _auth.NotOurs as error:
        return str(error).replace(str(error).split(":")[-1].split(" ")[0], "PORT")


def pretend(liar):
    while True:
        peer, _ = liar.accept()
        peer.sendall(bytes(16) + bytes(32))
        peer.recv(100)


def reflect(mirror, _):
    while True:
        peer, _ = mirror.accept()
        peer.sendall(bytes(16))
        shown = _auth.exactly(peer, 48)
        peer.sendall(shown[16:])  # what it has shown itself


def pass_on(relay, address):
    """At the port of a rank that is gone: passes on what comes, to a rank that lives and back."""
    while True:
        one = relay.accept()[0]
        other = socket.create_connection(address)
        for source, target in ((one, other), (other, one)):
            threading.Thread(target=pump, args=(source, target), daemon=True).start()


def pump(source, target):
    data = True
    while data:
        data = source.recv(4096)
        target.sendall(data)
    target.shutdown(socket.SHUT_WR)


def memory():
    """A server of copies gives its ranges to ranks of the job alone, at this host's own address."""
    import ctypes

    os.environ["TASKD_STATE_TRANSFER"] = "tcp"
    source, target = ctypes.create_string_buffer(b"0123456789abcdef", 16), ctypes.create_string_buffer(16)
    server = _copy.Server([(ctypes.addressof(source), 16)])
    move = (server.where(), [(ctypes.addressof(target), ctypes.addressof(source), 16)])
    read = _copy.read([move], lambda: False)
    outside = None
    try:
        _copy.read([(server.where(), [(ctypes.addressof(target), ctypes.addressof(source) - 8, 16)])], lambda: False)
    except _copy.Unreadable as error:
        outside = "closed" in str(error)
    os.environ["TASKD_SECRET"] = "5b" * 32
    stranger = None
    try:
        _copy.read([move], lambda: False)
    except _copy.Unreadable as error:
        stranger = str(error).rpartition(": ")[2].replace(str(server.listener.port()), "PORT")
    at = server.listener.socket.getsockname()[0]
    server.close()
    return {"read": read, "same": target.raw == source.raw, "outside": outside, "stranger": stranger, "at": at}


def other_host():
    """Connections from another host that does not know the secret: to a rank of a job of one host, and to one at an
    address of the network. Its arguments: that address, and a command that runs what follows it on the other host."""
    import ctypes

    _listener.UNKNOWN_SECONDS = 2
    os.environ["TASKD_STATE_TRANSFER"] = "tcp"
    here, on_the_other = sys.argv[2], sys.argv[3:]
    state, target = (
        ctypes.create_string_buffer(b"what a rank has in memory, which no other job is to see", 64),
        ctypes.create_string_buffer(64),
    )
    start = ctypes.addressof(state)

    def asks(port, *more):
        command = on_the_other + [sys.executable, __file__, "intruder", here, str(port), str(start), *more]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    alone = _listener.Listener("127.0.0.1", _copy.PURPOSE, echo)
    refused = json.loads(asks(alone.port()).communicate()[0])
    os.environ["TASKD_HOST"] = here
    server = _copy.Server([(start, 64)])
    before = descriptors()
    intruder = asks(server.listener.port(), "and holds 300")
    until(lambda: server.listener.closed >= 200)
    few = descriptors() - before <= _listener.UNKNOWN_MAX + 4
    outcome = json.loads(intruder.stdout.readline())  # it goes on to hold what it has
    _copy.read([(server.where(), [(ctypes.addressof(target), start, 64)])], lambda: False)
    intruder.communicate()  # which ends it
    at, same = server.listener.socket.getsockname()[0] == here, target.raw == state.raw
    alone.close()
    server.close()
    return {"refused": refused["dialled"], "at": at, "intruder": outcome, "few": few, "a rank is served": same}


def intruder():
    """On the other host: requests a rank's memory in each possible way, and prints what it received."""
    address, start = (sys.argv[2], int(sys.argv[3])), int(sys.argv[4])
    request = start.to_bytes(8, "little") + (64).to_bytes(8, "little")
    begun = time.monotonic()
    try:
        socket.create_connection(address, 20).close()
    except OSError as error:
        return {"dialled": [type(error).__name__, time.monotonic() - begun < 5]}
    most = 0
    for request_ in (request, bytes(48), request * 8, b"GET / HTTP/1.1\r\n\r\n" * 10):
        peer = socket.create_connection(address, 20)
        peer.sendall(request_)
        came = b""
        try:
            while True:
                more = peer.recv(4096)
                if not more:
                    break
                came += more
        except ConnectionResetError:
            pass
        most = max(most, len(came))
    os.environ["TASKD_SECRET"] = "5b" * 32
    dialled = failure(lambda: _auth.dial(address, "a name that it does not know", _copy.PURPOSE, 20))
    outcome = {"dialled": dialled.replace(address[0], "HERE"), "at most a challenge": most <= _auth.NONCE_BYTES}
    print(json.dumps(outcome), flush=True)
    held = [socket.create_connection(address, 20) for _ in range(300)]
    sys.stdin.read()
    return {"held": len(held)}


print(json.dumps(globals()[sys.argv[1]]()))
