"""Worlds whose ranks are on several hosts: what was kept on one of them (TASKD_HANDOFF) is not there on another.

The hosts are names; all processes run here.
"""

import os

from stand_in import StandIn


class OnTwoHosts(StandIn):
    """Half of the ranks on each."""

    def __init__(self, size, main, **environment):
        self.host_of = [rank * 2 // size for rank in range(size)]
        StandIn.__init__(self, size, main, TASKD_REPLICATE="1", **environment)

    def place(self, rank):
        """A host has a guard of its own, and that its socket."""
        host = "host-%d" % self.host_of[rank]
        control = "%s.%s" % (self.path, host)
        if not os.path.lexists(control):
            os.symlink(self.path, control)
            os.mkdir(os.path.join(self.directory.name, host))
        return {"TASKD_CONTROL": control, "KEEP": "%s/keep" % host}


def lose_host(world, dice, and_one_more=False):
    """All ranks of a host are killed and come on the other one; if no rank would live, one rank moves. The next rank on
    the other host may be lost with them, and comes back there: it held a copy of what only they had."""
    host = dice.choice(world.host_of)
    lost = [rank for rank in range(world.size) if world.host_of[rank] == host]
    if len(lost) == world.size:
        lost = [dice.choice(lost)]
    for rank in lost:
        world.host_of[rank] = 1 - host
    others = [rank for rank in range(world.size) if rank not in lost]
    if and_one_more and len(others) > 1:
        lost.append(min(others, key=lambda rank: (rank - lost[0]) % world.size))
    for rank in lost:
        world.world[rank].process.kill()
    return world.recover(lost)
