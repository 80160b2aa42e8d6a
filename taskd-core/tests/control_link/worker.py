"""A stand-in for a training program: it counts steps on its page, speaks the control link, and trains nothing.

It writes each directive that it receives as a line into $RECEIVED/<proc>. On SIGUSR1 it reports a failed collective
with the message FAILURE; on SIGUSR2 it reports that its work is done. ODD chooses what it does wrong, and ODD_PROC (a
pattern) which processes do so; without ODD_PROC all do.
"""

import fnmatch
import json
import mmap
import os
import select
import signal
import socket
import struct
import sys
import time

PROC = os.environ["TASKD_PROC"]
ODD = os.environ.get("ODD", "") if fnmatch.fnmatch(PROC, os.environ.get("ODD_PROC", "*")) else ""
JOINS = "TASKD_JOIN" in os.environ
MESSAGE = os.environ.get("FAILURE", "closed by peer")
received = open(os.path.join(os.environ["RECEIVED"], PROC), "a", buffering=1)
with open(os.environ["TASKD_LIFELINE"], "r+b") as file:
    page = mmap.mmap(file.fileno(), 4096)
failed, ended = [], []
signal.signal(signal.SIGUSR1, lambda *_: failed.append(True))
signal.signal(signal.SIGUSR2, lambda *_: ended.append(True))


def digest(step, of):
    """All ranks are replicas, in the words of their framework."""
    return {"loop": 1, "step": step, "digest": of, "group": "all"}


def at(offset, value):
    page[offset : offset + 8] = struct.pack("=Q", value)


class Link:
    def __init__(self):
        self.socket, self.buffer = None, b""

    def connect(self):
        self.socket, self.buffer = socket.socket(socket.AF_UNIX), b""
        self.socket.connect(os.environ["TASKD_CONTROL"])
        can = ["abort", "join", "sync-state", "resume", "write-shard", "write-manifest"]
        hello = {"version": 1, "proc": PROC, "pid": os.getpid(), "generation": generation, "framework": "stand-in"}
        hello.update(capabilities=can, position=point, later="a field of a later version")
        if not JOINS:
            hello["digest"] = digest(0, "equal")
        hello.update(json.loads(os.environ.get("LIMITS", "{}")))
        self.say({"hello": hello})

    def say(self, message):
        body = json.dumps(message).encode()
        self.socket.sendall(struct.pack("<I", len(body)) + body)

    def receive(self, seconds):
        """The next message; None where none has come."""
        try:
            if self.socket is None:
                self.connect()
            while True:
                if len(self.buffer) >= 4:
                    length = struct.unpack("<I", self.buffer[:4])[0]
                    if len(self.buffer) >= 4 + length:
                        body, self.buffer = self.buffer[4 : 4 + length], self.buffer[4 + length :]
                        return json.loads(body)
                if not select.select([self.socket], [], [], seconds)[0]:
                    return None
                part = self.socket.recv(65536)
                if not part:
                    raise OSError("hung up")
                self.buffer += part
        except OSError:
            self.socket = None
            time.sleep(0.01)


def do(order):
    """The answer to a directive."""
    global generation, point, step, trains
    ((name, what),) = order["what"].items()
    received.write(json.dumps({"id": order["id"], "generation": order["generation"], name: what}) + "\n")
    if ODD == "other-buckets" and name == "sync-state":
        return {
            "error": "the buckets of this rank ([12]) are not those of the others (%s); "
            "restart all ranks" % what["buckets"]
        }
    if ODD == "refuses-" + name:
        return {"error": "it does not want to"}
    if name == "abort":
        trains = False
        return {"ok": {"state": {"step": step + 1, "committed": step, "window": "before", "buckets": [8, 4]}}}
    if name == "join":
        generation = order["generation"]
        at(40, generation)
        return {"ok": {"joined_ms": 1.5}}
    if name == "write-shard" and ODD == "one-dies-in-write-shard":
        try:
            os.close(os.open(os.path.join(os.environ["RECEIVED"], "died"), os.O_CREAT | os.O_EXCL))
            os.kill(os.getpid(), signal.SIGKILL)
        except FileExistsError:
            pass  # another one
    if name == "write-shard" and ODD == "waits-in-write-shard":
        time.sleep(60)
    if name == "write-shard":
        return {"ok": {"shard": {"file": PROC + ".pt", "bytes": 9, "sha256": "0" * 64}, "saved_ms": 1.5}}
    if name == "write-manifest":
        return {"ok": {}}
    if name == "sync-state":
        step = what["step"] - 1
        return {"ok": {"copied_bytes": 12, "digest": digest(step + 1, "odd" if ODD == "other-state" else "repaired")}}
    point, trains = "in-loop", True
    link.say({"position": {"now": point, **json.loads(os.environ.get("LATER_LIMITS", "{}"))}})
    return {"ok": {}}


generation, point = int(os.environ["TASKD_GENERATION"]), "parked" if JOINS else "in-loop"
step, trains = 0, not JOINS
link, done = Link(), {}
print("a stand-in for a training program", flush=True)
while not (trains and (ended or step >= int(os.environ.get("UNTIL", 1 << 40)))):
    message = link.receive(0.01)
    if message and "do" in message:
        order = message["do"]
        if ODD == "silent":
            continue
        if ODD == "garbage" or ODD == "garbage-to-" + next(iter(order["what"])):
            link.socket.sendall(b"\xff\xff\xff\xffwhat")
            continue
        if order["id"] not in done:
            done[order["id"]] = dict(do(order), id=order["id"])
        link.say({"reply": done[order["id"]]})
    if failed:
        failed.clear()
        link.say({"failed": {"kind": "collective", "op": "allreduce", "step": step, "message": MESSAGE}})
    if trains:
        step += 1
        at(48, step)
        at(56, time.monotonic_ns())
    at(64, time.monotonic_ns())
sys.exit(0)
