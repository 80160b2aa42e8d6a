"""A rank that trains nothing, in a job with real recoveries: the real session, and a stand-in for the framework."""

from taskd import _session


class Engine:
    """Of a framework that does nothing."""

    is_a_stand_in = True
    cannot, reported_sharded = None, []
    release = is_rank = staticmethod(lambda: None)
    state_bytes = staticmethod(lambda: 0)


session = _session.current
session.engine = Engine()
digest = {"loop": 1, "step": 0, "digest": "equal", "group": "all", "took_us": 1}  # of nothing: both have the same
session.proved(digest, True)
session.at(_session.PARKED if session.wait_for_mode() == _session.JOIN else _session.IN_LOOP)
while True:
    id_, generation, kind, order = session.inbox.get()
    if kind == "resume":
        session.resumed(generation)
        session.at(_session.IN_LOOP)
    state = {"step": 2, "committed": 1, "window": "before", "buckets": [], "layout": "", "bytes": 0}
    session.answer(id_, {"abort": {"state": state}, "sync-state": {"digest": digest}}.get(kind, {}))
