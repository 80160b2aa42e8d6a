"""A rank is lost when its commit window is open, or seems to be. Its replacement replays that step early. If the other
ranks have not completed the step, or if the replay fails, it has to leave no trace.
"""

import os
import random

import torch
from hosts import OnTwoHosts
from programs import Digits, Losses, Once, begin, dies, digest, net, noise, steps
from stand_in import StandIn
from torch.nn.parallel import DistributedDataParallel

VICTIM, AT, STEPS = 2, 15, 30
TRIES = 5


def under_way():
    """Returns the step that this process replays early, or None."""
    from taskd import _session

    replacement = _session.current.loop.recovery.replacement
    replay = None if replacement is None else replacement.replay
    return replay.step if replay is not None and replay.is_under_way else None


def ending():
    """Random numbers are drawn ahead of the commit window and in it, and batches come from a loader that shuffles. The
    victim dies at the end of its window, or (EARLY) in the last bucket of its backward pass, after it has recorded that
    its window is open."""
    taskd, rank, size = begin()
    torch.manual_seed(7)
    model = DistributedDataParallel(net(256), bucket_cap_mb=0.02, broadcast_buffers=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(100 + rank)
    random.seed(100 + rank)
    loader = torch.utils.data.DataLoader(Digits(), batch_size=2, shuffle=True)
    losses, ends, done, now = Losses(), Once("DIE", rank, dies), [], [-1]

    def dies_early():
        from taskd import _session

        _session.current.loop.keep.opens(now[0])  # which is not so
        dies()

    early = Once("EARLY", rank, dies_early)
    next(model.parameters()).register_hook(lambda grad: early(now[0]))  # of the last bucket
    for step in taskd.steps({"model": model, "optimizer": optimizer}, until=steps()):
        with step:
            now[0] = -1 if step.warming else step.number
            own, _ = step.next(loader)
            optimizer.zero_grad()
            loss = (model(noise()) * own.mean()).square().mean()
            loss.backward()
            optimizer.step()
            if under_way() is not None:
                done.append(under_way())
                if os.environ.get("FAILS"):
                    raise ValueError("of a model that no rank has trained")
            loss = loss + random.random() + torch.rand(1)[0]
            losses.add(step, loss)
            if not step.warming:
                ends(step.number)
    return {"digest": digest(model, optimizer), "losses": losses, "done": done}


def lost(undisturbed, verdict, parked, kind=StandIn, **befalls):
    """`done` has the step that the replacement has replayed early."""
    reference = undisturbed(ending, STEPS)
    with kind(4, ending, STEPS=str(STEPS), **befalls) as world:
        for name in ("DIE", "EARLY"):
            world.environment.pop(name, None)  # its replacement lives
        if parked:
            world.park(VICTIM)
        world.pump(world.world[VICTIM].process.ended, "rank %d dies" % VICTIM, again=False)
        if kind is OnTwoHosts:
            world.host_of[VICTIM] = 1 - world.host_of[VICTIM]
        phases = [world.recover([VICTIM])]
        found = world.finish()
        return dict(
            verdict(reference, found, phases, world), done=[one["done"] for one in found], step=phases[0]["step"]
        )


def tried(*of, **befalls):
    """The same, until a step is replayed early: on busy cores the supervisor's directive may arrive before that."""
    for _ in range(TRIES):
        found = lost(*of, **befalls)
        if any(found["done"]):
            break
    return found


def cases(undisturbed, verdict):
    at = "%d:%d" % (VICTIM, AT)
    return {
        "parked": tried(undisturbed, verdict, True, DIE=at),
        "started": tried(undisturbed, verdict, False, DIE=at),
        "not completed": tried(undisturbed, verdict, False, EARLY=at),
        "on another host": tried(undisturbed, verdict, False, OnTwoHosts, DIE=at),
        "fails": tried(undisturbed, verdict, False, DIE=at, FAILS="1"),
    }
