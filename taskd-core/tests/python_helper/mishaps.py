"""What goes wrong in a rank's own part of a recovery, without a framework: `python mishaps.py NAME` prints what was seen as JSON.

What stands for the framework is a stand-in, which says so.
"""

import json
import sys

from taskd import _batches


class Copier:
    """Of batches that are lists."""

    is_a_stand_in = keeps = True
    mark, copy = tuple, list

    def seed(self):
        return None


def raised(do):
    """What it raises, as text; None where it does not."""
    try:
        do()
    except Exception as error:
        return "%s: %s" % (type(error).__name__, error)


def changed_in_place():
    """A batch of one of two loaders is changed in a step, which is to be done again, and again; and in the step after it."""
    streams, loaders = _batches.Streams(_batches.open_plainly, Copier()), [[[n + 1] for n in range(8)] for _ in range(2)]
    plain, changed = (streams.of(one) for one in loaders)
    streams.begin_step()
    plain.next()
    changed.next()[0] /= 255
    changed.next()
    refused = [raised(streams.redo_step) for _ in range(3)]
    cursors = [plain.cursor, changed.cursor]
    streams.begin_step()
    changed.next()[0] /= 255
    streams.redo_step()
    return {"refused": refused, "cursors": cursors, "copied": changed.next()}


CASES = {"changed_in_place": changed_in_place}

if __name__ == "__main__":
    print(json.dumps(CASES[sys.argv[1]]()))
