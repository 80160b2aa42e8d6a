"""Puts in place what recovery inside of the process needs, where a supervisor is there: the session with its link, and what the
framework's `taskd/_framework.py` brings for it (`recover(after_import, session)`).

It imports nothing of the framework before the program does.
"""

import os

from taskd import _session


def install(after_import, page, ahead=None):
    """Called once, in the rank, or in a process that runs the program `ahead` of it. `page` is what counts the steps in the
    lifeline page (`Steps` in sitecustomize.py)."""
    if _session.current is not None or not ahead and not os.environ.get("TASKD_CONTROL"):
        return
    try:
        from taskd import _framework
    except ImportError:
        return
    if not hasattr(_framework, "recover"):
        return
    session = _session.current = _session.Session(_framework.NAME, page)
    if ahead:
        session.mode = _session.JOIN
        ahead.then.append(session.begin)
        from taskd import _install  # any other rank imports it where it is to record

        _install.import_hooks(_framework.HOOKS)
    _framework.recover(all_or_none(after_import, session), session)
    if not ahead:
        session.begin()
    os.register_at_fork(after_in_child=forget)


def all_or_none(after_import, session):
    """Has hooks put in place, of which one that fails breaks all: with the others alone a step would be given up at the wrong moment."""

    def wait(name, then):
        def hook(module):
            try:
                then(module)
            except Exception as error:
                session.breaks("the hook in %s failed (%s: %s)" % (name, type(error).__name__, error))

        after_import(name, hook)

    return wait


def forget():
    """A forked child is nobody that a supervisor knows."""
    _session.current = None
