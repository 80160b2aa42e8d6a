"""Puts the framework's hooks in place, each when the program has imported what it hooks. Nothing is imported that the program
does not.

Which hooks there are says the framework's `taskd/_framework.py`, where there is one: HOOKS, with a line `(module, hook, kind)`
for each module whose import has `taskd/<hook>.py` do its `install(module, native)`; and `install(after_import, native)`.
"""

import os
import sys
from importlib import import_module

from taskd import _hooks, _native, _steps


def install(after_import, completed):
    """Called once, in the rank.

    `after_import(name, then)` calls `then(module)` when the program has imported it; what is appended to `completed` is
    called with the number of every training step that an optimizer has completed.
    """
    native = _native.native
    if isinstance(getattr(native, "real", native), _native.Nothing):
        if native.reason:
            raise RuntimeError(native.reason)
        return
    hooks = ()
    if os.path.exists(os.path.join(os.path.dirname(__file__), "_framework.py")):
        from taskd import _framework

        _framework.install(after_import, native)
        hooks = _framework.HOOKS
    completed.append(_steps.Steps(native).completed)
    for name, hook, kind in hooks:
        after_import(name, installer(hook, kind, native))


def import_hooks(hooks):
    """Imports the hooks ahead, in a process that has no rank yet: once it has one, all other ranks wait for it. A hook may have a
    `prepare(module)`, which does what takes long and changes nothing."""
    for module, hook, _ in hooks:
        if module in sys.modules:
            try:
                imported = import_module("taskd." + hook)
                if hasattr(imported, "prepare"):
                    imported.prepare(sys.modules[module])
            except Exception:
                pass  # it fails again where it is installed, which is reported


def installer(hook, kind, native):
    def install(module):
        try:
            import_module("taskd." + hook).install(module, native)
        except Exception as error:
            _hooks.failed(native, kind, error)

    return install
