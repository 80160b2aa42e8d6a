"""What a process group is called in the recorder: its name and its members, so that who waits for whom can be told of a
process that is gone.

It is `name|ranks`, of the job's ranks in the order of the group: `0|0-3`, `dp|1-7:2` (every second one), `odd|5,3,9`. After a
recovery that has made it anew the generation stands behind the name, `0#7|0,2-3`: its operations are counted from 0 again.
"""

BYTES_MAX = 255  # of a name in the recorder
RUN_MIN = 3  # ranks that are worth a run


def with_members(name, ranks):
    """The name alone where there is no room for the members."""
    whole = "%s|%s" % (name, ",".join(runs(ranks)))
    return whole if len(whole.encode("utf-8", "replace")) <= BYTES_MAX else name


def runs(ranks):
    """Ranks that follow each other at one distance, together."""
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
