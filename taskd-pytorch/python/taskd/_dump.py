"""This rank's part of a dying checkpoint (`_dumps`), whole or not at all.

A part is a file of `torch.save`: `paths` (of all tensors), `leaves` (every `of`-th of them, beginning with the part's number, by
path) and the kinds of their `devices`, `rest` (what is no tensor, pickled; in part 0), `private` (random numbers, the place in the
data and the buffers of the rank that wrote it), `left` (what ranks that write no part have left, as far as it is found here: by rank,
and by step and kind as in `_keep`), `step` (the next one to do), `part`, `of`, and `layout`, which is the same in all
parts of one state.
"""

import os
import time

import torch

from taskd import _dumps, _keep, _loop
from taskd._session import Refused


def write(engine, loop, order):
    step, part, of = (order.get(name) for name in ("step", "part", "of"))
    if not isinstance(order.get("dir"), str) or not all(isinstance(one, int) for one in (step, part, of)) or not 0 <= part < of:
        raise Refused("a dump needs dir, step, part and of, and part has to be less than of")
    if loop.number != step or loop.window == _loop.TORN or loop.is_new:
        there = (loop.number, loop.window, step)
        raise Refused("this rank is at step %s (%s) and has not the state with which step %d begins" % there)
    before = time.monotonic()
    loop.put_back()
    leaves = engine.state_.leaves()
    own = {path: leaf for at, (path, leaf) in enumerate(sorted(leaves.items())) if at % of == part}
    told = {
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
        _dumps.make(directory, sweeps=part == 0)
        written = _dumps.save(os.path.join(directory, name), lambda file: torch.save(told, file))
    except (OSError, RuntimeError) as error:  # torch makes either of a full disk
        raise Refused("the checkpoint %s cannot be written: %s" % (directory, reason(error)))
    return {"part": written, "saved_bytes": written["bytes"], "saved_ms": round((time.monotonic() - before) * 1000, 3)}


def left_by(rank, step):
    """What only another rank has had, with which the step began, or the one before, which it may have left in its middle: in the
    memory of ranks of this host."""
    wanted = (step - 1, _keep.START), (step - 1, _keep.FORWARD), (step, _keep.START)
    return {of: data for of, data in _keep.left_by(rank).items() if of in wanted}


def reason(error):
    """What the system said, under what torch makes of it."""
    while error.__context__ is not None and not isinstance(error, OSError):
        error = error.__context__
    return str(error).splitlines()[0]
