"""A store that ranks of several hosts meet at, with a process of another host that does not know the job's secret.

`python other_host.py ROLE HOST PORT`: `rank` writes signed values, `intruder` puts others in their place, `reader`
prints which of them it reads. The client is torch's protocol in a few lines.
"""

import json
import os
import socket
import sys


class Client:
    def __init__(self, host, port):
        self.peer = socket.create_connection((host, int(port)), 20)
        self.peer.sendall(bytes([0, 0xCE, 0xF7, 0x85, 0x3C]))

    def set(self, key, value):
        self.peer.sendall(b"\x01" + string(key.encode()) + string(value))

    def get(self, key):
        self.peer.sendall(b"\x03" + string(key.encode()))
        return self.exactly(int.from_bytes(self.exactly(8), "little"))

    def exactly(self, count):
        came = b""
        while len(came) < count:
            more = self.peer.recv(count - len(came))
            if not more:
                raise EOFError("the store has closed the connection")
            came += more
        return came

    def settle(self):
        self.peer.sendall(b"\x0d" + b"ping")
        assert self.exactly(4) == b"ping"


def string(text):
    return len(text).to_bytes(8, "little") + text


def signing(client):
    from taskd import _auth

    return _auth.Store(client, _auth.key_of(_auth.store_of(1)), "state")


def rank(client):
    for key in ("state/0", "state/1", "state/2"):
        signing(client).set(key, key.encode())
    client.settle()
    return {}


def intruder(client):
    assert "TASKD_SECRET" not in os.environ
    signed = client.get("state/0")
    client.set("state/0", b"forged")
    client.set("state/1", signed)  # what a rank has signed for another key
    client.settle()
    return {"read": b"state/0" in signed}


def reader(client):
    from taskd import _auth

    found = {}
    for key in ("state/0", "state/1", "state/2"):
        try:
            found[key] = signing(client).get(key).decode()
        except _auth.NotOurs:
            found[key] = None
    return found


print(json.dumps(globals()[sys.argv[1]](Client(*sys.argv[2:4]))))
