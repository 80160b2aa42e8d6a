"""What a process that waited for its rank does to be as one that was started for it.

Random numbers, arguments, the marks that /proc shows, numbers of threads. It talks to nobody. For Python 3.8 and later.
"""

import os
import sys

FUNCTIONS = (type(os.fspath), type(os.walk), type)  # built-in or not, and classes
ENV_START = 50 - 3  # where the environment lies: a field of /proc/self/stat, behind the name


class Seated:
    """What a process that was seated has to do otherwise than one that was started: its modules are there already.

    A forked child copies each page of memory that it writes to, and Python writes to whatever it looks at. So all looking is done
    ahead, in the template.
    """

    def __init__(self):
        kept.append(self)
        self.ahead = None  # where the program is run before anybody knows which rank this is
        self.places = {}  # where a function is known besides in its own module: (names of a module, name), by its id
        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", None)
            for name, value in names.items() if type(names) is dict else ():
                # Of its type alone: `isinstance` asks the object itself as well, and one that is deprecated warns of that.
                if issubclass(type(value), FUNCTIONS) and getattr(value, "__module__", None) != names.get("__name__"):
                    self.places.setdefault(id(value), []).append((names, name))

    def everywhere(self, module, then):
        """`then(module)`. A function that it replaces in the module is replaced where others have imported it from there, too."""
        usual, replaced = type(module), []
        if usual is not type(sys):
            return then(module)

        class Watched(usual):
            def __setattr__(self, name, value):
                replaced.append((vars(self).get(name), value))
                usual.__setattr__(self, name, value)

        module.__class__ = Watched
        try:
            then(module)
        finally:
            module.__class__ = usual
        for old, new in replaced:
            for names, name in self.places.get(id(old), ()):
                if names.get(name) is old:
                    names[name] = new


kept = []  # what must not be freed: freeing would write to all of it


class Noted:
    """Random numbers as the imports left them, whatever is tried out later."""

    def __init__(self, before, framework):
        self.framework = framework
        self.states = generators(framework)
        # Whoever seeds while it is imported wants these numbers; anybody else wants new ones in each process.
        self.is_seeded = {name: state != before.get(name, state) for name, state in self.states.items()}

    def seed(self):
        for name in generators(self.framework):  # one may have come with what was tried out
            seed(name, self.states[name] if self.is_seeded.get(name) else None, self.framework)


def generators(framework):
    """The states of Python's, NumPy's and the framework's generators, as far as they are there, as what can be compared."""
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
    """Puts a generator into this state; None is a new one."""
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
    """What a new process does not have from an earlier one, as far as it can be done before anybody knows which rank it is."""
    process = sys.modules.get("multiprocessing.process")
    if process:
        process.current_process().authkey = os.urandom(32)
    threading = sys.modules.get("threading")
    if hasattr(threading, "main_thread") and hasattr(threading.main_thread(), "_set_native_id"):
        threading.main_thread()._set_native_id()  # a fork alone leaves it the parent's
    forget = getattr(sys.modules.get("warnings"), "_filters_mutated", None)
    if forget:
        forget()  # who was warned was the template


def look_for_files_again():
    """Some may have come since Python looked. In packages it looks at their directory's time."""
    for path in sys.path:
        finder = sys.path_importer_cache.get(path)
        if finder is None:
            sys.path_importer_cache.pop(path, None)  # there may be such a directory now
        elif hasattr(finder, "invalidate_caches"):
            finder.invalidate_caches()


def replace_arguments(arguments):
    """Of the program: what comes behind its name."""
    originals = getattr(sys, "orig_argv", None)
    if originals is not None:
        originals[len(originals) - len(sys.argv) + 1 :] = arguments
    sys.argv[1:] = arguments


class Mark:
    """Where /proc/self/environ shows whose process this is: a variable with room, which stood there at the template's start. All
    that a rank forks is known by its name, and who looks from outside finds the rank's own variables behind it."""

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
        """These `NAME=value`, its name first; what there is no room for is not shown."""
        shown = b""
        for entry in sorted(map(os.fsencode, entries), key=lambda entry: not entry.startswith(b"TASKD_PROC=")):
            if len(shown) + len(entry) <= self.room:
                shown += entry + b"\0"
            elif not shown:
                raise RuntimeError("there is no room for %s" % os.fsdecode(entry))
        self.move(self.address, shown[: self.room].ljust(self.room, b"\0"), self.room)


OPENBLAS = "OPENBLAS_NUM_THREADS"
# How libraries with threads of their own are told how many, by what the names of their files begin with, and a variable that
# says it to them alone.
LIBRARIES = (
    ("libgomp", ("omp_set_num_threads",), ""),
    ("libomp", ("omp_set_num_threads",), ""),
    ("libiomp5", ("omp_set_num_threads",), ""),
    ("libmkl_rt", ("MKL_Set_Num_Threads",), "MKL_NUM_THREADS"),
    ("libopenblas", ("openblas_set_num_threads", "openblas_set_num_threads64_"), OPENBLAS),
    ("libscipy_openblas", ("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads"), OPENBLAS),
)


class Threads:
    """The numbers of threads of libraries that have read their variables long ago, set by their own calls."""

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
        """The job's number, as its variable says it."""
        for call, variable in self.calls:
            number = number_in(os.environ.get(variable)) or number_in(count)
            if variable == OPENBLAS:
                number = openblas_number()
            if number:
                call(number)


def openblas_number():
    """What OpenBLAS makes of its variables when it reads them itself: no more threads than there are processors for them, and as
    many where nobody says how many, whatever others compute with then."""
    processors = len(os.sched_getaffinity(0))
    asked = number_in(os.environ.get(OPENBLAS)) or number_in(os.environ.get("OMP_NUM_THREADS"))
    return min(asked or processors, processors)


def number_in(text):
    """Of a list for regions inside of each other the first one counts."""
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
