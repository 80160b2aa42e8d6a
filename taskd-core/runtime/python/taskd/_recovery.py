"""Prepares recovery inside the process, if there is a supervisor: the session with its link, and the hooks of the
framework's interface (`recover` of `_framework.Framework`).

This module imports nothing of the framework before the program does.
"""

import os

from taskd import _framework, _session


def install(after_import, page, ahead=None):
    """Prepares recovery. Called once, in the rank, or in a standby that runs its program (`ahead`). `page` is the step
    count of the lifeline page (`Steps` in sitecustomize.py)."""
    if _session.current is not None or not ahead and not os.environ.get("TASKD_CONTROL"):
        return
    try:
        framework = _framework.current()
    except ImportError:
        return
    if framework is None or not hasattr(framework, "recover"):
        return
    session = _session.current = _session.Session(framework.NAME, page)
    if ahead:
        session.mode = _session.JOIN
        ahead.then.append(session.begin)
        from taskd import _install  # any other rank imports it when it begins to record

        _install.import_hooks(framework.HOOKS)
    framework.recover(all_or_none(after_import, session), session)
    if not ahead:
        session.begin()
    os.register_at_fork(after_in_child=forget)


def all_or_none(after_import, session):
    """Returns an `after_import` for hooks that work only together: if one fails, the rank takes part in no recovery, as
    the other hooks alone would abort a step at the wrong moment."""

    def wait(name, then):
        def hook(module):
            try:
                then(module)
            except Exception as error:
                session.breaks("the hook in %s failed (%s: %s)" % (name, type(error).__name__, error))

        after_import(name, hook)

    return wait


def forget():
    """Removes the session in a forked child, which is not a process of the supervisor."""
    _session.current = None
