"""Recoveries that end in their middle: what a rank reports of itself afterwards, and how the next recovery finds it."""

import os
import time

import torch
from programs import Losses, Once, begin, digest, has_no_memory, net, noise, steps
from stand_in import Failed, StandIn
from torch.nn.parallel import DistributedDataParallel

LAGS, AT, STEPS = 1, 10, 30


class Waits:
    """Has a rank stand in a step that it does by itself until another abort has come, the second time that it does
    one."""

    def __init__(self):
        self.times = 0

    def __call__(self, step):
        from taskd import _session

        if not step.warming:
            return
        self.times += 1
        if self.times == 2:
            generation, limit = _session.current.generation, time.monotonic() + 20
            open(os.environ["RESULT"] + ".catches-up", "w").close()
            while _session.current.generation == generation and time.monotonic() < limit:
                time.sleep(0.001)


def read_in_halves():
    """What the death of the peer in the middle of a copy comes to, once."""
    from taskd import _copy

    read = _copy.read

    def read_half(moves, cancelled):
        _copy.read = read
        read([(where, ranges[: len(ranges) // 2]) for where, ranges in moves], cancelled)
        raise _copy.Unreadable("the peer closed the connection in the middle")

    _copy.read = read_half


def lagging():
    """DDP of which one rank has all gradients of a step and does not complete it, so that it copies what the others
    have."""
    taskd, rank, size = begin()
    torch.manual_seed(7)
    model = net()
    for number in range(int(os.environ.get("MASKS", "0"))):
        model.register_buffer("mask_%d" % number, torch.ones(1 << 18))
    model = DistributedDataParallel(model, broadcast_buffers=not os.environ.get("OWN_BUFFERS"))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(100 + rank)
    losses, lag, waits = Losses(), Once("LAG", rank, has_no_memory), Waits()
    if os.environ.get("HALF") and rank == LAGS:
        read_in_halves()
    for step in taskd.steps({"model": model, "optimizer": optimizer}, until=steps()):
        with step:
            waits(step)
            optimizer.zero_grad()
            loss = model(noise()).square().mean()
            loss.backward()
            lag(step.number)
            optimizer.step()
            losses.add(step, loss)
    return {"digest": digest(model, optimizer), "losses": losses}


def reports(world, rank):
    """Where it is, as it answers to another abort."""
    world.generation += 1
    state = world.all_do([world.world[rank]], "abort", lambda peer: {})[0]["state"]
    return {what: state[what] for what in ("step", "window")}


def fails(world):
    """What a recovery fails with."""
    try:
        world.recover()
    except Failed as failed:
        return str(failed)


def while_it_catches_up(world):
    """Another give-up comes while a rank does a step by itself."""
    peer, do = world.world[LAGS], world.do

    def do_and_wait(to, kind, order, generation=None):
        id_ = do(to, kind, order, generation)
        if kind == "sync-state" and to is peer:
            marker = peer.process.path + ".json.catches-up"
            world.pump(lambda: os.path.exists(marker), "a rank does a step by itself")
            raise Failed("given up")
        return id_

    world.do = do_and_wait
    try:
        return fails(world)
    finally:
        world.do = do


def half_copied(undisturbed, verdict):
    """A copy breaks off in its middle, and the recovery after it breaks off before there is another one."""
    reference = undisturbed(lagging, STEPS)
    with StandIn(4, lagging, STEPS=str(STEPS), LAG="%d:%d" % (LAGS, AT), HALF="1") as world:
        world.until_failed()
        world.until_step(AT + 1)
        failed, reported = [fails(world)], [reports(world, LAGS)]
        failed.append(while_it_catches_up(world))
        reported.append(reports(world, LAGS))
        phases = [world.recover()]
        found = verdict(reference, world.finish(), phases, world)
    return dict(found, failed=failed, reported=reported)


def with_own_buffers(undisturbed, verdict, **environment):
    """A rank copies from others, and every rank has buffers of its own: with MASKS so many MiB of them."""
    environment["OWN_BUFFERS"] = "1"
    reference = undisturbed(lagging, STEPS, **environment)
    with StandIn(4, lagging, STEPS=str(STEPS), LAG="%d:%d" % (LAGS, AT), **environment) as world:
        world.until_failed()
        world.until_step(AT + 1)
        phases = [world.recover()]
        return verdict(reference, world.finish(), phases, world)
