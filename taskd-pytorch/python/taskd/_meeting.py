"""Where the members of a group that torch makes meet: the part of its store that is theirs alone, and which of them have taskd's hooks.

A store may outlive the groups that were made over it, and torch takes their names again: a group with the name of one that was
destroyed would find the addresses of that one. So every member counts how many times it has made a group of a name over a store,
and from the second time on the group has a part of the store of its own. Members that are not hooked do not count, as torch does
not; their groups, and those of every first time, are where torch has them.

A member without hooks (a process that is no rank) tells nothing of itself, and would be waited for in vain. So every hooked one
says that it comes ahead of making the group. gloo's is made when all members have come: those that have said nothing by then have
no hooks.

A group that could not be made does not count, as others may not have begun it. Who does not wait any longer for the others says so
where they would wait for it next.
"""

from datetime import timedelta

import torch.distributed as dist

LAZY_SECONDS = 10  # for all members to say that they come, where a group is made without them


class Meeting:
    """Of one member of a group."""

    def __init__(self, store, name, rank, size):
        self.rank, self.size = rank, size
        self.store = self.own = store  # the group's, and what is taskd's in it
        self.counts = store, "taskd/made/%s/%d" % (name, rank)
        try:
            times = store.add(self.counts[1], 1)
            if times > 1:
                self.store = dist.PrefixStore("taskd/again/%d" % (times - 1), store)
            self.own = dist.PrefixStore("taskd/%s" % name, self.store)
            self.own.set(key(rank), "1")
        except Exception:  # what is passed for a store need not be one (MPI), or cannot count: torch says so if it matters
            self.own = None

    def all_have_hooks(self, have_come):
        """Whether every member has, once the group is made: when all have come, or by this member alone."""
        if self.own is None:
            return False
        keys = [key(rank) for rank in range(self.size)]
        if not have_come:
            try:
                self.own.wait(keys, timedelta(seconds=LAZY_SECONDS))
            except RuntimeError:
                return False
        return self.own.check(keys)

    def tells_none(self, kind):
        """This member's group cannot be left: the others, for whom it may be too early or too late to know, need not wait for its ends."""
        if self.own is None:
            return
        try:
            kind.tells_none(self.own, self.rank)
        except Exception:  # nobody hears of it, as in the case of `fails`
            pass

    def fails(self):
        """The group was not made. The program may make it again, with members that have not tried it once."""
        if self.own is None:
            return
        store, times = self.counts
        try:
            store.add(times, -1)
        except Exception:  # it cannot be reached any more, and the program hears of what came of that
            pass


def key(rank):
    return "comes/%d" % rank
