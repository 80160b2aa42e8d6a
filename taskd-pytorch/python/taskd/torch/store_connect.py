"""Connection to the store of the first rendezvous: ranks that start before rank 0 listens poll its port, and connect
once it does.

torch's own client, once refused, backs off for half a second or more, and all other ranks of a restart wait for it.
Programs that use an agent's store, which listens before they start, have nothing to wait for.

The address and the time limit stay the same: after the limit, or if the name is unknown, torch connects as usual and
reports the error.
"""

from __future__ import annotations

import functools
import socket
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FIRST_PAUSE, LAST_PAUSE = 0.002, 0.05  # seconds between two polls
LOOK_SECONDS = 1.0  # limit of one poll


def install(rendezvous: Any) -> None:
    """`rendezvous` is torch.distributed.rendezvous; an old torch has another one, and connects as usual."""
    create = getattr(rendezvous, "_create_c10d_store", None)
    has_agent = getattr(rendezvous, "_torchelastic_use_agent_store", None)
    if create is None or has_agent is None:
        return

    @functools.wraps(create)
    def when_it_listens(hostname, port, rank, world_size, timeout, *args, **kwargs):
        if rank != 0 and not has_agent():
            wait_for_listener(hostname, port, timeout.total_seconds())
        return create(hostname, port, rank, world_size, timeout, *args, **kwargs)

    rendezvous._create_c10d_store = when_it_listens


def wait_for_listener(host: str, port: int, seconds: float) -> None:
    until, pause = time.monotonic() + seconds, FIRST_PAUSE
    while time.monotonic() < until:
        try:
            socket.create_connection((host, port), LOOK_SECONDS).close()
            return
        except (socket.gaierror, ValueError, OverflowError):
            return  # no process can ever listen there
        except OSError:
            time.sleep(pause)
            pause = min(pause * 1.5, LAST_PAUSE)
