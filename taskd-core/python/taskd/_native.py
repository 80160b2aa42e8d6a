"""What this process records with: one object, `native`, with the functions of libtaskd, chosen once, at import.

It is the library's own Python module where that loads, else a ctypes layer over its C functions, else an object that does
nothing: outside of a job, with TASKD_HOOKS=0, and in every process that is not the rank which the lifeline page names.
None of them ever raises for a reason that lies in the recorder. A process that runs the program ahead of its rank gets its object
late.

    name(text) -> id               of a name, 0 where there is no room for another
    begin(kind | id << 32) -> range, 0 where the kind is off
    begin_step(number) -> range
    begin_communication(name, op, data_type, group, peer, elements, bytes, sequence) -> range
    end(range)                     of any of these, on any thread
    mark(kind | id << 32), counter(kind | id << 32, value)
    is_on(kind) -> bool            whether the kind is recorded now
    hooked(kind)                   this process has a hook for the kind
    except_(kind, reason)          why the kind is not recorded though it is on; "" takes it back

TASKD_NATIVE (`abi3` or `ctypes`) leaves no choice, for tests and benchmarks.
"""

import os
import sys


class Nothing:
    """Records nothing; `reason` says why, where that is not as it should be."""

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
    """In place of what there will be once this process is a rank: until then it does nothing."""

    def __init__(self):
        self.real = Nothing()
        self.kinds = []  # that have hooks already
        self.then = []  # what is called when it is there: names that were asked for have no numbers

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
                continue  # a Python or a system that cannot load it in this way
            opened = found.open()
            return found if opened == 1 else Nothing(found.why() if opened < 0 else "")
    return Nothing("%s cannot be loaded" % library)


def abi3(library):
    """The module `_taskd`, which is in the library as well."""
    from importlib.machinery import ExtensionFileLoader, ModuleSpec

    loader = ExtensionFileLoader("_taskd", library)
    module = loader.create_module(ModuleSpec("_taskd", loader, origin=library))
    loader.exec_module(module)
    return module


def c_functions(library):
    import ctypes

    from taskd._c_functions import Functions

    # PyDLL keeps the interpreter's lock: giving it up and taking it again would take longer than any of these functions.
    return Functions(ctypes, ctypes.PyDLL(library))


native = Later() if getattr(sys.modules.get("_taskd_ahead"), "current", None) else load()
