"""What the supervisor wants, on the main thread between two steps: give-up, join, repair, resume; dump and seal; exit.

Each directive is answered once, with what came of it or with one sentence. Nothing that goes wrong here is raised into the
program, but for an exit.
"""

import time

from taskd import _beforehand, _dumps, _link, _loop
from taskd._batches import TooMany
from taskd._callbacks import call
from taskd._copy import Unreadable
from taskd._session import Cancelled, Refused


def until_resumed(loop):
    """Does what is wanted until there is a step to do; what it is for."""
    session = loop.session
    if loop.waits is not None:
        directive, loop.waits = loop.waits, None
        carry_out(loop, directive)
    while loop.is_new or loop.tainted or session.given_up or session.attention:
        if _beforehand.begins(loop):
            return _loop.CATCHING_UP
        directive = session.next_directive()
        if directive[2] == "repair" and needs_a_step(loop, directive):
            loop.waits = directive
            return _loop.CATCHING_UP
        carry_out(loop, directive)
    return _loop.TRAIN


def needs_a_step(loop, directive):
    """Whether this rank has to do the step before first, by itself: so what only it has (its random numbers, its place in the
    data) comes to where the others' are. All else it copies from one that has completed that step."""
    order = directive[3]
    try:
        if not sources(order) or not isinstance(order.get("step"), int) or not loop.lags(order["step"]):
            return False
        loop.hold_buffers()
        loop.put_back(alone=True)
        return True
    except (Refused, TooMany) as error:  # the directive itself will say so
        _link.say(str(error))
    except Exception as error:
        _link.say_whole("whether this rank has to do a step by itself is not known", error)
    return False


def carry_out(loop, directive):
    """Whether it was; the supervisor is told either way."""
    session = loop.session
    id_, generation, kind, order = directive
    try:
        if generation != session.generation:
            raise Cancelled
        answer = DO[kind](loop, generation, order)
    except Cancelled:
        session.refuse(id_, "given up for generation %d" % session.generation)
    except (Refused, TooMany, Unreadable, _dumps.NoDump) as error:
        session.refuse(id_, str(error))
    except Exception as error:
        _link.say_whole("%s failed" % kind, error)
        session.refuse(id_, "%s failed: %s: %s (%s)" % (kind, type(error).__name__, str(error)[:1000], place_of(error)))
    else:
        session.answer(id_, answer)
        return True
    return False


def place_of(error):
    """Where it was raised: `file:line in function`."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "an unknown place"
    code = trace.tb_frame.f_code
    return "%s:%d in %s" % (code.co_filename, trace.tb_lineno, code.co_name)


def give_up(loop, generation, order):
    if loop.memory is not None:
        loop.memory.given_up()
    loop.engine.give_up()
    call(loop.callbacks, "stop", loop.number)
    loop.step_back()
    if loop.window == _loop.TORN and not loop.is_spoiled and loop.engine.undone():
        loop.window = _loop.BEFORE
    loop.keep_place()
    loop.prove()
    call(loop.callbacks, "clean")
    state = {"step": loop.number, "committed": loop.committed, "window": loop.window}
    state.update(loop.engine.state())
    return {"state": state}


def join(loop, generation, order):
    before = time.monotonic()
    answer = loop.engine.join(order, loop.session.cancelled(generation))
    answer["joined_ms"] = since(before)
    if loop.is_new:
        answer["built_ms"] = loop.built_ms
    call(loop.callbacks, "rebuild", *loop.engine.place())
    return answer


def repair(loop, generation, order):
    step = order.get("step")
    if not isinstance(step, int):
        raise Refused("a repair without a step")
    before = time.monotonic()
    answer = {"copied_bytes": 0}
    cancelled = loop.session.cancelled(generation)
    loop.engine.agree(order)
    givers = sources(order)
    if givers:
        if loop.lags(step):
            raise Refused("this rank could not do step %d by itself, which its random numbers and its data need" % (step - 1))
        if step == loop.number:
            loop.put_back()
        copied = loop.engine.take(loop, step, givers, cancelled)
        answer["copied_bytes"] = sum(copied.values())
        if len(copied) > 1:
            answer.update(("copied_bytes_from_%d" % rank, count) for rank, count in copied.items())
        loop.arrive(step)
    elif step != loop.number or loop.window == _loop.TORN:
        raise Refused(
            "this rank is %s step %d and nobody gives it the state of step %d; a rank that has it must be named in `from`"
            % ("torn in" if loop.window == _loop.TORN else "at", loop.number, step)
        )
    elif order.get("put_back", True):
        loop.put_back()
    if order.get("to"):  # what this rank is to give is in place now, and a newcomer waits for it
        loop.engine.give(loop, order)
    answer["digest"] = loop.engine.digest(loop)
    call(loop.callbacks, "repair", step, givers[0] if givers else None, list(order.get("to") or []))
    call(loop.callbacks, "rollback", step)
    answer["copied_ms"] = since(before)
    return answer


def sources(order):
    """Whose state is taken: ranks. An older supervisor names one, or none, and no list."""
    named = order.get("from") or []
    return [int(peer["rank"]) for peer in (named if isinstance(named, list) else [named])]


def resume(loop, generation, order):
    if order.get("step") != loop.number or loop.window == _loop.TORN:
        there = (loop.number, loop.window, order.get("step"))
        raise Refused("this rank is at step %d (%s), not at step %s; repair it first" % there)
    if loop.tainted:
        loop.put_back()
    loop.engine.resumed()
    loop.session.resumed(generation)
    loop.tainted = False
    if loop.is_new:
        loop.is_new = False
        if loop.keep is not None:
            loop.keep.has_come()
        loop.keep_copies()
        loop.session.at("loop")
    elif loop.memory is not None:
        loop.memory.say_again(loop.number)
    return {}


def dump(loop, generation, order):
    answer = dict(loop.engine.dump(loop, order), digest=loop.engine.digest(loop))
    call(loop.callbacks, "save", order["dir"], order["step"])
    return answer


def seal(loop, generation, order):
    directory, manifest = order.get("dir"), order.get("manifest")
    if not isinstance(directory, str) or not isinstance(manifest, dict) or not isinstance(manifest.get("parts"), dict):
        raise Refused("a seal needs dir and manifest, and that parts")
    try:
        _dumps.seal(directory.rstrip("/"), manifest)
    except OSError as error:
        raise Refused("the manifest of %s cannot be written: %s" % (directory, error))
    return {}


def leave(loop, generation, order):
    code = order.get("code")
    code = code if isinstance(code, int) else 0
    call(loop.callbacks, "exit", code)
    raise SystemExit(code)


def since(before):
    return round((time.monotonic() - before) * 1000, 3)


DO = {"give-up": give_up, "join": join, "repair": repair, "resume": resume, "dump": dump, "seal": seal, "exit": leave}
