"""This rank's part of an emergency checkpoint (`_emergency_checkpoint`), written completely or not at all.

A part is a file of `torch.save`: `paths` (of all tensors), `leaves` (every `of`-th of them, beginning with the part's
number, by path) and the types of their `devices`, `rest` (state other than tensors, encoded; in part 0), `private`
(random numbers, data position and buffers of the rank that wrote the part), `left` (what ranks that write no part have
left, if it is found here: by rank, and by step and kind as in `_handoff`), `step` (the next step), `part`, `of`, and
`layout`, which is the same in all parts of one state.
"""

from __future__ import annotations

import os
import time

import torch

from taskd import _emergency_checkpoint, _handoff
from taskd._loop import TORN
from taskd._session import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from taskd._loop import Loop
    from taskd.torch.engine import Engine


def write(engine: Engine, loop: Loop, order: Any) -> Any:
    step, part, of = (order.get(name) for name in ("step", "part", "of"))
    if (
        not isinstance(order.get("dir"), str)
        or not all(isinstance(one, int) for one in (step, part, of))
        or not 0 <= part < of
    ):
        raise Refused("a dump needs dir, step, part and of, and part has to be less than of")
    if loop.number != step or loop.attempt.window == TORN or loop.is_new:
        there = (loop.number, loop.attempt.window, step)
        raise Refused("this rank is at step %s (%s) and has not the state with which step %d begins" % there)
    before = time.monotonic()
    loop.put_back()
    leaves = engine.state_.leaves()
    own = {path: leaf for at, (path, leaf) in enumerate(sorted(leaves.items())) if at % of == part}
    content = {
        "step": step,
        "part": part,
        "of": of,
        "layout": engine.state_.layout(leaves),
        "paths": list(leaves),
        "leaves": {path: leaf.detach().to("cpu", copy=True) for path, leaf in own.items()},
        "devices": {path: leaf.device.type for path, leaf in own.items()},
        "rest": engine.state_.rest() if part == 0 else None,
        "private": loop.private(),
        "late": engine.late.notes(step),
        "left": {rank: left_by(rank, step) for rank in order.get("without", ())},
    }
    directory = order["dir"].rstrip("/")
    name = "%s.part-%d-of-%d.pt" % (engine.session.proc.rpartition(".")[0] or "rank", part, of)
    try:
        _emergency_checkpoint.make(directory, sweeps=part == 0)
        written = _emergency_checkpoint.save(os.path.join(directory, name), lambda file: torch.save(content, file))
    except (OSError, RuntimeError) as error:  # torch raises either if the disk is full
        raise Refused("the checkpoint %s cannot be written: %s" % (directory, reason(error)))
    return {"shard": written, "saved_bytes": written["bytes"], "saved_ms": round((time.monotonic() - before) * 1000, 3)}


def left_by(rank: int, step: int) -> Any:
    """Returns the own state of a lost rank, from memory of ranks of this host: that of the start of this step, and of
    the start and the end of the forward pass of the step before, during which the rank may have been lost."""
    wanted = (step - 1, _handoff.START), (step - 1, _handoff.FORWARD), (step, _handoff.START)
    return {of: data for of, data in _handoff.left_by(rank).items() if of in wanted}


def reason(error: BaseException) -> str:
    """Returns the message of the system error from which torch's error arose."""
    while error.__context__ is not None and not isinstance(error, OSError):
        error = error.__context__
    return str(error).splitlines()[0]
