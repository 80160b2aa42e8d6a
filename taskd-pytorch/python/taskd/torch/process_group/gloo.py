"""Abort and rebuild of a gloo group: leaves a group whose members are gone or stopped, and makes the next one.

gloo has no abort. When a member dies, its neighbours in the ring get an error, and others wait for ever; gloo's own
abort and shutdown close no socket. Only a shutdown of the group's connections ends every wait, and it needs their
addresses: each group listens on its own address, which its members exchange.

`nccl` has the same functions for NCCL.
"""

from __future__ import annotations

import os
from datetime import timedelta

from torch._C import _distributed_c10d as c10d

from taskd.torch.process_group import sockets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "gloo"
DEVICE_TRIES = 3
NONE = "none"  # sent by a member in place of its addresses
WAITS_IN_SLICES = True  # a wait that times out does not affect the operation


class Ends:
    """The addresses of one group, which `release` needs: that of this process, and those of the others."""

    def __init__(self, own: Any, address: Any) -> None:
        self.own = own
        self.address = address  # for the next listening socket, without a name look-up
        self.peers = frozenset()

    def publish(self, signed: Any, rank: int) -> None:
        signed.set(key(rank), ",".join("%s %d" % address for address in sorted(self.own)))

    def learn(self, signed: Any, rank: int, size: int) -> bool:
        """Returns true if all members have sent addresses, false if one has sent that it gives none."""
        keys = [key(other) for other in range(size) if other != rank]
        try:
            values = signed.inner.multi_get(keys) if keys else []
        except RuntimeError as error:
            if type(error).__name__.startswith("Dist"):  # the members have not joined in time
                raise
            values = [signed.inner.get(key) for key in keys]  # the store has no multi_get
        values = [signed.checked(key, bytes(value)).decode() for key, value in zip(keys, values)]
        addresses = [address.split(" ") for value in values if value != NONE for address in value.split(",") if address]
        self.peers = frozenset((host, int(port)) for host, port in addresses)
        return NONE not in values


def key(rank: int) -> str:
    return "taskd/listens/%d" % rank


def have_come() -> bool:
    """Returns true if all members have joined once torch has made a group."""
    return os.environ.get("TORCH_GLOO_LAZY_INIT", "0").lower() in ("", "0", "n", "no", "f", "false")


def first_ends(before: Any, signed: Any, rank: int, size: int) -> Any:
    """Returns the ends of a group that torch has just made; None if a member gives none. `before` are the addresses on
    which this process listened before. All members call this function. `signed` is the group's part of the store,
    signed for this group alone: a process that could set another member's addresses, or copy those of another group,
    could make this process shut down any of its connections."""
    new = sockets.listening() - before
    ends = Ends(new, next((host for host, _ in sorted(new)), None))
    ends.publish(signed, rank)
    return ends if ends.learn(signed, rank, size) else None


def publish_none(signed: Any, rank: int) -> None:
    """Reports that this member has no ends that it could leave; the other members need not wait for them."""
    signed.set(key(rank), NONE)


def join(store: Any, signed: Any, rank: int, size: int, before: Any, join_seconds: float, timeout: Any) -> Any:
    """Returns a backend over a new store, and its ends. Waits for all members, without the interpreter's lock. `before`
    are the ends of the group that it replaces."""
    options = c10d.ProcessGroupGloo._Options()  # pyright: ignore[reportAttributeAccessIssue]
    options._timeout = timedelta(seconds=join_seconds)
    options._devices, own = devices(before.address)
    options._threads = 2 * len(options._devices)
    ends = Ends(own, before.address)
    ends.publish(signed, rank)
    backend = c10d.ProcessGroupGloo(store, rank, size, options)
    ends.learn(signed, rank, size)
    backend._set_sequence_number_for_group()
    backend._set_default_timeout(timeout)
    return backend, ends


def devices(address: Any) -> Any:
    """Returns the devices that torch would choose, without the look-up of this host's name, and their addresses."""
    interfaces = [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
    for _ in range(DEVICE_TRIES):
        before = sockets.listening()
        if interfaces:
            found = [c10d.ProcessGroupGloo.create_device(interface=name) for name in interfaces]
        elif address:
            found = [c10d.ProcessGroupGloo.create_device(hostname=address)]
        else:
            found = [c10d.ProcessGroupGloo.create_default_device()]
        own = sockets.listening() - before
        if len(own) == len(found):  # otherwise another thread has begun to listen, and ours cannot be identified
            return found, own
    raise RuntimeError("the address of the new group cannot be distinguished from others that this process listens on")


def release(backend: Any, ends: Any) -> int:
    """Ends every wait in the group, from any thread, without waiting; returns the number of its connections."""
    return sockets.shut(ends.own, ends.peers)
