"""Clients that join while the name service does not answer, or answers late, as JSON: names.py STORE [torch].

Runs in a network namespace of its own.

STORE is a program to run as our store; with "torch" torch's own server is measured, too. Clients speak the protocol
themselves: torch's client asks the name service as well, which is not what is measured here.
"""

import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time

CLIENTS = 10
LATE_SECONDS = 0.5
late = threading.Event()


def name_service():
    """Receives everything and answers nothing; later, that there is no such name, half a second late."""
    while True:
        query, asker = silence.recvfrom(1024)
        if late.is_set():
            time.sleep(LATE_SECONDS)
            silence.sendto(query[:2] + b"\x81\x83" + query[4:], asker)


subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
silence = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
silence.bind(("127.0.0.1", 53))
threading.Thread(target=name_service, daemon=True).start()
resolv = "resolv.conf"
with open(resolv, "w") as file:
    file.write("nameserver 127.0.0.1\noptions timeout:3 attempts:1\n")
subprocess.run(["mount", "--bind", resolv, os.path.realpath("/etc/resolv.conf")], check=True)


def joined(port, clients):
    """Seconds until that many have connected, and one after the other got an answer."""
    begun = time.monotonic()
    for _ in range(clients):
        stream = socket.create_connection(("127.0.0.9", port), source_address=("127.0.0.7", 0))
        stream.sendall(bytes([0]) + struct.pack("<I", 0x3C85F7CE) + bytes([13, 1, 2, 3, 4]))
        assert stream.recv(4) == bytes([1, 2, 3, 4])
    return time.monotonic() - begun


def say(control, message, descriptors=()):
    text = json.dumps(message).encode()
    socket.send_fds(control, [struct.pack("<I", len(text)) + text], list(descriptors))
    length = struct.unpack("<I", control.recv(4, socket.MSG_WAITALL))[0]
    return json.loads(control.recv(length, socket.MSG_WAITALL))


def ours():
    path = "control"
    store = subprocess.Popen([sys.argv[1], "--control", path])
    try:
        control = socket.socket(socket.AF_UNIX)
        while control.connect_ex(path):
            time.sleep(0.01)
        say(control, {"hello": {"protocol": 1}})
        listener = socket.create_server(("", 0))
        call = {"call": {"id": 1, "call": {"serve": {"generation": 1}}}}
        assert say(control, call, [listener.fileno()])["answer"]["answer"] == {"Ok": "served"}
        return joined(listener.getsockname()[1], CLIENTS)
    finally:
        store.kill()
        store.wait()


def torchs():
    program = "import sys, torch.distributed as d\nprint(1, flush=True)\n"
    # Its constructor is a client of its own, and so is the first that it looks up.
    program += (
        "s = d.TCPStore('127.0.0.1', 0, None, True, wait_for_workers=False)\nprint(s.port, "
        "flush=True)\nsys.stdin.read()"
    )
    server = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        server.stdout.readline()
        begun = time.monotonic()
        port = int(server.stdout.readline())
        return {"its_own_client": time.monotonic() - begun, "clients": joined(port, CLIENTS)}
    finally:
        server.kill()
        server.wait()


begun = time.monotonic()
try:
    socket.gethostbyaddr("127.0.0.7")
    sys.exit("the name service answers")
except OSError:
    silent = time.monotonic() - begun
found = {"look_up": silent}
for state in ["dead", "late"]:
    found[state] = {"ours": ours()}
    if sys.argv[2:] == ["torch"]:
        found[state]["torchs"] = torchs()
    late.set()
    os.remove("control")
print(json.dumps(found))
