"""The interface between this package and a training framework, and the choice of the framework for this process.

A framework's part is a package in this one, named as the module that a training program imports: `taskd.torch` for
`torch`. Its module `framework` has the functions of `Framework` below. In a rank, `_taskd_framework.py` names that
module (`MODULE`); elsewhere the framework is the one that the program has imported. This module imports nothing else of
a framework.

A framework's part may import these modules of the package, and no others (`.ci/python` checks it):

  * recording: `_hooks`, `_kinds`, `_native`, `_step_recorder`, `_vendor_marks`;
  * recovery: `_aborted`, `_batches`, `_loop`, `_session`, `_link`;
  * state: `_codec`, `_copy`, `_auth`, `_handoff`, `_handoff_peers`, `_emergency_checkpoint`, `_in_memory_checkpoint`,
    `_second_copies`.
"""

import os
import sys
from importlib import import_module

TYPE_CHECKING = False  # `typing` imports modules that a rank does not need
if TYPE_CHECKING:
    from typing import Any, Callable, Optional, Protocol, Tuple

    AfterImport = Callable[[str, Callable[[Any], object]], None]

    class Framework(Protocol):
        """The module `taskd.<module>.framework`. `NAME`, `HOOKS` and `install` are required, the rest is optional."""

        #: The framework's name for the supervisor.
        NAME: str
        #: An entry `(module, hook, kind)` for each hooked module of the framework: when the program imports `module`,
        #: the module `hook` runs its `install(module, native)`. If that fails, records of `kind` are missing. A hook
        #: may have a `prepare(module)`, which does the slow part in a standby and changes nothing.
        HOOKS: Tuple[Tuple[str, str, int], ...]

        def install(self, after_import: AfterImport, native: Any) -> None:
            """Called once, in the rank, before the hooks. `after_import(name, then)` calls `then(module)` when the
            program has imported it."""

        def recover(self, after_import: AfterImport, session: Any) -> None:
            """Installs the hooks that recovery in the process needs. Called once, in a rank that has a supervisor,
            before `install`."""

        def engine(self, session: Any) -> Any:
            """Returns the session's engine: the framework's part of `taskd.steps` (`taskd.torch.engine` has all
            methods)."""

        def load_checkpoint(self, state: Any, directory: Optional[str], newer_than: Optional[int]) -> Optional[int]:
            """See `taskd.load_checkpoint`."""

        def add_codec_types(self) -> None:
            """Registers the framework's types with `_codec`. Called any number of times: whenever `_codec` finds a
            value of an unknown type."""


_current = None


def current():
    """Returns the interface of this process's framework, a module; None if there is no framework or no interface."""
    global _current
    if _current is None:
        here = os.path.dirname(__file__)
        for name in names(here):
            if os.path.exists(os.path.join(here, name, "framework.py")):
                _current = import_module("taskd.%s.framework" % name)
                break
    return _current


def names(here):
    """Returns the names of the possible frameworks: the rank's own if it has one, else the modules that the program has
    imported."""
    named = getattr(sys.modules.get("_taskd_framework"), "MODULE", None)
    return (named,) if named else [name for name in sorted(os.listdir(here)) if name in sys.modules]


def use(interface):
    """Sets the interface that this process uses, instead of one found by name."""
    global _current
    _current = interface
