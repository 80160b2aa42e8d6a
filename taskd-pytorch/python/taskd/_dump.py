"""This rank's part of a dying checkpoint, whole or not at all: a temporary name, written to the disk, then renamed.

A part is a file of `torch.save`: `leaves` (tensors by path, every `of`-th of them beginning with the part's number), `rest`
(what is no tensor, pickled; in part 0), `private` (random numbers and the place in the data of the rank that wrote it), `step`
(the next one to do), `part`, `of`, and `layout`, which is the same in all parts of one checkpoint.
"""

import hashlib
import os

import torch

from taskd import _loop
from taskd._session import Refused


def write(engine, loop, order):
    step, part, of = (order.get(name) for name in ("step", "part", "of"))
    if not isinstance(order.get("dir"), str) or not all(isinstance(one, int) for one in (step, part, of)) or not 0 <= part < of:
        raise Refused("a dump needs dir, step, part and of, and part has to be less than of")
    if loop.committed != step or loop.window == _loop.TORN:
        raise Refused("this rank has the state after step %s (%s), not after step %d" % (loop.committed, loop.window, step))
    loop.put_back()
    leaves = engine.state_.leaves()
    told = {
        "step": step + 1,
        "part": part,
        "of": of,
        "layout": engine.state_.layout(leaves),
        "leaves": {path: leaf.clone() for at, (path, leaf) in enumerate(sorted(leaves.items())) if at % of == part},
        "rest": engine.state_.rest() if part == 0 else None,
        "private": loop.private(),
    }
    path = os.path.join(order["dir"], "step-%d.part-%d-of-%d.pt" % (step, part, of))
    try:
        os.makedirs(order["dir"], exist_ok=True)
        return save(told, path)
    except OSError as error:
        raise Refused("the checkpoint %s cannot be written: %s" % (path, error))


def save(told, path):
    new = "%s.%d" % (path, os.getpid())
    try:
        with open(new, "w+b") as file:
            torch.save(told, file)
            file.flush()
            os.fsync(file.fileno())
            size, digest = file.tell(), hashlib.sha256()
            file.seek(0)
            for piece in iter(lambda: file.read(1 << 20), b""):
                digest.update(piece)
        os.rename(new, path)
    except BaseException:
        if os.path.exists(new):
            os.unlink(new)
        raise
    directory = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(directory)  # the name
    finally:
        os.close(directory)
    return {"path": path, "bytes": size, "sha256": digest.hexdigest()}
