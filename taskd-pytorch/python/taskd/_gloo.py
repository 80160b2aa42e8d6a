"""What is gloo's: to leave a group whose members are gone or stand still, and to make the next one.

gloo cannot be aborted. When a member dies its neighbours in the ring get an error, and others wait for ever; its own abort
and shutdown close no socket. What ends every wait is to shut the group's connections down, and for that one has to know
which they are: each group listens on an address of its own, which its members tell each other.

The same functions for NCCL are in `_nccl`.
"""

import os
from datetime import timedelta

from torch._C import _distributed_c10d as c10d

from taskd import _auth, _sockets

NAME = "gloo"
DEVICE_TRIES = 3
NONE = "none"  # what a member tells in place of its addresses
WAITS_IN_SLICES = True  # a wait with a time limit that runs out does no harm to the operation


class Ends:
    """The addresses of one group: that of this process, and those of the others. What `release` needs."""

    def __init__(self, own, address):
        self.own = own
        self.address = address  # to listen on the next time, without asking a name service
        self.peers = frozenset()

    def tell(self, store, rank):
        signed(store).set(key(rank), ",".join("%s %d" % address for address in sorted(self.own)))

    def learn(self, store, rank, size):
        """Whether all have told theirs, rather than that they tell none."""
        keys = [key(other) for other in range(size) if other != rank]
        try:
            values = store.multi_get(keys) if keys else []
        except RuntimeError as error:
            if type(error).__name__.startswith("Dist"):  # they do not come
                raise
            values = [store.get(key) for key in keys]  # a store that has no such call
        own = signed(store)
        values = [own.checked(key, bytes(value)).decode() for key, value in zip(keys, values)]
        addresses = [address.split(" ") for value in values if value != NONE for address in value.split(",") if address]
        self.peers = frozenset((host, int(port)) for host, port in addresses)
        return NONE not in values


def signed(store):
    """Where members tell their addresses: a process that could set another member's could have this one shut down any of its connections."""
    return _auth.Store(store, _auth.key_of(b"addresses of gloo"), "gloo")


def key(rank):
    return "taskd/listens/%d" % rank


def have_come():
    """Whether all members have come when torch has made a group."""
    return os.environ.get("TORCH_GLOO_LAZY_INIT", "0").lower() in ("", "0", "n", "no", "f", "false")


def first_ends(before, store, rank, size):
    """The ends of a group that torch has just made; `before` is where this process had listened until then. All members ask for
    theirs; None where one tells none."""
    new = _sockets.listening() - before
    ends = Ends(new, next((host for host, _ in sorted(new)), None))
    ends.tell(store, rank)
    return ends if ends.learn(store, rank, size) else None


def tells_none(store, rank):
    """This member has no ends that it could leave, and the others need not wait for them."""
    signed(store).set(key(rank), NONE)


def join(store, rank, size, before, join_seconds, timeout):
    """A backend over a new store, and its ends. Waits for all members, without the interpreter's lock. `before` are the ends
    of the group that it follows."""
    options = c10d.ProcessGroupGloo._Options()
    options._timeout = timedelta(seconds=join_seconds)
    options._devices, own = devices(before.address)
    options._threads = 2 * len(options._devices)
    ends = Ends(own, before.address)
    ends.tell(store, rank)
    backend = c10d.ProcessGroupGloo(store, rank, size, options)
    ends.learn(store, rank, size)
    backend._set_sequence_number_for_group()
    backend._set_default_timeout(timeout)
    return backend, ends


def devices(address):
    """As torch chooses them, less the look-up of this host's name; and the addresses that they listen on."""
    interfaces = [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
    for _ in range(DEVICE_TRIES):
        before = _sockets.listening()
        if interfaces:
            found = [c10d.ProcessGroupGloo.create_device(interface=name) for name in interfaces]
        elif address:
            found = [c10d.ProcessGroupGloo.create_device(hostname=address)]
        else:
            found = [c10d.ProcessGroupGloo.create_default_device()]
        own = _sockets.listening() - before
        if len(own) == len(found):  # else another thread began to listen meanwhile, and it is not known which is ours
            return found, own
    raise RuntimeError("the address of the new group cannot be told from others that this process has begun to listen on")


def release(backend, ends):
    """Ends every wait in the group; how many connections it had. From any thread, without waiting."""
    return _sockets.shut(ends.own, ends.peers)
