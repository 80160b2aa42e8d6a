"""The recorder of this process: one object, `native`, with the functions of libtaskd, chosen once, at import.

`native` is the library's own Python module if that loads, else a ctypes layer over its C functions, else an object that
does nothing: outside of a job, with TASKD_HOOKS=0, and in every process that is not the rank that the lifeline page
names. None of them ever raises because of an error in the recorder. A standby that runs its program loads its recorder
when it has a rank.

    name(text) -> id               of a name, 0 if there is no room for another
    begin(kind | id << 32) -> range, 0 if the kind is off
    begin_step(number) -> range
    begin_communication(name, op, data_type, group, peer, elements, bytes, sequence) -> range
    end(range)                     of any of these, on any thread
    mark(kind | id << 32), counter(kind | id << 32, value)
    is_on(kind) -> bool            whether the kind is recorded now
    hooked(kind)                   this process has a hook for the kind
    except_(kind, reason)          why the kind is not recorded although it is on; "" removes the reason

The library's own module also has functions that record the operations of process groups (`prepare_operations`).
TASKD_NATIVE (`abi3` or `ctypes`) selects one of the two, for tests and benchmarks.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Nothing:
    """Records nothing. `reason` has the error, if there is one."""

    def __init__(self, reason=""):
        self.reason = reason

    def begin(self, kind_and_name):
        return 0

    def begin_communication(self, name, op, data_type, group, peer, elements, bytes, sequence):
        return 0

    def is_on(self, kind):
        return False

    def mark(self, kind_and_name):
        pass

    def counter(self, kind_and_name, value):
        pass

    def except_(self, kind, reason):
        pass

    name = begin_step = begin
    end = hooked = mark


class Later:
    """Stands in for the recorder of a standby: it records nothing until the process is a rank."""

    def __init__(self):
        self.real = Nothing()
        self.kinds = []  # kinds that have hooks already
        self.then = []  # functions to call when the recorder is loaded: names looked up before have no ids

    def load(self):
        self.real = load()
        for kind in self.kinds:
            self.real.hooked(kind)
        while self.then:
            self.then.pop()()

    def hooked(self, kind):
        self.kinds.append(kind)
        self.real.hooked(kind)

    @property
    def reason(self):
        return getattr(self.real, "reason", "")


def passed_on(name):
    def function(self, *args):
        return getattr(self.real, name)(*args)

    return function


for name in ("name", "begin", "begin_step", "begin_communication", "end", "mark", "counter", "is_on", "except_"):
    setattr(Later, name, passed_on(name))


def load():
    library = os.environ.get("TASKD_LIB")
    if not library or not os.environ.get("TASKD_LIFELINE") or os.environ.get("TASKD_HOOKS") == "0":
        return Nothing()
    for way, layer in (("abi3", abi3), ("ctypes", c_functions)):
        if os.environ.get("TASKD_NATIVE", way) == way:
            try:
                found = layer(library)
            except Exception:
                continue  # this Python or system cannot load it in this way
            opened = found.open()
            return found if opened == 1 else Nothing(found.why() if opened < 0 else "")
    return Nothing("%s cannot be loaded" % library)


def abi3(library):
    """Returns the module `_taskd`, which the library contains."""
    from importlib.machinery import ExtensionFileLoader, ModuleSpec

    loader = ExtensionFileLoader("_taskd", library)
    module = loader.create_module(ModuleSpec("_taskd", loader, origin=library))
    loader.exec_module(module)
    return module


def c_functions(library):
    import ctypes

    from taskd._c_functions import Functions

    # PyDLL keeps the interpreter lock: releasing and taking it would take longer than any of these functions.
    return Functions(ctypes, ctypes.PyDLL(library))


native: "Any" = Later() if getattr(sys.modules.get("_taskd_standby_prepare"), "current", None) else load()
