"""Puts in place what recovery inside of the process needs, where a supervisor is there: the session with its link, and what the
framework's `taskd/_framework.py` brings for it (`recover(after_import, session)`).

It imports nothing of the framework before the program does.
"""

import os

from taskd import _session


def install(after_import, page):
    """Called once, in the rank. `page` is what counts the steps in the lifeline page (`Steps` in sitecustomize.py)."""
    path = os.environ.get("TASKD_CONTROL")
    if not path or _session.current is not None:
        return
    try:
        from taskd import _framework
    except ImportError:
        return
    if not hasattr(_framework, "recover"):
        return
    session = _session.current = _session.Session(path, _framework.NAME, page)
    _framework.recover(after_import, session)
    session.link.start()
    os.register_at_fork(after_in_child=forget)


def forget():
    """A forked child is nobody that a supervisor knows."""
    _session.current = None
