"""Carries out directives on the main thread between two steps: abort, join, sync-state, resume; write-shard and
write-manifest; exit. While it does, the loop is in the phase of that directive; before and after it in WAITING.

Each directive is answered once, with its result or with one sentence. No failure here is raised into the program,
except for an exit.
"""

import time

from taskd import _emergency_checkpoint, _link, _replay
from taskd._attempt import BEFORE, TORN
from taskd._batches import TooMany
from taskd._callbacks import call
from taskd._copy import Unreadable
from taskd._phases import ABORTING, CATCHING_UP, JOINING, RESUMING, SAVING, SYNCING, TRAINING, WAITING
from taskd._session import ABORT, IN_LOOP, SYNC_STATE, Cancelled, Refused


def until_resumed(loop):
    """Carries out directives until there is a step to do. Returns the phase of that step."""
    session, recovery = loop.session, loop.recovery
    loop.to(WAITING)
    if recovery.deferred is not None:
        directive, recovery.deferred = recovery.deferred, None
        carry_out(loop, directive)
    while loop.is_new or loop.tainted or session.given_up or session.attention:
        if _replay.begins(loop):
            return CATCHING_UP
        directive = session.next_directive()
        if directive[2] == SYNC_STATE and needs_a_step(loop, directive):
            recovery.deferred = directive
            return CATCHING_UP
        carry_out(loop, directive)
    return TRAINING


def needs_a_step(loop, directive):
    """Returns true if this rank has to do the step before first, alone: so what only it has (its random numbers, its
    position in the data) advances to where the other ranks' are. It copies all else from a rank that has completed that
    step."""
    order = directive[3]
    try:
        if not sources(order) or not isinstance(order.get("step"), int) or not loop.lags(order["step"]):
            return False
        loop.hold_buffers()
        loop.put_back(alone=True)
        return True
    except (Refused, TooMany) as error:  # the directive itself is refused with it
        _link.say(str(error))
    except Exception as error:
        _link.say_whole("whether this rank has to do a step by itself is not known", error)
    return False


def carry_out(loop, directive):
    """Returns true if the directive was carried out; the supervisor receives an answer in either case."""
    session = loop.session
    id_, generation, kind, order = directive
    try:
        if generation != session.generation:
            raise Cancelled
        answer = in_phase(PHASES.get(kind), DO[kind], loop, generation, order)
    except Cancelled:
        session.refuse(id_, "given up for generation %d" % session.generation)
    except (Refused, TooMany, Unreadable, _emergency_checkpoint.NoDump) as error:
        session.refuse(id_, str(error))
    except Exception as error:
        _link.say_whole("%s failed" % kind, error)
        session.refuse(id_, "%s failed: %s: %s (%s)" % (kind, type(error).__name__, str(error)[:1000], place_of(error)))
    else:
        session.answer(id_, answer)
        return True
    return False


def in_phase(phase, function, loop, generation, order):
    if phase is None:
        return function(loop, generation, order)
    loop.to(phase)
    try:
        return function(loop, generation, order)
    finally:
        loop.to(WAITING)


def place_of(error):
    """The place where an error was raised: `file:line in function`."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "an unknown place"
    code = trace.tb_frame.f_code
    return "%s:%d in %s" % (code.co_filename, trace.tb_lineno, code.co_name)


def abort(loop, generation, order):
    if loop.memory is not None:
        loop.memory.given_up()
    loop.engine.give_up()
    call(loop.program.callbacks, "stop", loop.number)
    loop.step_back()
    if loop.attempt.window == TORN and not loop.recovery.is_spoiled and loop.engine.undone():
        loop.attempt.window = BEFORE
    loop.keep_place()
    loop.prove()
    call(loop.program.callbacks, "clean")
    state = {"step": loop.number, "committed": loop.committed, "window": loop.attempt.window}
    state.update(loop.engine.state())
    return {"state": state}


def join(loop, generation, order):
    before = time.monotonic()
    answer = loop.engine.join(order, loop.session.cancelled(generation))
    answer["joined_ms"] = since(before)
    if loop.recovery.replacement is not None:
        answer["built_ms"] = loop.recovery.replacement.built_ms
    call(loop.program.callbacks, "rebuild", *loop.engine.place())
    return answer


def sync_state(loop, generation, order):
    step = order.get("step")
    if not isinstance(step, int):
        raise Refused("sync-state names no step")
    before = time.monotonic()
    answer = {"copied_bytes": 0}
    cancelled = loop.session.cancelled(generation)
    loop.engine.agree(order)
    givers = sources(order)
    if givers:
        if loop.lags(step):
            raise Refused(
                "this rank could not do step %d by itself, which its random numbers and its data need" % (step - 1)
            )
        if step == loop.number:
            loop.put_back()
        copied = loop.engine.take(loop, step, givers, cancelled)
        answer["copied_bytes"] = sum(copied.values())
        if len(copied) > 1:
            answer.update(("copied_bytes_from_%d" % rank, count) for rank, count in copied.items())
        loop.arrive(step)
    elif step != loop.number or loop.attempt.window == TORN:
        raise Refused(
            "this rank is %s step %d and no rank gives it the state of step %d; a rank that has it "
            "must be named in `from`" % ("torn in" if loop.attempt.window == TORN else "at", loop.number, step)
        )
    elif order.get("rollback", True):
        loop.put_back()
    if order.get("to"):  # what this rank is to give is in place now, and a replacement waits for it
        loop.engine.give(loop, order)
    answer["digest"] = loop.engine.digest(loop)
    call(loop.program.callbacks, "repair", step, givers[0] if givers else None, list(order.get("to") or []))
    call(loop.program.callbacks, "rollback", step)
    answer["copied_ms"] = since(before)
    return answer


def sources(order):
    """The ranks whose state is copied. An older supervisor names one rank, or none, and no list."""
    named = order.get("from") or []
    return [int(peer["rank"]) for peer in (named if isinstance(named, list) else [named])]


def resume(loop, generation, order):
    if order.get("step") != loop.number or loop.attempt.window == TORN:
        there = (loop.number, loop.attempt.window, order.get("step"))
        raise Refused("this rank is at step %d (%s), not at step %s; send it sync-state first" % there)
    if loop.tainted:
        loop.put_back()
    loop.engine.resumed()
    loop.session.resumed(generation)
    loop.tainted = False
    if loop.is_new:
        loop.recovery.replacement = None
        if loop.keep is not None:
            loop.keep.has_come()
        loop.keep_copies()
        loop.session.at(IN_LOOP)
    elif loop.memory is not None:
        loop.memory.say_again(loop.number)
    return {}


def write_shard(loop, generation, order):
    answer = dict(loop.engine.dump(loop, order), digest=loop.engine.digest(loop))
    call(loop.program.callbacks, "save", order["dir"], order["step"])
    return answer


def write_manifest(loop, generation, order):
    directory, manifest = order.get("dir"), order.get("manifest")
    if not isinstance(directory, str) or not isinstance(manifest, dict) or not isinstance(manifest.get("parts"), dict):
        raise Refused("write-manifest needs dir and manifest, and that parts")
    try:
        _emergency_checkpoint.seal(directory.rstrip("/"), manifest)
    except OSError as error:
        raise Refused("the manifest of %s cannot be written: %s" % (directory, error))
    return {}


def leave(loop, generation, order):
    code = order.get("code")
    code = code if isinstance(code, int) else 0
    call(loop.program.callbacks, "exit", code)
    raise SystemExit(code)


def since(before):
    return round((time.monotonic() - before) * 1000, 3)


PHASES = {
    ABORT: ABORTING,
    "join": JOINING,
    SYNC_STATE: SYNCING,
    "resume": RESUMING,
    "write-shard": SAVING,
    "write-manifest": SAVING,
}
DO = {
    ABORT: abort,
    "join": join,
    SYNC_STATE: sync_state,
    "resume": resume,
    "write-shard": write_shard,
    "write-manifest": write_manifest,
    "exit": leave,
}
