"""Emergency checkpoints on disk: a directory each, with the part of every rank that wrote one, and a manifest with the
names, lengths and check sums of all parts. The manifest is written last; without it there is no checkpoint.

This module knows no framework: the framework defines the content of a part.
"""

import hashlib
import json
import os
import re
import shutil

NAME = re.compile(r"step-(\d{1,19})-world-(\d{1,10})-(\d{1,19})$")
MANIFEST = "manifest.json"
VERSION = 1
WHOLE_MAX = 3  # complete checkpoints that are kept; older ones are removed
MANIFEST_BYTES_MAX = 4 << 20
PIECE_BYTES = 1 << 20


class NoDump(Exception):
    """Raised if a directory has no complete checkpoint for this rank, with the reason in one sentence."""


# Writing.


def save(path, write):
    """Writes a file on disk by `write(file)`, completely or not at all. Returns its name, length and check sum."""
    new = "%s.%d.new" % (path, os.getpid())
    try:
        with open(new, "w+b") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            size, digest = file.tell(), digest_of(file)
        os.rename(new, path)
    except BaseException:
        if os.path.exists(new):
            os.unlink(new)
        raise
    sync(os.path.dirname(path))
    return {"file": os.path.basename(path), "bytes": size, "sha256": digest}


def sync(directory):
    """Flushes the names in a directory to disk."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def digest_of(file):
    digest = hashlib.sha256()
    file.seek(0)
    for piece in iter(lambda: file.read(PIECE_BYTES), b""):
        digest.update(piece)
    return digest.hexdigest()


def make(directory, sweeps):
    """Creates the directory of a checkpoint. With `sweeps`, removes the remains of incomplete checkpoints."""
    if not NAME.match(os.path.basename(directory)):
        raise NoDump("%s is no name of a checkpoint" % directory)
    if os.path.exists(os.path.join(directory, MANIFEST)):
        raise NoDump("%s is a whole checkpoint already" % directory)
    if sweeps:
        for _, name in named(os.path.dirname(directory)):
            other = os.path.join(os.path.dirname(directory), name)
            if other != directory and not os.path.exists(os.path.join(other, MANIFEST)):
                shutil.rmtree(other, ignore_errors=True)
    os.makedirs(directory, exist_ok=True)
    sync(os.path.dirname(directory))


def seal(directory, manifest):
    """Completes a checkpoint, whose parts must all exist, by its manifest."""
    for rank, part in manifest["parts"].items():
        path = os.path.join(directory, part["file"])
        try:
            size = os.stat(path).st_size
        except OSError as error:
            raise NoDump("%s of rank %s: %s; all hosts have to see the same directory" % (path, rank, error.strerror))
        if size != part["bytes"]:
            raise NoDump("%s of rank %s has %d bytes, and %d were written" % (path, rank, size, part["bytes"]))
    saved = {"version": VERSION, "manifest": manifest, "sha256": check_sum(manifest)}
    save(os.path.join(directory, MANIFEST), lambda file: file.write(json.dumps(saved).encode()))
    root = os.path.dirname(directory)
    whole = [name for _, name in named(root) if os.path.exists(os.path.join(root, name, MANIFEST))]
    for name in whole[WHOLE_MAX:]:
        if os.path.join(root, name) != directory:
            remove(os.path.join(root, name))


def remove(directory):
    """Removes a checkpoint, its manifest first: the rest is not a checkpoint."""
    try:
        os.unlink(os.path.join(directory, MANIFEST))
    except OSError:
        return
    shutil.rmtree(directory, ignore_errors=True)


def check_sum(manifest):
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


# Reading.


def named(root):
    """Returns `((step, world, time), name)` of all directories with a checkpoint's name, the newest first."""
    try:
        names = os.listdir(root)
    except OSError:
        return []
    found = [(NAME.match(name), name) for name in names]
    return sorted(((tuple(map(int, match.groups())), name) for match, name in found if match), reverse=True)


def candidates(root):
    """Returns `(step, name)` of all checkpoints with a manifest, the newest first."""
    return [(key[0], name) for key, name in named(root) if os.path.exists(os.path.join(root, name, MANIFEST))]


def read(directory):
    """Returns the content of the manifest, after checking every byte of every part. Raises NoDump if one is missing."""
    try:
        with open(os.path.join(directory, MANIFEST), "rb") as file:
            saved = json.loads(file.read(MANIFEST_BYTES_MAX))
        if saved["version"] != VERSION:
            raise NoDump("its manifest is of version %s, and this taskd reads version %d" % (saved["version"], VERSION))
        manifest = saved["manifest"]
        if saved["sha256"] != check_sum(manifest):
            raise NoDump("its manifest is damaged")
        parts = {int(rank): (part["file"], part["bytes"], part["sha256"]) for rank, part in manifest["parts"].items()}
        sets = [set(map(int, ranks)) for ranks in manifest["sets"]]
        step, size = int(manifest["step"]), int(manifest["size"])
    except OSError as error:
        raise NoDump("its manifest cannot be read: %s" % error.strerror)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise NoDump("its manifest is damaged: %s: %s" % (type(error).__name__, error))
    for ranks in sets:
        if not ranks & set(parts):
            raise NoDump("its manifest lacks every part of the state of rank %d" % min(ranks))
    for rank, (name, size_of, digest) in sorted(parts.items()):
        check(os.path.join(directory, os.path.basename(name)), rank, size_of, digest)
    return {"step": step, "size": size, "sets": sets, "parts": {rank: part[0] for rank, part in parts.items()}}


def check(path, rank, size, digest):
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno()).st_size
            if found != size:
                raise NoDump("the part of rank %d has %d bytes of %d" % (rank, found, size))
            if digest_of(file) != digest:
                raise NoDump("the part of rank %d is damaged: its check sum is another" % rank)
    except OSError as error:
        raise NoDump("the part of rank %d cannot be read: %s" % (rank, error.strerror))
