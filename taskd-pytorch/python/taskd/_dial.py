"""Ranks that come to the store of their first meeting before rank 0 listens there: they look until it does, and dial then.

torch's own client, once refused, backs off for half a second and more, and all others of a restart wait for it. Programs that
meet at an agent's store, which listens before they start, have nothing to wait for.

It never changes what is dialled, nor for how long: when that time is over, or the name is unknown, torch dials as ever and says
what is wrong.
"""

import functools
import socket
import time

FIRST_PAUSE, LAST_PAUSE = 0.002, 0.05  # seconds between two looks
LOOK_SECONDS = 1.0  # that one look may take


def install(rendezvous):
    """`rendezvous` is torch.distributed.rendezvous; an old torch has another one, and dials as ever."""
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


def wait_for_listener(host, port, seconds):
    until, pause = time.monotonic() + seconds, FIRST_PAUSE
    while time.monotonic() < until:
        try:
            socket.create_connection((host, port), LOOK_SECONDS).close()
            return
        except (socket.gaierror, ValueError, OverflowError):
            return  # nobody will ever listen there
        except OSError:
            time.sleep(pause)
            pause = min(pause * 1.5, LAST_PAUSE)
