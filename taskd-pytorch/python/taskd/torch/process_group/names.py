"""The name of a process group in the recorder: its own name and its members, so that the evidence of a hang can name
ranks whose process is gone.

The format is `name|ranks`, with the job's ranks in the order of the group: `0|0-3`, `dp|1-7:2` (every second one),
`odd|5,3,9`. After a recovery that has rebuilt the group, the generation follows the name, `0#7|0,2-3`: its operations
are counted from 0 again.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Generator, Sequence

BYTES_MAX = 255  # length of a name in the recorder
RUN_MIN = 3  # minimum number of ranks in a run


def with_members(name: str, ranks: Sequence[int]) -> str:
    """Returns the name with the members, or the name alone if the members do not fit."""
    whole = "%s|%s" % (name, ",".join(runs(ranks)))
    return whole if len(whole.encode("utf-8", "replace")) <= BYTES_MAX else name


def runs(ranks: Sequence[int]) -> Generator[str, Any, None]:
    """Yields the ranks as text; ranks at one constant distance form one run."""
    at = 0
    while at < len(ranks):
        end, stride = at + 1, ranks[at + 1] - ranks[at] if at + 1 < len(ranks) else 0
        while stride > 0 and end < len(ranks) and ranks[end] - ranks[end - 1] == stride:
            end += 1
        if end - at < RUN_MIN:
            end = at + 1
            yield str(ranks[at])
        else:
            yield "%d-%d" % (ranks[at], ranks[end - 1]) + (":%d" % stride if stride > 1 else "")
        at = end
