"""Rendezvous of the members of a group that torch makes: their own part of the store, and which of them have taskd's
hooks.

A store may outlive the groups that were made over it, and torch reuses their names: a group with the name of a
destroyed one would find the addresses of that one. So every member counts how often it has made a group of a name over
a store, and from the second time on the group has its own part of the store. Members without hooks do not count, as
torch does not; their groups, and those of every first time, are where torch puts them.

A member without hooks (a process that is not a rank) sends nothing, and the others would wait for it in vain. So every
hooked member announces itself before it makes the group. gloo makes the group when all members have joined: members
without an announcement by then have no hooks.

A group that could not be made does not count, since other members may not have begun it. A member that stops waiting
for the others reports that where they would wait for it next.
"""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from taskd.torch.engine import Engine

LAZY_SECONDS = 10  # time limit for all members' announcements, if a group is made without them


class Meeting:
    """The rendezvous of one member of a group."""

    def __init__(self, store: Any, name: str, rank: Any, size: int) -> None:
        self.name, self.rank, self.size, self.times = name, rank, size, 0
        self.store = self.own = store  # the group's store, and taskd's part of it
        self.counts = store, "taskd/made/%s/%d" % (name, rank)
        try:
            self.times = store.add(self.counts[1], 1)
            if self.times > 1:
                self.store = dist.PrefixStore("taskd/again/%d" % (self.times - 1), store)
            self.own = dist.PrefixStore("taskd/%s" % name, self.store)
            self.own.set(key(rank), "1")
        except Exception:
            # the argument need not be a store (MPI), or cannot count: torch reports it if it matters
            self.own = None

    def all_have_hooks(self, have_come: Any) -> bool:
        """Returns true if every member has hooks, once the group is made: by all members, or by this one alone."""
        if self.own is None:
            return False
        keys = [key(rank) for rank in range(self.size)]
        if not have_come:
            try:
                self.own.wait(keys, timedelta(seconds=LAZY_SECONDS))
            except RuntimeError:
                return False
        return self.own.check(keys)

    def signed(self, engine: Engine) -> Any:
        """Returns the group's part of the store, in which values are signed for this group: its generation, its name,
        and how often it was made."""
        return engine.signed(self.own, "group %s, %d" % (self.name, self.times), engine.session.trains_in)

    def publish_none(self, kind: Any, engine: Engine) -> None:
        """Reports that this member's group cannot be left, so that the other members do not wait for its ends. They may
        not know yet, or not any more."""
        if self.own is None:
            return
        try:
            kind.publish_none(self.signed(engine), self.rank)
        except Exception:  # not reported, as in `fails`
            pass

    def fails(self) -> None:
        """Undoes the count: the group was not made. The program may retry it, with members that have not tried."""
        if self.own is None:
            return
        store, times = self.counts
        try:
            store.add(times, -1)
        except Exception:  # the store is unreachable, and the program gets the resulting error
            pass


def key(rank: int) -> str:
    return "comes/%d" % rank
