"""Resets a standby to the state of a process that was started for its rank.

It resets random numbers, arguments, the marks that /proc shows, and numbers of threads, and sends nothing. For Python
3.8 and later.
"""

import os
import sys

FUNCTIONS = (type(os.fspath), type(os.walk), type)  # Python functions, built-in functions, and classes
ENV_START = 50 - 3  # index of the environment's address among the fields after the name in /proc/self/stat


class Seated:
    """The hooks' view of a seated process, whose modules are imported already.

    A forked child copies each page of memory that it writes to, and Python writes to each object that it inspects. So
    the template inspects all modules before it forks.
    """

    def __init__(self):
        kept.append(self)
        self.ahead = None  # the `Ahead`, if the program runs before this process has a rank
        self.places = {}  # by id of a function: (names, name) for each other module that has imported it
        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", None)
            for name, value in names.items() if type(names) is dict else ():
                # Not `isinstance`: it reads an attribute of the object, and a deprecated object warns then.
                if issubclass(type(value), FUNCTIONS) and getattr(value, "__module__", None) != names.get("__name__"):
                    self.places.setdefault(id(value), []).append((names, name))

    def everywhere(self, module, then):
        """Calls `then(module)`. A function that it replaces in the module is also replaced in each module that has
        imported it from there."""
        usual, replaced = type(module), []
        if usual is not type(sys):
            return then(module)

        class Watched(usual):
            def __setattr__(self, name, value):
                replaced.append((vars(self).get(name), value))
                usual.__setattr__(self, name, value)  # pyright: ignore[reportCallIssue]

        module.__class__ = Watched
        try:
            then(module)
        finally:
            module.__class__ = usual
        for old, new in replaced:
            for names, name in self.places.get(id(old), ()):
                if names.get(name) is old:
                    names[name] = new


kept = []  # objects that must not be freed: freeing them would write to their pages


class Noted:
    """The random numbers after the imports, to restore after the warm-up step."""

    def __init__(self, before, framework):
        self.framework = framework
        self.states = generators(framework)
        # A program that seeds during its imports gets these numbers; any other gets new ones in each process.
        self.is_seeded = {name: state != before.get(name, state) for name, state in self.states.items()}

    def seed(self):
        for name in generators(self.framework):  # the warm-up step may have added one
            seed(name, self.states[name] if self.is_seeded.get(name) else None, self.framework)


def generators(framework):
    """Returns the states of Python's, NumPy's and the framework's generators, if imported, in a comparable form."""
    found = {}
    if "random" in sys.modules:
        found["random"] = sys.modules["random"].getstate()
    numpy_random = sys.modules.get("numpy.random")
    if hasattr(numpy_random, "get_state"):
        kind, numbers, *rest = numpy_random.get_state()
        found["numpy.random"] = (kind, numbers.tobytes(), *rest)
    found.update(framework.generators() if hasattr(framework, "generators") else {})
    return found


def seed(name, state, framework):
    """Sets the state of a generator; None seeds it with new random numbers."""
    if name == "random":
        random = sys.modules["random"]
        random.seed() if state is None else random.setstate(state)
    elif name == "numpy.random":
        numpy = sys.modules["numpy"]
        if state is None:
            numpy.random.seed()
        else:
            numpy.random.set_state((state[0], numpy.frombuffer(state[1], dtype="uint32")) + state[2:])
    else:
        framework.seed(name, state)


def as_new():
    """Resets what a new process would not share with the template, as far as that is possible without a rank."""
    process = sys.modules.get("multiprocessing.process")
    if process:
        process.current_process().authkey = os.urandom(32)
    threading = sys.modules.get("threading")
    if hasattr(threading, "main_thread") and hasattr(threading.main_thread(), "_set_native_id"):
        threading.main_thread()._set_native_id()  # after a fork it is the parent's
    forget = getattr(sys.modules.get("warnings"), "_filters_mutated", None)
    if forget:
        forget()  # the warnings so far were the template's


def look_for_files_again():
    """Has Python find modules that were created since it last looked. In packages it checks the directory's time."""
    for path in sys.path:
        finder = sys.path_importer_cache.get(path)
        if finder is None:
            sys.path_importer_cache.pop(path, None)  # the directory may exist now
        elif hasattr(finder, "invalidate_caches"):
            finder.invalidate_caches()  # pyright: ignore[reportAttributeAccessIssue]


def replace_arguments(arguments):
    """Replaces the program's arguments after its name."""
    originals = getattr(sys, "orig_argv", None)
    if originals is not None:
        originals[len(originals) - len(sys.argv) + 1 :] = arguments
    sys.argv[1:] = arguments


class Mark:
    """The place in /proc/self/environ for the name of this process's rank: a variable with spare room, set at the
    template's start. It identifies the children that a rank forks. The rank's own variables follow it, for tools that
    read /proc."""

    def __init__(self):
        import ctypes

        with open("/proc/self/stat", "rb") as stat:
            start = int(stat.read().rsplit(b")", 1)[1].split()[ENV_START])
        with open("/proc/self/environ", "rb") as environ:
            content = environ.read()
        at = (b"\0" + content).find(b"\0TASKD_PROC=")
        self.room = len(content[at:].split(b"\0", 1)[0])
        if at < 0 or not start:
            raise RuntimeError("its environment has no place for its name")
        self.address, self.move = start + at, ctypes.memmove

    def write(self, entries):
        """Writes these `NAME=value` entries, the name of the process first, as far as there is room."""
        shown = b""
        for entry in sorted(map(os.fsencode, entries), key=lambda entry: not entry.startswith(b"TASKD_PROC=")):
            if len(shown) + len(entry) <= self.room:
                shown += entry + b"\0"
            elif not shown:
                raise RuntimeError("there is no room for %s" % os.fsdecode(entry))
        self.move(self.address, shown[: self.room].ljust(self.room, b"\0"), self.room)


OPENBLAS = "OPENBLAS_NUM_THREADS"
# Libraries with their own threads: the prefix of the file name, the functions that set the number of threads, and the
# library's own variable for it.
LIBRARIES = (
    ("libgomp", ("omp_set_num_threads",), ""),
    ("libomp", ("omp_set_num_threads",), ""),
    ("libiomp5", ("omp_set_num_threads",), ""),
    ("libmkl_rt", ("MKL_Set_Num_Threads",), "MKL_NUM_THREADS"),
    ("libopenblas", ("openblas_set_num_threads", "openblas_set_num_threads64_"), OPENBLAS),
    ("libscipy_openblas", ("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads"), OPENBLAS),
)


class Threads:
    """Sets the numbers of threads of libraries that have read their variables already, by their own functions."""

    def __init__(self, framework):
        import ctypes

        self.calls = []
        for path in sorted(mapped_libraries()):
            for prefix, names, variable in LIBRARIES:
                if os.path.basename(path).startswith(prefix):
                    library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
                    known = [getattr(library, name) for name in names if hasattr(library, name)]
                    self.calls += [(call, variable) for call in known[:1]]
        if hasattr(framework, "set_threads"):
            self.calls.append((framework.set_threads, ""))

    def set(self, count):
        """Sets the number of threads: the library's own variable, else `count`."""
        for call, variable in self.calls:
            number = number_in(os.environ.get(variable)) or number_in(count)
            if variable == OPENBLAS:
                number = openblas_number()
            if number:
                call(number)


def openblas_number():
    """Returns the number of threads that OpenBLAS would choose from its variables: at most the number of processors,
    and as many as there are processors if no variable is set, independent of other libraries."""
    processors = len(os.sched_getaffinity(0))
    asked = number_in(os.environ.get(OPENBLAS)) or number_in(os.environ.get("OMP_NUM_THREADS"))
    return min(asked or processors, processors)


def number_in(text):
    """Returns the number in a variable; the first one of a list for nested regions; 0 if there is none."""
    first = (text or "").split(",")[0].strip()
    return int(first) if first.isdigit() else 0


def mapped_libraries():
    found = set()
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")[2]
            if ".so" in path:
                found.add("/" + path)
    return found
