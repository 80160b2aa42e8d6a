"""What befalls the programs, and what became of them: `python scenarios.py NAME FILE` writes it to the file as JSON.

Victims and moments come from a seed (SEED, else 1), which is in what is written.
"""

import io
import json
import os
import random
import signal
import statistics
import sys
import threading
import time
import types

import early_replay
import dumps
import fsdp
import halves
import hosts
import loaders
import meetings
import owns
import programs
import proofs
import ranks
import references
import torchs_own
import traced
import worlds
from ranks import SOAK
from stand_in import Failed, StandIn

SEED = int(os.environ.get("TASKD_SEED", "1"))
FAULTS = 12 if SOAK else 3
FEW_STEPS = 120 if SOAK else 60  # for programs whose steps are slow
PAUSE_STEPS = 3  # between two faults


def some(cases, count, draw=""):
    """All of these cases in a soak run, otherwise `count` of them, drawn by the seed and the name of the draw."""
    return cases if SOAK else random.Random("%d %s" % (SEED, draw)).sample(cases, count)


def kill(world, dice, parked=True):
    """A rank at random, at a random moment of its step."""
    victim = dice.randrange(world.size)
    if parked:
        world.park(victim)
    moment(world, dice)
    world.world[victim].process.kill()
    return world.recover([victim])


def kill_unparked(world, dice):
    return kill(world, dice, parked=False)


def stop(world, dice):
    """A rank that stands still: its peers get no signal, its connections stay."""
    victim = dice.randrange(world.size)
    world.park(victim)
    moment(world, dice)
    world.world[victim].process.kill(signal.SIGSTOP)
    at = [peer.process.step() for peer in world.world]
    until = time.monotonic() + 0.2  # so that the others come to wait for it
    world.pump(lambda: time.monotonic() > until, "time goes by")
    assert max(peer.process.step() for peer in world.world) <= max(at) + 1
    return world.recover([victim])


def kill_two(world, dice):
    victims = dice.sample(range(world.size), 2)
    for victim in victims:
        world.park(victim)
    moment(world, dice)
    for victim in victims:
        world.world[victim].process.kill()
    return world.recover(victims)


def kill_while_recovering(world, dice):
    """A second one when the recovery from the first is under way."""
    first, second = dice.sample(range(world.size), 2)
    moment(world, dice)
    return kill_in_turn(world, dice, first, second)


def kill_in_turn(world, dice, first, second):
    world.world[first].process.kill()
    limit, real = dice.randrange(1, 12), world.do
    counted = [0]

    def do(peer, kind, order, generation=None):
        counted[0] += 1
        if counted[0] == limit:
            world.world[second].process.kill()
            while not world.world[second].process.ended():
                time.sleep(0.001)
        return real(peer, kind, order, generation)

    world.do = do
    try:
        return world.recover([first])
    finally:
        world.do = real


def retry(world, dice):
    """No rank is lost: the supervisor has all ranks begin the step again."""
    moment(world, dice)
    return world.recover()


def moment(world, dice):
    at = world.world[0].process.step() + PAUSE_STEPS
    world.until_step(at)
    time.sleep(dice.random() * 0.015)


def undisturbed(program, steps, **environment):
    return references.undisturbed(4, program, steps, environment)


def on_other_hosts(program, and_one_more=False, **environment):
    def lose_host(world, dice):
        moment(world, dice)
        return hosts.lose_host(world, dice, and_one_more)

    return compared(program, lose_host, kind=hosts.OnTwoHosts, **environment)


def compared(program, fault, steps=120, faults=FAULTS, reference=None, kind=StandIn, **environment):
    """Whether a run with faults ends as one without."""
    dice = random.Random(SEED)
    reference = reference or undisturbed(program, steps, **environment)
    with kind(4, program, STEPS=str(steps), **environment) as world:
        phases = [fault(world, dice) for _ in range(faults)]
        found = world.finish()
        return verdict(reference, found, phases, world)


def verdict(reference, found, phases, world):
    return {
        "seed": SEED,
        "digests": [with_["digest"] == without["digest"] for with_, without in zip(found, reference)],
        "losses": [
            bool(with_["losses"] or "last" in with_)
            and all(without["losses"][step] == loss for step, loss in with_["losses"].items())
            and with_.get("last") == without.get("last")
            for with_, without in zip(found, reference)
        ],
        "recoveries": len(phases),
        "generations": world.generation - 1,
        "phases": phases,
        "recorded": [with_.get("recorded") for with_ in found],
        "reasons": sum((with_.get("reasons", []) for with_ in found), []),
        "raised": sorted({one for with_ in found for one in with_.get("raised", ())}),
    }


def injected(program, steps=40, at=15, **environment):
    """A failure that leaves every process alive, reported by the processes themselves."""
    reference = undisturbed(program, steps, **environment)
    victim = random.Random(SEED).randrange(4)
    with StandIn(4, program, STEPS=str(steps), INJECT="%d:%d" % (victim, at), **environment) as world:
        failures = world.until_failed()
        phases = [world.recover()]
        found = verdict(reference, world.finish(), phases, world)
        found["failures"] = failures
        return found


SETTINGS = {}, {"find_unused_parameters": True}, {"static_graph": True}, {"gradient_as_bucket_view": True}


def short_of_memory():
    """A rank's own backward pass ends in its middle, with operations under way: in one of the first steps, and
    later."""
    for settings in SETTINGS:
        for step in some((0, 1, 2, 3, 15), 1, settings):
            environment = {"SETTINGS": json.dumps(settings), "STEPS": str(step + 12)}
            with StandIn(4, programs.ddp, **environment) as world:
                reference = world.finish()
            victim = random.Random("%d %s %d" % (SEED, settings, step)).randrange(4)
            with StandIn(4, programs.ddp, SHORT="%d:%d" % (victim, step), **environment) as world:
                world.until_failed()
                phases = [world.recover()]
                yield (
                    "%s in step %d of rank %d" % (settings, step, victim),
                    verdict(reference, world.finish(), phases, world),
                )


def refused_by_an_allocator():
    """A rank's allocator refuses, in each place of a step: its words are torch's, NumPy's, the system's or a
    library's."""
    reference = undisturbed(programs.ddp, 24)
    for which, place in zip(("torch", "numpy", "map", "library"), programs.Refused.PLACES):
        with StandIn(4, programs.ddp, STEPS="24", REFUSED="1:12:%s:%s" % (place, which)) as world:
            world.until_failed()
            phases = [world.recover()]
            yield "%s, %s" % (place, which), verdict(reference, world.finish(), phases, world)


def died_at(program, victim, step, cut=None, when="DIE", **environment):
    """A rank dies at a place in the program of which the program itself knows; after `cut`, where that is the failed
    collective of an earlier step."""
    reference = undisturbed(program, step + 20, **environment)
    befalls = {when: "%d:%d" % (victim, step), "INJECT": cut}
    with StandIn(4, program, STEPS=str(step + 20), **environment, **befalls) as world:
        del world.environment[when]  # its replacement lives
        phases = []
        if cut:
            world.until_failed()
            phases.append(world.recover())
        world.pump(world.world[victim].process.ended, "rank %d dies" % victim, again=False)
        phases.append(world.recover([victim]))
        return verdict(reference, world.finish(), phases, world)


def died_with_own_state():
    """In the first step, in which the gradient scaler is found, and later."""
    for step in (0, 12):
        yield "step %d" % step, died_at(owns.keeping, 2, step, LOGGED="1")


def shuffled():
    """A loader with random numbers of its own: in its first epoch and in later ones."""
    for environment in ({}, {"REPLACED": "1"}, {"WORKERS": "2"}):
        for fault in (kill, retry):
            yield (
                "%s %s" % (fault.__name__, environment),
                compared(owns.shuffled, fault, steps=FEW_STEPS, **environment),
            )


def together(verdicts):
    """What became of several worlds: `(what befell it, verdict)` of each."""
    found = {"seed": SEED, "digests": [], "losses": [], "phases": [], "happened": []}
    for happened, verdict_ in verdicts:
        for name in ("digests", "losses", "phases"):
            found[name] += verdict_[name]
        equal = all(verdict_["digests"] + verdict_["losses"])
        found["happened"].append("%s: %s" % (happened, "equal" if equal else "other bits"))
    found["recoveries"] = found["generations"] = len(found["phases"])
    return found


def late(program, step, late, dead=(), kind=StandIn, **environment):
    """A step is given up in which one rank has done nothing and the others all that they can without it; these die in
    it."""
    happened = "step %d of %s, rank %d has not begun it, %s die" % (step, program.__name__, late, list(dead))
    reference = undisturbed(program, step + 10, **environment)
    with kind(4, program, STEPS=str(step + 10), LATE="%d:%d" % (late, step), **environment) as world:
        until_late(world, late)
        del world.environment["LATE"]
        for rank in dead:
            world.world[rank].process.kill()
        phases = [world.recover(dead)]
        return happened, verdict(reference, world.finish(), phases, world)


def until_late(world, late):
    """Until a rank stands in the step in which it comes to nothing, and the others have had time to come to wait for
    it."""
    mark = world.world[late].process.path + ".json.late"
    world.pump(lambda: all(peer.at == "in-loop" for peer in world.world), "all come to their loop")
    world.pump(lambda: os.path.exists(mark), "rank %d comes to nothing" % late)
    until = time.monotonic() + 0.3
    world.pump(lambda: time.monotonic() > until, "the others come to wait for it")


def early(program, worlds, first=0, is_named=True, befalls=("retry", "kill", "kill", "kill in turn"), **environment):
    """What befalls worlds in their first steps, in which DDP makes its buckets and some ranks may have come further
    than others. A program that names no state has none that could be copied until it has used it."""
    dice, steps = random.Random("%d %s" % (SEED, program.__name__)), first + 12
    reference = undisturbed(program, steps, **environment)
    for _ in range(worlds):
        with StandIn(4, program, STEPS=str(steps), **environment) as world:
            world.pump(lambda: all(peer.at == "in-loop" for peer in world.world), "all come to their loop")
            for rank in range(4):
                world.until_step(first, rank)
            what, victims = dice.choice(befalls), []
            if what != "retry":
                victims = dice.sample(range(4), 2 if what == "kill in turn" else dice.choice([1, 1, 2, 3]))
            until = time.monotonic() + dice.random() * 0.1
            world.pump(lambda: time.monotonic() > until, "some of the first steps go by")
            if victims and not is_named:
                world.pump(lambda: all(peer.process.step() for peer in world.world), "all have used their state")
            at = [peer.process.step() for peer in world.world]
            if what == "kill in turn":
                phases = [kill_in_turn(world, dice, *victims)]
            else:
                for victim in victims:
                    world.world[victim].process.kill()
                phases = [world.recover(victims)]
            happened = "%s at %s: %s %s" % (program.__name__, at, what, victims)
            yield happened, verdict(reference, world.finish(), phases, world)


def other_buckets():
    """A replacement's gradients come in another order than those of the others, in buckets of the same sizes."""
    with StandIn(4, programs.branches, STEPS="1000") as world:
        world.until_step(5)
        world.environment["REVERSED"] = "1"
        world.world[1].process.kill()
        return recovered_or_refused(world, 1)


def completes_as_it_is_looked_at():
    """An operation that completes when a slice of its wait is over and its state is read. A stand-in for torch's
    work."""
    from taskd.torch.process_group import abortable

    class Slow:
        is_a_stand_in, looks = True, 0

        def is_completed(self):
            self.looks += 1
            return self.looks > 2

        def wait(self, timeout=None):
            if timeout is not None:
                raise RuntimeError("Operation timed out!")
            return True

    failed = []
    engine = types.SimpleNamespace(
        main_thread=threading.get_ident(), loop=types.SimpleNamespace(number=0, tainted=False)
    )
    kind = types.SimpleNamespace(WAITS_IN_SLICES=True)
    group = types.SimpleNamespace(
        engine=engine, kind=kind, is_lost=lambda: False, fail=lambda *what: failed.append(what)
    )
    try:
        waited = abortable.Work(group, "allreduce", Slow(), None, ([],)).wait()
    except RuntimeError as error:
        waited = str(error)
    return {"waited": waited, "failed": failed}


def no_state():
    """What is registered, and has nothing by which it could be recovered."""
    import torch
    from taskd.torch import state as _state

    state, real, sys.stderr = _state.State(), sys.stderr, io.StringIO()
    try:
        state.register({"losses": [], "tensor": torch.zeros(1)})
        return {"logged": sys.stderr.getvalue(), "known": list(state.named)}
    finally:
        sys.stderr = real


def owner_of_the_signal():
    """The owner of SIGTERM: a program with a handler of its own, or without the callback, keeps it. Forked helpers and
    a process that has left its loop end by it as ever."""
    import queue

    from taskd import _shutdown

    def ends_by(do):
        pid = os.fork()
        if not pid:
            do()
            time.sleep(60)
            os._exit(0)
        time.sleep(0.2)
        os.kill(pid, signal.SIGTERM)
        status = os.waitpid(pid, 0)[1]
        return os.WTERMSIG(status) if os.WIFSIGNALED(status) else "exit %d" % os.WEXITSTATUS(status)

    def loop(**callbacks):
        session = types.SimpleNamespace(
            attention=False, inbox=queue.SimpleQueue(), lock=threading.Lock(), given_up=False
        )
        session.engine = types.SimpleNamespace(release=lambda: None)
        return types.SimpleNamespace(program=types.SimpleNamespace(callbacks=callbacks), session=session)

    def leaves_late():
        leaving = _shutdown.install(loop(exit=print))
        os.kill(os.getpid(), signal.SIGTERM)
        leaving.end()  # it came in the last step

    found = {"without": _shutdown.install(loop()) is None}
    signal.signal(signal.SIGTERM, lambda *_: None)
    found["own"] = _shutdown.install(loop(exit=print)) is None
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    leaving = _shutdown.install(loop(exit=print))
    found["helper"] = ends_by(lambda: None)
    leaving.end()
    found["after"] = ends_by(lambda: None)
    found["late"] = ends_by(leaves_late)
    return found


def state_too_large_to_undo():
    """A state that is not copied before its optimizer's steps, which is logged once."""
    import torch
    from taskd import _link
    from taskd.torch import undo as _undo

    logged, _link.say, _undo.BYTES_MAX = [], lambda text: logged.append(text), 8 << 20
    state = types.SimpleNamespace(leaves=lambda: {"weight": torch.empty(9 << 18)}, rest=lambda: None)
    undo = _undo.Undo(state)
    for _ in range(3):
        undo.keep()
    return {"logged": logged, "undo": undo.kept}


def refused_by(program, **environment):
    """A program whose steps cannot be done again in the same processes."""
    with StandIn(4, program, STEPS="1000", **environment) as world:
        world.are_replicas = False
        world.until_step(5)
        return recovered_or_refused(world, None)


def changed_in_place():
    """A program that changes its batches in place, in a step that is done again."""
    for fault in (kill, retry):
        yield fault.__name__, compared(programs.accumulated, fault, steps=FEW_STEPS, IN_PLACE="1")


def not_kept(step, **environment):
    """A step cannot be done again in which all but one rank have had their batches, and wait for that one."""
    with StandIn(4, programs.accumulated, STEPS="1000", LATE="3:%d" % step, **environment) as world:
        world.pump(lambda: all(peer.at == "in-loop" for peer in world.world), "all come to their loop")
        until_late(world, 3)
        return recovered_or_refused(world, None)


def refused_once(program, **environment):
    """A step that failed, though all processes live, and that cannot be done again."""
    with StandIn(4, program, STEPS="1000", INJECT="1:8", **environment) as world:
        world.until_failed()
        return recovered_or_refused(world, None)


def other_backend():
    """A group that cannot be aborted: survivors report it at once, and a replacement, which has such a group as well,
    comes as far as its loop."""
    with StandIn(4, programs.other_backend, STEPS="1000") as world:
        world.until_step(5)
        world.park(2)
        began = time.monotonic()
        found = recovered_or_refused(world, None)
        return dict(found, seconds=time.monotonic() - began, replacement=world.parked[2].at)


def limits():
    """Returns what ranks have reported until their third step of what they cannot take part in: without a failure, and
    without a request."""
    reported = {}
    for name, program, environment in (
        ("fsdp", fsdp.one, {}),
        ("found", fsdp.two, {"UNNAMED": "1"}),
        ("replicated", fsdp.replicated, {}),
        ("zero", programs.zero, {}),
        ("ddp", programs.ddp, {}),
    ):
        with StandIn(2, program, STEPS="1000", **environment) as world:
            world.until_step(3)
            reported[name] = [[peer.limits["unsupported_reason"], peer.limits["sharded"]] for peer in world.world]
    return reported


def second_step():
    """A rank of a static graph dies in the second step, in which the reducers of the others are half made."""
    with StandIn(4, programs.ddp, STEPS="1000", LATE="0:1", SETTINGS=json.dumps({"static_graph": True})) as world:
        world.until_step(1)
        world.world[2].process.kill()
        del world.environment["LATE"]
        return recovered_or_refused(world, 2)


def other_loop():
    """A replacement comes to the first loop of its program, and the others are in the second one."""
    with StandIn(4, programs.two_loops, STEPS="1000") as world:
        world.until_step(10)
        world.world[1].process.kill()
        return recovered_or_refused(world, 1)


def other_state():
    """Replacements have state of another shape, or more or less of it, than the other ranks. None joins, no rank's
    state is changed, and the next replacement, which has the same state as they, takes the place."""
    reference, refused = undisturbed(programs.beside, 60), []
    with StandIn(4, programs.beside, STEPS="60") as world:
        world.until_step(5)
        world.world[1].process.kill()
        for odd in ({"WIDE": "9"}, {"BIAS": ""}, {"NAME": "mean"}):
            usual = dict(world.environment)
            world.environment.update(odd)
            refused.append(recovered_or_refused(world, 1).get("refused"))
            world.environment = usual
        phases = [world.recover([1])]
        found = verdict(reference, world.finish(), phases, world)
    return dict(found, refused=refused)


class OfThree(StandIn):
    """A rank that copies gets parts of the state from three peers."""

    givers = 3


class OneIsOdd(OfThree):
    """Rank 2's optimizer has state that no other's has."""

    are_replicas = False

    def place(self, rank):
        return {"AMSGRAD": "1" if rank == 2 else ""}


def of_three():
    """Ranks are killed, and copy from three peers: at any moment; and where all others wait in one step, so that each
    of them gives, memory to memory and over TCP."""
    anywhen = compared(programs.ddp, kill, kind=OfThree)
    at_one_step = [late(programs.ddp, 10, 1, dead=(1,), kind=OfThree, TASKD_STATE_TRANSFER=way) for way in ("", "tcp")]
    of_one_step = [given(found) for _, found in at_one_step]
    return dict(
        together([("anywhen", anywhen), *at_one_step]), given=[given(anywhen), *of_one_step], of_one_step=of_one_step
    )


def given(found):
    return [one for phases in found["phases"] for one in phases["given"]]


def of_three_unlike():
    """One of the three has other state than the others: nothing is copied until only one gives."""
    with OneIsOdd(4, programs.beside, STEPS="60") as world:
        reference = world.finish()
    with OneIsOdd(4, programs.beside, STEPS="60") as world:
        world.until_step(5)
        world.world[1].process.kill()
        refused = recovered_or_refused(world, 1).get("refused")
        world.givers = 1
        phases = [world.recover()]  # the same replacement
        return dict(verdict(reference, world.finish(), phases, world), refused=refused)


def ordered_to_exit():
    """All write an emergency checkpoint and are ordered to end: the framework is notified of both."""
    with StandIn(4, worlds.sharing, STEPS="1000") as world:
        world.until_step(10)
        step, where = dumps.dump(world, dumps.give_up_at_one_step(world))
        for peer in world.world:
            world.do(peer, "exit", {"code": 7})
        world.pump(lambda: all(peer.process.ended() for peer in world.world), "all end", again=False)
        called = [[call for call in worlds.calls(peer) if call[0] in ("save", "exit")] for peer in world.world]
        return {"step": step, "where": where, "exits": [peer.process.exit for peer in world.world], "called": called}


def recovered_or_refused(world, rank):
    try:
        return {"recovered": world.recover([] if rank is None else [rank])}
    except Failed as failed:
        return {"refused": str(failed)}


def late_in_first_steps():
    cases = [(0, 3, []), (0, 3, [2]), (1, 3, []), (1, 0, []), (1, 3, [2]), (1, 3, [3])]
    yield from (late(programs.ddp, *case) for case in cases)
    yield late(programs.unguarded, 1, 0)


def early_in_all_programs():
    worlds = 40 if SOAK else 2
    yield from early(programs.ddp, worlds)
    yield from early(programs.gan, worlds)
    yield from early(programs.accumulated, worlds)
    yield from early(programs.unguarded, worlds, is_named=False)
    yield from early(programs.two_loops, worlds, first=6, befalls=["retry"])
    for settings in SETTINGS[1:]:  # the second step of a static graph is none that replacements can enter
        befalls = ["retry"] if "static_graph" in settings else ["retry", "kill"]
        yield from early(programs.ddp, worlds, befalls=befalls, SETTINGS=json.dumps(settings))


def other_settings():
    """Ranks of DDP that is set in other ways die, later."""
    return [
        ("%s" % settings, compared(programs.ddp, kill, steps=FEW_STEPS, SETTINGS=json.dumps(settings)))
        for settings in SETTINGS[1:]
    ]


def many():
    """Recoveries of the same processes, with what they leave behind."""
    count = 270 if SOAK else 30
    steps = count * 4 + 40
    dice = random.Random(SEED)
    reference = undisturbed(programs.ddp, steps)
    with StandIn(4, programs.ddp, STEPS=str(steps)) as world:
        left, phases = [], []
        for at in range(count):
            world.until_step(world.world[0].process.step() + 1)
            time.sleep(dice.random() * 0.01)
            phases.append(world.recover())
            left.append([[peer.process.count(what) for peer in world.world] for what in ("task", "fd")])
        found = verdict(reference, world.finish(), phases, world)
    found["left"] = {"threads": [max(one[0]) for one in left], "descriptors": [max(one[1]) for one in left]}
    return found


def garbage():
    """Bytes that are no message, and messages that mean nothing, to processes that train."""
    dice = random.Random(SEED)
    reference = undisturbed(programs.ddp, 1000)
    bad = [
        bytes(dice.randrange(256) for _ in range(200)),
        (1 << 30).to_bytes(4, "little"),
        (5).to_bytes(4, "little") + b"[1,2]",
        (4).to_bytes(4, "little") + b"\xff\xff\xff\xff",
        (2).to_bytes(4, "little") + b"{}",
        (20).to_bytes(4, "little") + b'{"do":{"id":"seven"}',
        (8).to_bytes(4, "little") + b'{"do":1}',
    ]
    with StandIn(4, programs.ddp, STEPS="1000") as world:
        world.until_step(5)
        for data in bad:
            hellos = [peer.hellos for peer in world.world]
            for peer in world.world:
                peer.socket.sendall(data)
            world.pump(lambda: all(peer.hellos > before for peer, before in zip(world.world, hellos)), "hello again")
        refused = {}
        orders = [("dance", {}, 1), ("resume", {"step": 3}, 1), ("abort", {}, 0), ("sync-state", {}, 1)]
        for kind, order, generation in orders:
            id_ = world.do(world.world[1], kind, order, generation)
            world.pump(lambda: id_ in world.answers, "an answer")
            refused[kind] = world.answers[id_].get("error")
        phases = [retry(world, dice)]
        found = verdict(reference, world.finish(), phases, world)
    return dict(found, refused=refused, kinds=len(bad))


class Twice(StandIn):
    """Gives every directive twice, as one that takes over does with those whose answers it has not seen."""

    def __init__(self, *args, **environment):
        self.given = []
        StandIn.__init__(self, *args, **environment)

    def send(self, peer, message):
        StandIn.send(self, peer, message)
        if "do" in message:
            self.given.append((peer, message))
            StandIn.send(self, peer, message)


def asked_twice():
    """Directives are given again: before they are answered, and long after. Each is carried out once."""
    reference = undisturbed(programs.ddp, 200)
    with Twice(4, programs.ddp, STEPS="200") as world:
        world.until_step(5)
        phases = [retry(world, random.Random(SEED)) for _ in range(3)]
        newest = [(peer, message) for peer, message in world.given if message["do"]["generation"] == world.generation]
        for peer, message in newest:
            StandIn.send(world, peer, message)
        ids = [message["do"]["id"] for _, message in newest]
        world.pump(lambda: all(one in world.answers for one in ids), "the answers that were given")
        again = [world.answers[one] for one in ids]
        found = verdict(reference, world.finish(), phases, world)
    return dict(found, again=len(again), refused=[one["error"] for one in again if "error" in one])


def supervisor_gone():
    """The link's other end goes away and comes back; training goes on meanwhile."""
    reference = undisturbed(programs.ddp, 200)
    with StandIn(4, programs.ddp, STEPS="200") as world:
        world.until_step(5)
        hellos = [peer.hellos for peer in world.world]
        for peer in world.world:
            peer.socket.close()
            peer.socket = None
        before = world.world[0].process.step()
        while world.world[0].process.step() < before + 20:  # no thread serves the link
            time.sleep(0.001)
        world.pump(lambda: all(peer.hellos > one for peer, one in zip(world.world, hellos)), "hello again")
        phases = [retry(world, random.Random(SEED))]
        return verdict(reference, world.finish(), phases, world)


def lost_shard():
    """What has no copy cannot be taken from a peer, and that is reported."""
    with StandIn(4, programs.zero, STEPS="60") as world:
        world.park(2)
        world.until_step(10)
        world.world[2].process.kill()
        try:
            world.recover([2])
        except Exception as error:
            return {"error": str(error)}
    return {"error": None}


def cost():
    """Steps with a supervisor and without one, in turn, and whether their bits are the same. A busy machine changes the
    time on the clock by more than what is looked for; the processors' time it changes less."""
    found, digests = {"micros": {}, "used": {}}, set()
    for _ in range(6 if SOAK else 3):
        for name, environment in (("without", {"TASKD_CONTROL": None}), ("with", {})):
            for result in references.fresh(4, programs.timed, 320, environment):
                digests.add(result["digest"])
                found["micros"].setdefault(name, []).append(statistics.median(result["micros"]))
                found["used"].setdefault(name, []).append(result["used"])
    best = {what: {name: min(values) for name, values in by_name.items()} for what, by_name in found.items()}
    ratios = {what: one["with"] / one["without"] for what, one in best.items()}
    return {"best": best, "ratios": ratios, "digests": len(digests)}


def store():
    """Our client of a TCPStore beside torch's own, at torch's own server."""
    from datetime import timedelta

    import torch.distributed as dist

    pid, port = ranks.store_server()
    try:
        from taskd.torch import store_client

        ours = store_client.Client("127.0.0.1", port, 5)
        theirs = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        under = dist.PrefixStore("a/b", ours)  # whose calls come from C++
        under.set("c", "of ours")
        theirs.set("d", b"\0\1")
        found = {
            "theirs sees": theirs.get("a/b/c").decode(),
            "ours sees": list(ours.get("d")),
            "added": [ours.add("n", 5), theirs.add("n", -7), under.add("n", 1)],
            "several": [one.decode() for one in ours.multi_get(["a/b/c", "n"])],
            "checked": [ours.check(["d", "n"]), ours.check(["d", "missing"])],
            "deleted": [ours.delete_key("d"), ours.delete_key("d")],
        }
        try:
            ours.wait(["missing"], timedelta(milliseconds=100))
        except RuntimeError as error:
            found["waited"] = str(error)
        found["after"] = ours.get("n").decode()
        for what in ("set", "append"):
            ours = store_client.Client("127.0.0.1", port, 5)
            try:
                getattr(ours, what)("long", bytes(9 << 20))
            except RuntimeError as error:
                found[what] = str(error)
        try:
            store_client.Client("127.0.0.1", 1, 0.05)
        except RuntimeError as error:
            found["unreachable"] = str(error)
        return found
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def copied():
    """A large state from one process to another, beside one plain process_vm_readv of as much."""
    import copying

    return copying.measure((1 << 30) if SOAK else (256 << 20))


def copied_between_hosts():
    """A large state from one network namespace to another, beside as many bytes that are only sent and received."""
    import copying

    return copying.between_hosts((1 << 30) if SOAK else (64 << 20))


def left():
    """How many steps of a loop count that the program has left in its sixth, by the way in which it did."""
    found = {}
    for how in ("break", "return", "break inside", "break ahead of the optimizer", "raise", "to the end"):
        with StandIn(2, programs.left, HOW=how) as world:
            world.finish()
            found[how] = [peer.process.step() for peer in world.world]
    return found


class Compiling(StandIn):
    patience_seconds = traced.PATIENCE_SECONDS


class OfTorch(StandIn):
    patience_seconds = 3 * torchs_own.TIMEOUT_SECONDS


def ways(names=None, **more):
    """Steps in which torch compiles or traces: in a step loop and recorded; in a soak also each by itself, and outside
    of a loop."""
    settings = {"recorded in a loop": {"LOOP": "1", "RECORD": "1"}}
    if SOAK:
        settings.update({"hooks": {}, "loop": {"LOOP": "1"}, "recorded": {"RECORD": "1"}})

    def run(program, **variables):
        with Compiling(2, program, **more, **variables) as world:
            return world.finish()

    return traced.ways(run, names, settings)


def compiled_steps():
    """A step that fails once behind a compiled optimizer, and ranks that are lost, with parts of the step compiled."""
    for way in some(("inside", "outside", "optimizer", "whole_step"), 2):
        environment = {"WAYS": way, "STEPS": "14"}
        with Compiling(2, traced.recovered, **environment) as world:
            reference = world.finish()
        victim = random.Random("%d %s" % (SEED, way)).randrange(2)
        with Compiling(2, traced.recovered, TORN="%d:6" % victim, **environment) as world:
            world.until_failed()
            phases = [world.recover()]
            yield "%s fails in step 6 of rank %d" % (way, victim), verdict(reference, world.finish(), phases, world)
        with Compiling(2, traced.recovered, **environment) as world:
            world.park(victim)
            world.until_step(3)
            world.world[victim].process.kill()
            phases = [world.recover([victim])]
            yield "%s, rank %d dies" % (way, victim), verdict(reference, world.finish(), phases, world)


def found_late():
    """State that is used first when its loop is under way, or is a part of what is named: a rank dies before that and
    after."""
    for how in ("sequential", "chained", "container", "found", "optimizer", "scaler"):
        for step in some((4, 6, 12), 1, how):
            yield "%s, step %d" % (how, step), died_at(owns.late, 2, step, HOW=how)


def carries():
    """What ranks report of programs whose steps leave gradients to the next one, and of those that do not."""
    reported = {}
    for how in ("yes", "others", "first", "model", "zeros", "none"):
        with StandIn(2, owns.carrying, STEPS="1000", CARRIES=how) as world:
            world.until_step(8)
            reported[how] = [peer.limits["sharded"] for peer in world.world]
    return reported


def made_late():
    """A scheduler that is made in the loop: what ranks report of it before anything has failed, and what becomes of
    a replacement."""
    with StandIn(2, owns.late, STEPS="1000", HOW="made_late") as world:
        world.until_step(12)
        reported = [peer.limits["sharded"] for peer in world.world]
        world.world[1].process.kill()
        return dict(recovered_or_refused(world, 1), reported=reported)


def changes_late():
    """A rank dies at the end of a step, before what changes late in it and after, and the others complete it; and at
    any moment."""
    for how in ("ema", "swa", "lbfgs", "own_buffers"):
        for when in some(("EARLY", "DIE"), 1, how):
            yield "%s, %s" % (how, when), died_at(owns.changes_late, 2, 12, when=when, HOW=how)
        yield "%s, killed" % how, compared(owns.changes_late, kill, steps=FEW_STEPS, HOW=how)


def own_that_is_lost():
    """State of each rank's own that changes late, and random numbers that an optimizer takes: a replacement is
    refused."""
    found = {}
    for how in ("own", "noisy"):
        with StandIn(4, owns.changes_late, STEPS="1000", HOW=how, DIE="2:12") as world:
            del world.environment["DIE"]
            world.pump(world.world[2].process.ended, "rank 2 dies", again=False)
            found[how] = recovered_or_refused(world, 2).get("refused")
    return found


def behind():
    """Code behind the `with`, of steps that are given up: for the loss of a rank, for nothing, and for what its body
    raises."""
    given_up = []
    for fault in (kill, retry):
        found = compared(programs.behind, fault, steps=FEW_STEPS)
        yield fault.__name__, found
    reference = undisturbed(programs.behind, 40)
    with StandIn(4, programs.behind, STEPS="40", SHORT="1:15") as world:
        world.until_failed()
        phases = [world.recover()]
        found = world.finish()
        given_up = [one["given_up"] for one in found]
        yield "body raises, given up %s" % given_up, verdict(reference, found, phases, world)
    if not given_up[1]:
        raise Failed("no step was given up, and nothing tried")


def epoch_that_some_have_begun():
    """A step is given up in which an epoch begins with an operation of all ranks: three have done that, and one
    nothing. All live, or one that had done it dies, or the one that had not."""
    for dead in ((), (1,), (3,)):
        yield late(loaders.training, 4, 3, dead, KIND="adapter")


def of_loaders(kind):
    """A loader of another kind than torch's own."""
    return together(loaders.over_epochs(compared, died_at, (kill, retry), FEW_STEPS, kind))


SCENARIOS = {
    "meetings": lambda: meetings.outcomes(StandIn),
    "with_default_timeout": lambda: on_other_hosts(programs.accumulated, DEFAULT_TIMEOUT="0.5"),
    "left": left,
    "torchs_own": lambda: torchs_own.outcomes(OfTorch, Failed, few=not SOAK),
    "ways": ways,
    "ways_inductor": lambda: ways("inside,whole_step", COMPILER="inductor"),
    "traces_seen": traced.traces_seen,
    "compiled_steps": lambda: together(compiled_steps()),
    "cost": cost,
    "copied": copied,
    "copied_between_hosts": copied_between_hosts,
    "store": store,
    "kill": lambda: compared(programs.ddp, kill),
    "kill_recorded": lambda: compared(programs.ddp, kill, RECORD="1"),
    "kill_unparked": lambda: compared(programs.ddp, kill_unparked),
    "kill_two": lambda: compared(programs.ddp, kill_two),
    "kill_while_recovering": lambda: compared(programs.ddp, kill_while_recovering),
    "stop": lambda: compared(programs.ddp, stop),
    "retry": lambda: compared(programs.ddp, retry),
    "in_backward": lambda: injected(programs.ddp),
    "refused_by_an_allocator": lambda: together(refused_by_an_allocator()),
    "short_of_memory": lambda: together(short_of_memory()),
    "other_settings": lambda: together(other_settings()),
    "unguarded": lambda: compared(programs.unguarded, kill),
    "plain": lambda: compared(programs.plain, kill),
    "plain_died": lambda: died_at(programs.plain, 2, 10),
    "plain_stop": lambda: compared(programs.plain, stop),
    "accumulated": lambda: compared(programs.accumulated, kill),
    "in_place": lambda: together(changed_in_place()),
    "in_place_once": lambda: not_kept(0, IN_PLACE="1"),
    "too_many": lambda: not_kept(5, KEPT="2"),
    "between_passes": lambda: died_at(programs.accumulated, 2, 10, LOGGED="1"),
    "two_in_a_row": lambda: died_at(programs.ddp, 2, 16, cut="1:15"),
    "loader": lambda: compared(programs.accumulated, kill, steps=FEW_STEPS, WORKERS="2"),
    "other_hosts": lambda: on_other_hosts(programs.accumulated),
    "host_and_holder": lambda: on_other_hosts(programs.accumulated, and_one_more=True),
    "gan": lambda: compared(programs.gan, kill),
    "gan_retry": lambda: compared(programs.gan, retry),
    "completes_as_it_is_looked_at": completes_as_it_is_looked_at,
    "other_buckets": other_buckets,
    "second_step": second_step,
    "other_backend": other_backend,
    "other_loop": other_loop,
    "other_state": other_state,
    "of_three": of_three,
    "of_three_unlike": of_three_unlike,
    "ordered_to_exit": ordered_to_exit,
    "limits": limits,
    "owner_of_the_signal": owner_of_the_signal,
    "state_too_large_to_undo": state_too_large_to_undo,
    "late": lambda: together(late_in_first_steps()),
    "early": lambda: together(early_in_all_programs()),
    "first_cut": lambda: injected(programs.ddp, at=0),
    "late_write": lambda: injected(programs.gan),
    "scaled": lambda: compared(programs.scaled, kill, steps=FEW_STEPS),
    "keeping": lambda: compared(owns.keeping, kill, steps=FEW_STEPS),
    "keeping_retry": lambda: compared(owns.keeping, retry, steps=FEW_STEPS),
    "keeping_died": lambda: together(died_with_own_state()),
    "large_late": lambda: injected(owns.large, CHANGES="late", GIVES="tensors"),
    "large_early": lambda: refused_once(owns.large, CHANGES="early", GIVES="tensors"),
    "no_state": no_state,
    "large_copies": lambda: refused_once(owns.large, CHANGES="late", GIVES="copies"),
    "loader_that_generates": lambda: of_loaders("generating"),
    "loader_of_the_programs_own": lambda: of_loaders("wrapper"),
    "loader_of_a_framework": lambda: of_loaders("adapter"),
    "epoch_that_some_have_begun": lambda: together(epoch_that_some_have_begun()),
    "changes_late": lambda: together(changes_late()),
    "own_that_is_lost": own_that_is_lost,
    "found_late": lambda: together(found_late()),
    "carries": carries,
    "made_late": made_late,
    "behind": lambda: together(behind()),
    "draw_fails": loaders.draw_fails,
    "loader_that_dispatches": lambda: refused_by(loaders.training, KIND="dispatching"),
    "loader_with_persistent_workers": lambda: of_loaders("persistent"),
    "shuffled": lambda: together(shuffled()),
    "over_an_epochs_end": owns.over_an_epochs_end,
    "fsdp": lambda: refused_by(fsdp.one),
    "fsdp2": lambda: refused_by(fsdp.two),
    "fsdp_unnamed": lambda: refused_by(fsdp.one, UNNAMED="1"),
    "fsdp2_unnamed": lambda: refused_by(fsdp.two, UNNAMED="1"),
    "fsdp_replicated": lambda: together(fsdp.cases(undisturbed, verdict, compared, kill, retry)),
    "zero": lambda: injected(programs.zero),
    "lost_shard": lost_shard,
    "many": many,
    "garbage": garbage,
    "supervisor_gone": supervisor_gone,
    "asked_twice": asked_twice,
    "smaller": worlds.smaller,
    "fsdp_smaller": lambda: worlds.smaller(FSDP="1"),
    "dump_restart": dumps.restarted,
    "dump_own": lambda: dumps.restarted(OWN="1"),
    "dump_accelerated": dumps.accelerated,
    "dump_lost": dumps.lost,
    "dump_lost_late": dumps.lost_late,
    "dump_asked": dumps.asked,
    "dump_faults": dumps.faults,
    "dump_damaged": dumps.damaged,
    "early_replay": lambda: early_replay.cases(undisturbed, verdict),
    "checksums": proofs.all_programs,
    "pipelined": lambda: refused_by(proofs.pipelined),
    "half_copied": lambda: halves.half_copied(undisturbed, verdict),
    "own_buffers": lambda: halves.with_own_buffers(undisturbed, verdict),
    "large_buffers": lambda: halves.with_own_buffers(undisturbed, verdict, MASKS="12"),
}


def main():
    name, path = sys.argv[1:]
    value = SCENARIOS[name]()
    with open(path, "w") as file:
        json.dump(value, file)


if __name__ == "__main__":
    main()
