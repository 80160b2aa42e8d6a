"""Installs the framework's hooks, each when the program has imported the module that it hooks. Imports no framework
module before the program does.

The framework's interface, if there is one, defines the hooks (`HOOKS` and `install` of `_framework.Framework`).
"""

import sys
from importlib import import_module

from taskd import _framework, _hooks, _native, _step_recorder


def install(after_import, completed):
    """Installs the hooks. Called once, in the rank.

    `after_import(name, then)` calls `then(module)` when the program has imported the module `name`. A function that is
    appended to `completed` is called with the number of each training step that an optimizer has completed.
    """
    native = _native.native
    if isinstance(getattr(native, "real", native), _native.Nothing):
        if native.reason:
            raise RuntimeError(native.reason)
        return
    hooks = ()
    framework = _framework.current()
    if framework is not None:
        framework.install(after_import, native)
        hooks = framework.HOOKS
    completed.append(_step_recorder.Steps(native).completed)
    for name, hook, kind in hooks:
        after_import(name, installer(hook, kind, native))


def import_hooks(hooks):
    """Imports the hooks early, in a standby: once it has a rank, all other ranks wait for it. A hook may have a
    `prepare(module)`, which does the slow part and changes nothing."""
    for module, hook, _ in hooks:
        if module in sys.modules:
            try:
                imported = import_module(hook)
                if hasattr(imported, "prepare"):
                    imported.prepare(sys.modules[module])
            except Exception:
                pass  # the installation will fail as well, which is reported


def installer(hook, kind, native):
    def install(module):
        try:
            import_module(hook).install(module, native)
        except Exception as error:
            _hooks.failed(native, kind, error)

    return install
