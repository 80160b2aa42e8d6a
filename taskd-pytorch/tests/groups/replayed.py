"""Addresses of gloo that a client of the store without the job's secret has copied from one group to another."""

import os
import types

os.environ["TASKD_SECRET"] = "ab" * 32

import ranks
import torch.distributed as dist

from taskd import _auth
from taskd.torch import engine as _engine
from taskd.torch.process_group import gloo, rendezvous

KEY = "taskd/listens/1"


def engine(generation):
    """What signs for a group: the engine of a process that trains in this generation."""
    one = types.SimpleNamespace(session=types.SimpleNamespace(generation=generation, trains_in=generation))
    one.signed = types.MethodType(_engine.Engine.signed, one)
    return one


def signed(base, name, generation):
    """A group's part of the store, as its member 0 sees it."""
    return rendezvous.Meeting(dist.PrefixStore("%s of %d" % (name, generation), base), name, 0, 2).signed(
        engine(generation)
    )


def ends(address):
    own = gloo.Ends.__new__(gloo.Ends)
    own.own, own.address, own.peers = {address}, None, frozenset()
    return own


def learned(store):
    mine = ends(("10.0.0.1", 5000))
    try:
        return mine.learn(store, 0, 2), sorted(mine.peers)
    except _auth.NotOurs:
        return "refused"


def main():
    base = dist.HashStore()
    of_a, later = signed(base, "a", 1), signed(base, "a", 2)
    of_b, none = signed(base, "b", 1), signed(base, "c", 1)
    ends(("10.0.0.7", 4001)).publish(of_a, 1)
    ends(("10.0.0.8", 4002)).publish(of_b, 1)
    gloo.publish_none(none, 1)
    found = {"own": learned(of_a)}
    for name, source in ("another group", of_b), ("none of another group", none):
        of_a.inner.set(KEY, source.inner.get(KEY))
        found[name] = learned(of_a)
    later.inner.set(KEY, of_b.inner.get(KEY))
    found["another generation"] = learned(later)
    ranks.report(found)


if __name__ == "__main__":
    main()
