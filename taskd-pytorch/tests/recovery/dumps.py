"""Dying checkpoints: of ranks of which one was lost, of ranks that all live, and of what is left of them when things go
wrong."""

import io
import json
import os
import resource
import shutil
import signal
import sys

import programs
import ranks
import references
import torch
from stand_in import Again, Failed, StandIn

STEPS = 40
DIES_AT = 23
SIZE = 4


def undisturbed(**environment):
    return references.undisturbed(SIZE, programs.dumping, STEPS, environment)


def root_of(world):
    return os.path.join(world.directory.name, "dumps")


def world_of(**environment):
    world = StandIn(SIZE, programs.dumping, STEPS=str(STEPS), **environment)
    world.environment["TASKD_CHECKPOINT_DIR"] = root_of(world)  # for ranks that start later
    return world


def until_lost(world):
    """Serves the link until a rank dies, which is then no part of the world any more."""
    try:
        world.pump(lambda: False, "a rank dies")
    except Again as again:
        lose(world, again.args[0])


def lose(world, peer):
    world.ended.append(peer)
    world.world.remove(peer)


def give_up(world):
    world.generation += 1
    return [one["state"] for one in world.all_do(world.world, "abort", lambda peer: {})]


def writers(world, states):
    step = max(state["step"] for state in states if state["window"] != "torn")
    return step, [
        peer for peer, state in zip(world.world, states) if state["step"] == step and state["window"] != "torn"
    ]


def give_up_at_one_step(world):
    """Now and then some ranks have completed a step that others have not: they go on, and it is tried again."""
    for _ in range(10):
        states = give_up(world)
        if len(writers(world, states)[1]) == SIZE:
            return states
        world.recover()
    raise Failed("ranks are never at one step")


def dump(world, states):
    """Does what the strategy does: all ranks that have the newest step write a part, and one completes the
    checkpoint."""
    step, have = writers(world, states)
    where = os.path.join(root_of(world), "step-%012d-world-%d-%d" % (step, world.generation, world.generation * 1000))
    without = sorted(set(range(SIZE)) - {peer.process.rank for peer in have})
    order = {"dir": where, "step": step, "of": len(have), "without": without}
    written = world.all_do(have, "write-shard", lambda peer: dict(order, part=have.index(peer)))
    parts = {str(peer.process.rank): one["shard"] for peer, one in zip(have, written)}
    manifest = {"step": step, "generation": world.generation, "size": SIZE, "sets": [list(range(SIZE))], "parts": parts}
    world.all_do(have[:1], "write-manifest", lambda peer: {"dir": where, "manifest": manifest})
    return step, where


def start_again(world, **environment):
    """All ranks end, and are started from what there is."""
    for peer in world.world:
        peer.process.kill()
    world.ended += world.world
    world.generation += 1
    os.kill(world.store_pid, signal.SIGKILL)
    os.waitpid(world.store_pid, 0)
    world.store_pid, world.port = ranks.store_server()  # they meet anew
    world.environment["MASTER_PORT"] = str(world.port)
    world.environment.pop("DIE", None)
    world.environment.pop("DIE_LATE", None)
    world.environment.update(environment)
    world.world = [world.start(rank, "train") for rank in range(SIZE)]


def verdict(reference, found):
    equal = [with_["digest"] == without["digest"] for with_, without in zip(found, reference)]
    losses = [
        bool(with_["losses"]) and all(without["losses"][step] == loss for step, loss in with_["losses"].items())
        for with_, without in zip(found, reference)
    ]
    return {"digests": equal, "losses": losses, "starts": [one["start"] for one in found]}


def restarted(**environment):
    """A rank dies, the others save, all ranks start again; once more, and then to the end."""
    with world_of(DIE="2:%d" % DIES_AT, **environment) as world:
        until_lost(world)
        dump(world, give_up(world))
        start_again(world, DIE="0:%d" % (DIES_AT + 5))
        until_lost(world)
        step, _ = dump(world, give_up(world))
        start_again(world)
        found = world.finish()
    return dict(verdict(undisturbed(**environment), found), step=step)


def accelerated():
    """A rank of a program that has an Accelerator dies, and all start again; a program that has none loads the same
    checkpoint."""
    with world_of(DIE="2:%d" % DIES_AT, ACCELERATED="1") as world:
        until_lost(world)
        step, _ = dump(world, give_up(world))
        start_again(world)
        found = world.finish()
        other = loaded(root_of(world), 64)
    return dict(verdict(undisturbed(ACCELERATED="1"), found), step=step, other=other)


def lost_late():
    """A rank is lost when it has done all of a step, which the others complete: no rank has kept the state that it had
    at the end."""
    with world_of(DIE_LATE="0:%d" % DIES_AT) as world:
        until_lost(world)
        world.pump(lambda: all(peer.process.step() > DIES_AT for peer in world.world), "the others complete the step")
        step, _ = dump(world, give_up(world))
        start_again(world)
        found = world.finish()
    return dict(verdict(undisturbed(), found), step=step)


def lost():
    """The lost rank's own state is gone when all start again, or before the checkpoint: it continues with a peer's,
    which is logged, to the end."""
    reference, found = undisturbed(), {}
    for when in ("after", "before"):
        with world_of(DIE="2:%d" % DIES_AT) as world:
            until_lost(world)
            keep = os.path.join(world.directory.name, "keep-2")
            if when == "before":
                os.unlink(keep)
            dump(world, give_up(world))
            if when == "after":
                os.unlink(keep)
            start_again(world)
            found[when] = verdict(reference, world.finish())
    return found


def asked():
    """All ranks live, save, and go on; and others begin where they saved."""
    reference = undisturbed()
    with world_of() as world:
        world.until_step(DIES_AT)
        step, where = dump(world, give_up_at_one_step(world))
        world.recover()
        first = verdict(reference, world.finish())
        root = root_of(world)
        with StandIn(SIZE, programs.dumping, STEPS=str(STEPS), TASKD_CHECKPOINT_DIR=root) as other:
            second = verdict(reference, other.finish())
        with StandIn(SIZE, programs.dumping, STEPS=str(STEPS), TASKD_CHECKPOINT_DIR=root, TASKD_CONTROL=None) as other:
            third = verdict(reference, other.finish())
    return {"step": step, "on": first, "from": second, "alone": third}


def faults():
    """A disk that is full, as a limit on what the processes may write; a writer that dies; and a checkpoint after all
    that."""
    found = {}
    with world_of() as world:
        world.until_step(5)
        states = give_up_at_one_step(world)
        free = [resource.prlimit(peer.process.pid, resource.RLIMIT_FSIZE) for peer in world.world]
        for peer, (_, hard) in zip(world.world, free):
            resource.prlimit(peer.process.pid, resource.RLIMIT_FSIZE, (4096, hard))
        try:
            dump(world, states)
        except Failed as error:
            found["full"] = str(error)
        for peer, limits in zip(world.world, free):
            resource.prlimit(peer.process.pid, resource.RLIMIT_FSIZE, limits)
        found["temporary"] = [name for _, _, names in os.walk(root_of(world)) for name in names]
        world.recover()
        world.until_step(12)
        states = give_up_at_one_step(world)
        step, have = writers(world, states)
        where = os.path.join(root_of(world), "step-%012d-world-%d-1" % (step, world.generation))
        world.all_do(have[1:2], "write-shard", lambda peer: {"dir": where, "step": step, "part": 1, "of": len(have)})
        have[2].process.kill()
        manifest = {"step": step, "generation": world.generation, "size": SIZE, "sets": [[0, 1, 2, 3]], "parts": {}}
        gone = {"file": "rank-2.part-2-of-4.pt", "bytes": 9, "sha256": "0" * 64}
        try:
            until_lost(world)
            world.all_do(
                have[:1], "write-manifest", lambda peer: {"dir": where, "manifest": dict(manifest, parts={"2": gone})}
            )
        except Failed as error:
            found["unsealed"] = str(error)
        found["half"] = loaded(root_of(world), 64)
        _, whole = dump(world, give_up(world))
        found["swept"] = sorted(os.listdir(root_of(world))) == [os.path.basename(whole)]
        start_again(world)
        ended = verdict(undisturbed(), world.finish())
    return dict(found, digests=ended["digests"], losses=ended["losses"], starts=ended["starts"], step=step)


def loaded(root, wide, groups=1):
    """Returns what a program of one process finds there, and what is logged."""
    import taskd

    torch.manual_seed(7)
    model = programs.net(wide)
    optimizer = torch.optim.Adam([{"params": one} for one in parted(list(model.parameters()), groups)], lr=1e-3)
    state = {"model": model, "optimizer": optimizer, "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)}
    before, real, sys.stderr = programs.digest(*state.values()), sys.stderr, io.StringIO()
    os.environ.update(RANK="0", WORLD_SIZE=str(SIZE))
    try:
        step = taskd.load_checkpoint(state, directory=root)
        logged = sys.stderr.getvalue()
    finally:
        sys.stderr = real
    return {"step": step, "logged": logged, "changed": before != programs.digest(*state.values())}


def parted(parameters, count):
    return [parameters[at::count] for at in range(count)]


def damaged():
    """A checkpoint with something amiss is refused before anything is changed, and the one before it is loaded."""
    from taskd import _emergency_checkpoint

    with world_of() as world:
        steps = []
        for at in (5, 12):
            world.until_step(at)
            steps.append(dump(world, give_up_at_one_step(world)))
            world.recover()
        (older, _), (newer, where) = steps
        root, found, safe = root_of(world), {"older": older, "newer": newer}, where + ".safe"
        os.rename(where, safe)
        found["whole"] = loaded(copied(safe, where, root), 64)
        parts = sorted(name for name in os.listdir(safe) if name.endswith(".pt"))

        def manifest(change):
            path = os.path.join(where, _emergency_checkpoint.MANIFEST)
            with open(path) as file:
                content = json.load(file)
            change(content["manifest"])
            content["sha256"] = _emergency_checkpoint.check_sum(content["manifest"])
            with open(path, "w") as file:
                json.dump(content, file)

        def flip(name):
            with open(os.path.join(where, name), "r+b") as file:
                file.seek(-999, os.SEEK_END)
                byte = file.read(1)
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte[0] ^ 1]))

        amiss = {
            "no part": lambda: os.unlink(os.path.join(where, parts[1])),
            "short part": lambda: os.truncate(os.path.join(where, parts[1]), 999),
            "flipped part": lambda: flip(parts[2]),
            "lacks a shard": lambda: manifest(lambda content: content["parts"].pop("1")),
            "lacks all shards": lambda: manifest(lambda content: content["parts"].clear()),
            "another step": lambda: manifest(lambda content: content.update(step=newer + 1)),
            "flipped manifest": lambda: flip_json(os.path.join(where, _emergency_checkpoint.MANIFEST)),
            "half a manifest": lambda: os.truncate(os.path.join(where, _emergency_checkpoint.MANIFEST), 300),
            "no manifest": lambda: os.unlink(os.path.join(where, _emergency_checkpoint.MANIFEST)),
        }
        for name, harm in amiss.items():
            copied(safe, where, root)
            harm()
            found[name] = loaded(root, 64)
        copied(safe, where, root)
        found["another layout"] = loaded(root, 32)
        found["other groups"] = loaded(root, 64, groups=2)
        found["nothing"] = loaded(os.path.join(root, "nowhere"), 64)
    return found


def flip_json(path):
    with open(path, "rb") as file:
        text = file.read()
    with open(path, "wb") as file:
        file.write(text.replace(b'"size": 4', b'"size": 5'))


def copied(safe, where, root):
    shutil.rmtree(where, ignore_errors=True)
    shutil.copytree(safe, where)
    return root
