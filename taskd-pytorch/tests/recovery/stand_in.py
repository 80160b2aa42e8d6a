"""A stand-in for the supervisor: it holds the control link, aborts, joins, repairs and resumes like the real one. It
knows of a death only what the test has done.
"""

import json
import os
import select
import signal
import socket
import tempfile
import time

import ranks

PATIENCE_SECONDS = 40


def packed(message):
    text = json.dumps(message).encode()
    return len(text).to_bytes(4, "little") + text


class Unpacker:
    def __init__(self):
        self.bytes = b""

    def add(self, data):
        self.bytes += data

    def next(self):
        length = int.from_bytes(self.bytes[:4], "little")
        if len(self.bytes) < 4 or len(self.bytes) < 4 + length:
            return None
        text, self.bytes = self.bytes[4 : 4 + length], self.bytes[4 + length :]
        return json.loads(text)


def given_in(answer):
    """Returns the bytes that each rank has given, as far as the answer to a repair states them by rank."""
    parts = ((name.rpartition("_from_")[2], count) for name, count in answer.items() if "_from_" in name)
    return {"all": answer["copied_bytes"], "parts": dict(parts)}


class Failed(Exception):
    """The test has failed."""


class Again(Exception):
    """Something happened while a recovery was under way."""


class Peer:
    """A process with its connection."""

    def __init__(self, process):
        self.process = process
        self.socket = None
        self.at = None
        self.hello = self.limits = None
        self.hellos = 0
        self.failures = []

    def __repr__(self):
        return self.process.name


class StandIn:
    is_a_stand_in = True
    are_replicas = True  # their checksums are equal wherever all ranks have reported one
    givers = 1  # of how many peers a rank copies, where so many have the state
    patience_seconds = PATIENCE_SECONDS

    def __init__(self, size, main, **environment):
        self.size, self.main = size, main
        self.directory = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.directory.name, "worker.sock")
        self.digests = {}  # (loop, step): by rank
        self.store_pid, self.port = ranks.store_server()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.listener.bind(self.path)
        self.listener.listen(64)
        self.listener.setblocking(False)
        self.environment = dict(
            {"TASKD_CONTROL": self.path, "TASKD_SECRET": "5a" * 32, "KEEP": "keep", **environment},
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(self.port),
            TORCHELASTIC_USE_AGENT_STORE="True",  # the store is there already
            TORCHELASTIC_RESTART_COUNT="0",
            GLOO_SOCKET_IFNAME="lo",
            OMP_NUM_THREADS="1",
        )
        self.generation, self.incarnation, self.next_id = 1, 0, 0
        self.answers, self.garbage, self.ids = {}, 0, {}
        self.unknown = []  # (socket, unpacker) of those that have not sent hello
        self.phases = []  # of each recovery, in milliseconds
        self.ended = []  # processes that were replaced
        self.world = [self.start(rank, "train") for rank in range(size)]
        self.parked = {}
        self.absent = set()  # ranks without which the others go on

    def start(self, rank, mode):
        self.incarnation += 1
        environment = dict(self.environment, TASKD_GENERATION=str(self.generation), **self.place(rank))
        peer = Peer(ranks.Process(self.directory.name, rank, self.size, self.incarnation, self.main, environment))
        peer.mode = mode
        return peer

    def place(self, rank):
        """What a rank's environment has of where it is."""
        return {}

    def park(self, rank):
        """Starts a replacement of a rank ahead of time. The other ranks are stopped meanwhile: on a busy machine they
        would come to their end."""
        self.parked[rank] = self.start(rank, "join")
        others = [peer.process.pid for peer in self.here() if not peer.process.ended()]
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        try:
            self.pump(lambda: self.parked[rank].at == "parked", "a replacement parks")
            assert self.parked[rank].process.step() == 0, "what a replacement does to be warm is no step of the job"
        finally:
            for pid in others:
                os.kill(pid, signal.SIGCONT)

    def here(self):
        return [peer for rank, peer in enumerate(self.world) if rank not in self.absent]

    def peers(self):
        return self.world + list(self.parked.values())

    # The link.

    def pump(self, until, what, again=True):
        """Serves the link until something is so."""
        seconds = self.patience_seconds
        limit = time.monotonic() + seconds
        while not until():
            if time.monotonic() > limit:
                self.log_stacks()
                raise Failed("%s: not within %d s; %s" % (what, seconds, self.story()))
            self.serve(0.002)
            for peer in self.here():
                if again and peer.process.ended() and peer.process.exit != 0:
                    raise Again(peer)

    def log_stacks(self):
        for peer in self.peers():
            peer.process.kill(signal.SIGUSR1)
            time.sleep(0.2)  # one after the other, on stderr

    def story(self):
        return [(peer, peer.at, peer.process.step(), peer.process.exit, peer.failures[-1:]) for peer in self.peers()]

    def serve(self, seconds):
        sockets = {self.listener.fileno(): None}
        sockets.update({one[0].fileno(): one for one in self.unknown})
        sockets.update({peer.socket.fileno(): peer for peer in self.peers() if peer.socket is not None})
        for fd in select.select(list(sockets), [], [], seconds)[0]:
            one = sockets[fd]
            if one is None:
                self.unknown.append((self.listener.accept()[0], Unpacker()))
            elif isinstance(one, Peer):
                self.read(one.socket, one.unpacker, one)
            else:
                self.read(one[0], one[1], None)

    def read(self, sock, unpacker, peer):
        try:
            data = sock.recv(65536)
        except OSError:
            data = b""
        if not data:
            sock.close()
            if peer is not None:
                peer.socket = None
            self.unknown = [one for one in self.unknown if one[0] is not sock]
            return
        unpacker.add(data)
        while True:
            message = unpacker.next()
            if message is None:
                return
            if "hello" in message:
                peer = self.greet(sock, unpacker, message["hello"])
            else:
                self.take(peer, message)

    def greet(self, sock, unpacker, hello):
        self.unknown = [one for one in self.unknown if one[0] is not sock]
        peer = next(peer for peer in self.peers() if peer.process.name == hello["proc"])
        assert hello["pid"] == peer.process.pid and hello["version"] == 1, hello
        peer.socket, peer.unpacker, peer.hello, peer.at = sock, unpacker, hello, hello["position"]
        peer.hellos += 1
        self.send(peer, {"welcome": {"version": 1, "mode": peer.mode}})
        return peer

    def take(self, peer, message):
        if "position" in message:
            peer.at, peer.limits = message["position"]["now"], message["position"]
        elif "digest" in message:
            self.proved(peer, message["digest"])
        elif "failed" in message:
            peer.failures.append(message["failed"])
        elif "reply" in message:
            self.answers[message["reply"]["id"]] = message["reply"]

    def proved(self, peer, digest):
        if peer in self.world:
            known = self.digests.setdefault((digest["loop"], digest["step"]), {})
            known[self.world.index(peer)] = digest
            if self.are_replicas and len({(one["digest"], one["group"]) for one in known.values()}) > 1:
                raise Failed("replicas have different checksums: %s" % known)

    def send(self, peer, message):
        try:
            peer.socket.setblocking(True)
            peer.socket.sendall(packed(message))
        except (OSError, AttributeError):
            pass

    def do(self, peer, kind, order, generation=None):
        """Sends a directive; its id."""
        self.next_id += 1
        generation = self.generation if generation is None else generation
        self.send(peer, {"do": {"id": self.next_id, "generation": generation, "what": {kind: order}}})
        return self.next_id

    def all_do(self, peers, kind, order):
        """The answers of all, in their order; a refusal fails the test."""
        ids = [self.do(peer, kind, order(peer)) for peer in peers]
        self.pump(lambda: all(one in self.answers for one in ids), kind)
        answers = [self.answers.pop(one) for one in ids]
        for peer, answer in zip(peers, answers):
            if "error" in answer:
                raise Failed("%s refuses %s: %s" % (peer, kind, answer["error"]))
        return [answer["ok"] for answer in answers]

    # Recovery.

    def replace(self, rank):
        """Puts a replacement in the place of a rank whose process is gone, or stands still."""
        self.ended.append(self.world[rank])
        self.world[rank] = self.parked.pop(rank, None) or self.start(rank, "join")

    def recover(self, dead=()):
        """Until all ranks have completed a step more. A rank that dies meanwhile is replaced as well."""
        dead, began = list(dead), time.monotonic()
        while True:
            try:
                for rank in dead:
                    self.replace(rank)
                return self.recover_once(began)
            except Again as again:
                dead = [self.world.index(again.args[0])]

    def recover_once(self, began):
        self.generation += 1
        clock, phases = [began], {}

        def phase(name):
            now = time.monotonic()
            phases[name] = (now - clock[0]) * 1000
            clock[0] = now

        here = self.here()
        self.pump(
            lambda: all(peer.at == "in-loop" for peer in here if peer.mode == "train"), "all come to their step loops"
        )
        for peer in here:
            peer.failures.clear()
        old = [peer for peer in here if peer.at == "in-loop"]
        states = dict(zip(old, (one["state"] for one in self.all_do(old, "abort", lambda peer: {}))))
        phase("give up")
        new = [peer for peer in here if peer not in old]
        self.pump(lambda: all(peer.at == "parked" for peer in new), "replacements park")
        if new:
            states.update(zip(new, (one["state"] for one in self.all_do(new, "abort", lambda peer: {}))))
        phase("replacement")
        for peer in self.ended:
            peer.process.kill()
        members = {peer: {"rank": self.world.index(peer), "pid": peer.process.pid} for peer in here}
        where = {"size": len(here), "members": list(members.values()), "prefix": "taskd/%d" % self.generation}
        where["store"] = {"host": "127.0.0.1", "port": self.port}
        joined = self.all_do(here, "join", lambda peer: dict(where, rank=self.world.index(peer)))
        phase("join")
        committed = [state["committed"] for state in states.values() if state["committed"] is not None]
        step = max(committed) + 1 if committed else 0
        have = [peer for peer in here if states[peer]["step"] == step and states[peer]["window"] == "before"]
        lack = [peer for peer in here if peer not in have]
        if not have:
            raise Failed("no rank has the state of step %d: %s" % (step, states))
        orders = {peer: {"step": step, "from": None, "to": [], "rollback": True} for peer in here}
        for peer in lack:
            givers = [members[giver] for giver in have[: self.givers]]
            orders[peer]["from"] = givers if self.givers > 1 else givers[0]  # as an older supervisor names one
            orders[peer]["buckets"] = states[have[0]]["buckets"]
            for giver in have[: self.givers]:
                orders[giver]["to"].append(self.world.index(peer))
        repaired = self.all_do(here, "sync-state", orders.get)
        if self.are_replicas and len({(one["digest"] or {}).get("digest") for one in repaired}) > 1:
            raise Failed("replicas have different checksums after the repair: %s" % repaired)
        phase("sync-state")
        self.all_do(here, "resume", lambda peer: {"step": step})
        phase("resume")
        self.pump(lambda: all(peer.process.step() > step or peer.process.ended() for peer in here), "a step")
        phase("first step")
        phases["whole"] = (time.monotonic() - began) * 1000
        phases.update(step=step, copied=len(lack), abandoned=max(one["abandoned"] for one in joined))
        phases["copied_bytes"] = sum(one["copied_bytes"] for one in repaired)
        phases["given"] = [given_in(repaired[here.index(peer)]) for peer in lack]
        phases["answers"] = {
            "joined_ms": [one["joined_ms"] for one in joined],
            "copied_ms": [one["copied_ms"] for one in repaired],
        }
        self.phases.append(phases)
        return phases

    def until_step(self, step, rank=0):
        self.pump(lambda: self.world[rank].process.step() >= step, "rank %d completes %d steps" % (rank, step))

    def until_failed(self):
        """Waits for a failure to be reported; all that was."""
        self.pump(lambda: any(peer.failures for peer in self.world), "a failure is reported")
        return [failure for peer in self.world for failure in peer.failures]

    def is_over(self):
        return all(peer.process.ended() or peer.at == "before-loop" for peer in self.world)

    def finish(self):
        """What all ranks return."""
        self.pump(lambda: all(peer.process.ended() for peer in self.here()), "all ranks end", again=False)
        for peer in self.here():
            if peer.process.exit:
                raise Failed("%s ended with %d" % (peer, peer.process.exit))
        return [peer.process.result() for peer in self.here()]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for peer in self.peers():
            peer.process.kill(signal.SIGCONT)
            peer.process.kill()
        for peer in self.peers():
            while not peer.process.ended():
                time.sleep(0.001)
        for peer in self.ended:
            while not peer.process.ended():
                time.sleep(0.001)
        os.kill(self.store_pid, signal.SIGKILL)
        os.waitpid(self.store_pid, 0)
        self.listener.close()
        self.directory.cleanup()
