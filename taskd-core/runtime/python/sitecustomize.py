"""Connects a rank that runs Python with taskd, without a change to the program.

The launcher puts this file's directory on the rank's PYTHONPATH, and Python's `site` module imports this file before
the program starts. In the rank's process, and in no other process, the file

  * takes the rank's lifeline, so that the guard learns of the rank's death before the kernel has freed its memory,
  * has a heartbeat written into the lifeline page every TASKD_HEARTBEAT_INTERVAL_MS (default 500): by a thread of
    libtaskd (TASKD_LIB), which needs no interpreter lock, or by a Python thread if there is no libtaskd,
  * counts completed training steps in the page, as the framework's file (`_taskd_framework.py`) reports them,
  * has the package `taskd` connect to the supervisor (TASKD_CONTROL), for recovery inside the process,
  * has the package `taskd`, if it and libtaskd exist, record the operations of the program,
  * takes over the launcher's listener at the rendezvous port (TASKD_PORT_SOCKET) if the process listens there,
  * writes an uncaught exception to TASKD_ERROR_FILE, unless the framework has written the file, and marks an exception
    that ends the rank: from then on the rank counts as failed, even while `atexit` functions and threads still run.

The page (TASKD_LIFELINE) names the rank by pid and start time. Other Python processes with this environment find that
the page does not name them, and do nothing, except the program of a wrapper that does not exec it (`_taskd_claim.py`).
Each file beside this one adds a part; this file works without them and has the minimum that a rank needs.

A standby (TASKD_STANDBY_FD) waits here until it is a rank (`_taskd_standby.py`). A process that execs itself keeps its
pid and start time: its heartbeat and steps continue. Its lifeline does not, because exec released it.

Progress means that the training loop is alive. The page counts the steps of optimizers; if several take part in a
training step, the count follows the optimizer that steps most. The count continues the one that an optimizer restores
from its checkpoint, if any, and otherwise starts at 0 with the process. Only the program knows its own step number.

This file imports nothing heavy (ctypes only in the rank, json and traceback only after an exception), never makes the
program fail (a part that fails is left out), prints at most one line, and does nothing with TASKD_HOOKS=0. It runs the
sitecustomize that it shadows afterwards. It must parse on Python 3.6 and later.
"""

import os
import sys
import time

PAGE_BYTES = 4096
MAGIC = b"TASKDPG1"
VERSION = 1

# Offsets in the page.
AT_VERSION, AT_PID, AT_STATE, AT_START_TIME = 8, 16, 20, 24
AT_STARTED_PID, AT_STARTED_TIME = 80, 88  # of the process that the guard started, if the page names another one
AT_GENERATION, AT_STEP, AT_STEP_TIME, AT_BEAT_TIME, AT_WORD_OFFSET, AT_IN_LOOP, AT_LOCK = 40, 48, 56, 64, 72, 76, 128

# The states of the lifeline that a rank writes.
NEVER_TAKEN, HELD, UNAVAILABLE = 0, 1, 3

# The values of glibc and musl.
PTHREAD_PROCESS_SHARED, PTHREAD_MUTEX_ROBUST = 1, 1
PTHREAD_BYTES_MAX = 64  # pthread_mutex_t and pthread_mutexattr_t are shorter everywhere
FUTEX_TID_MASK = 0x3FFFFFFF
GET_ROBUST_LIST = {"x86_64": 274, "aarch64": 100}  # the number of the system call

BEAT_MS_DEFAULT, BEAT_MS_MIN, BEAT_MS_MAX = 500, 10, 60000
OF_RANK = "TASKD_RANK_PID"  # pid of the rank that a process is or descends from
COUNT = "_taskd_steps"  # attribute of an optimizer with its number of steps; not in its state or its copies
PARTS_MAX = 64  # parameter groups with a count each; one more starts all counts again


def start():
    """Runs all parts, in the necessary order. Called once, by the import of this file as `sitecustomize`."""
    if os.environ.get("TASKD_HOOKS") != "0":
        seated = wait_for_seat()
        try:
            if seated and seated.ahead:
                run_ahead(seated)
            else:
                fd = open_own_page()
                if fd is not None:
                    join_page(fd, seated)
                elif os.environ.get("TASKD_LIFELINE") and not is_of_rank():
                    import _taskd_claim

                    _taskd_claim.wait(sys.modules[__name__])
        except Exception as error:
            say("no lifeline, heartbeat and progress: %s" % error)
        host_port(seated)
    run_shadowed()


def wait_for_seat():
    """Waits, in a standby, until it is a rank. Returns its `Seated` object; None in any other process."""
    if "TASKD_STANDBY_FD" in os.environ and sys.version_info >= (3, 8):
        import _taskd_standby

        return _taskd_standby.wait()


def say(text):
    try:
        sys.stderr.write("taskd: %s\n" % text)
    except Exception:
        pass


def open_own_page():
    """Returns a descriptor of the page if it names this process, else None."""
    path = os.environ.get("TASKD_LIFELINE")
    if not path:
        return None
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None  # for example a helper that outlived the guard
    if names_us(os.pread(fd, PAGE_BYTES, 0)):
        return fd
    os.close(fd)
    return None


def number(page, at, size):
    return int.from_bytes(page[at : at + size], sys.byteorder)


def is_page(page):
    return len(page) == PAGE_BYTES and page.startswith(MAGIC) and number(page, AT_VERSION, 4) == VERSION


def names_us(page):
    if not is_page(page):
        return False
    if number(page, AT_PID, 4) == os.getpid():
        return number(page, AT_START_TIME, 8) == stat_of("self")[22]
    # This process became Python only now, and another one has claimed its page. The page belongs to this process.
    return number(page, AT_STARTED_PID, 4) == os.getpid() and number(page, AT_STARTED_TIME, 8) == stat_of("self")[22]


def stat_of(pid):
    """Returns four fields of /proc/<pid>/stat by their numbers: pid (1), state (3), parent (4), start time (22)."""
    with open("/proc/%s/stat" % pid, "rb") as stat:
        first, rest = stat.read().rsplit(b")", 1)  # the name in parentheses may contain any character
    fields = rest.split()
    return {1: int(first.split(None, 1)[0]), 3: fields[0], 4: int(fields[4 - 3]), 22: int(fields[22 - 3])}


def is_of_rank():
    """Returns true if this process descends from a rank that runs Python. A rank that execs itself does not."""
    return os.environ.get(OF_RANK, str(os.getpid())) != str(os.getpid())


def join_page(fd, seated=None):
    """Starts all parts in this process, which is the rank."""
    os.environ[OF_RANK] = str(os.getpid())  # the processes that it starts are not the rank
    name_us(fd)
    report_another_package()
    framework = load_framework()
    steps, imports = Steps(os.getpid(), *hold_page(fd)), after_imports(seated)
    follow_framework(framework, steps, imports.wait)
    record_uncaught(steps)
    follow_supervisor(imports.wait, steps)
    record_what_is_done(imports.wait, steps.then)


def name_us(fd):
    """Writes this process into the page, if another one claimed the page before this process became Python."""
    page = os.pread(fd, PAGE_BYTES, 0)
    if number(page, AT_PID, 4) != os.getpid():
        clear(fd)
        os.pwrite(fd, page[AT_STARTED_TIME : AT_STARTED_TIME + 8], AT_START_TIME)
        os.pwrite(fd, page[AT_STARTED_PID : AT_STARTED_PID + 4], AT_PID)


def clear(fd):
    """Clears what another process has written to the page, and removes its error file."""
    os.pwrite(fd, bytes(AT_WORD_OFFSET - AT_STEP), AT_STEP)
    os.pwrite(fd, bytes(4), AT_IN_LOOP)
    try:
        os.unlink(os.environ.get("TASKD_ERROR_FILE") or "")
    except OSError:
        pass


def run_ahead(seated):
    """Prepares a standby that runs the program before it is a rank. `become_rank` adds what only a rank has."""
    import ctypes

    framework, ahead = load_framework(), seated.ahead
    words = [ctypes.c_uint64() for _ in range(3)] + [ctypes.c_uint32()]
    steps, imports = Steps(os.getpid(), *words), after_imports(seated)
    follow_framework(framework, steps, imports.wait)
    record_uncaught(steps)
    follow_supervisor(imports.wait, steps, ahead)

    def become_rank():
        try:
            fd = open_own_page()
            if fd is not None:
                os.environ[OF_RANK] = str(os.getpid())
                steps.move(*hold_page(fd))
        except Exception as error:
            say("no lifeline, heartbeat and progress: %s" % error)
        native = getattr(sys.modules.get("taskd._native"), "native", None)
        if native:
            native.load()
        record_what_is_done(imports.wait, steps.then)

    ahead.then.insert(0, become_rank)
    ahead.begin()


def hold_page(fd):
    """Maps the page until the process ends (an unmapped lock is never released), takes the lifeline and starts the
    heartbeat. Returns the arguments of `Steps`."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    read_write, shared = 3, 1
    address = libc.mmap(None, PAGE_BYTES, read_write, shared, fd, 0)
    error = ctypes.get_errno()
    os.close(fd)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(error, "the page cannot be mapped")

    def word(at):
        return ctypes.c_uint32.from_address(address + at)

    def long_word(at):
        return ctypes.c_uint64.from_address(address + at)

    pid = os.getpid()
    # The guard waits for the end of the process that it has started.
    is_started = word(AT_STARTED_PID).value in (0, pid)
    if is_started and word(AT_STATE).value == NEVER_TAKEN and on_main_thread(pid):
        try:
            take_lifeline(ctypes, libc, address, word, pid)
        except Exception as error:
            word(AT_STATE).value = UNAVAILABLE
            say("no lifeline: %s" % error)
    if not beats_beside_python(ctypes, address + AT_BEAT_TIME):
        start_heartbeat(long_word(AT_BEAT_TIME))
    counts = long_word(AT_STEP), long_word(AT_STEP_TIME), long_word(AT_GENERATION), word(AT_IN_LOOP)
    return counts + (word(AT_PID), word(AT_STARTED_PID))


def on_main_thread(pid):
    import _thread

    # Python before 3.8 has no get_native_id. There, only a program that embeds Python could be on another thread.
    return getattr(_thread, "get_native_id", lambda: pid)() == pid


def take_lifeline(ctypes, libc, address, word, pid):
    """Locks the robust mutex for good. The kernel marks its futex word when the main thread ends, in any way."""
    if not kernel_releases_locks(ctypes, libc):
        raise OSError("this system releases no lock of a process that dies")
    attributes = ctypes.create_string_buffer(PTHREAD_BYTES_MAX)
    mutex = ctypes.c_void_p(address + AT_LOCK)
    failed = (
        libc.pthread_mutexattr_init(attributes)
        or libc.pthread_mutexattr_setpshared(attributes, PTHREAD_PROCESS_SHARED)
        or libc.pthread_mutexattr_setrobust(attributes, PTHREAD_MUTEX_ROBUST)
        or libc.pthread_mutex_init(mutex, attributes)
        or libc.pthread_mutex_lock(mutex)
    )
    if failed:
        raise OSError(failed, "the lifeline cannot be locked")
    # The futex word is the one that holds this thread's id: the first in glibc, the second in musl.
    for offset in range(AT_LOCK, AT_LOCK + PTHREAD_BYTES_MAX, 4):
        if word(offset).value & FUTEX_TID_MASK == pid:
            word(AT_WORD_OFFSET).value = offset
            word(AT_STATE).value = HELD
            return
    raise OSError("no word of the lock names its holder")


def kernel_releases_locks(ctypes, libc):
    """Returns true if the kernel has the address of this thread's list of robust locks: not under qemu-user."""
    number = GET_ROBUST_LIST.get(os.uname()[4])
    if number is None:
        return True  # another architecture, with an unknown system call number
    head, length = ctypes.c_void_p(), ctypes.c_size_t()
    return libc.syscall(ctypes.c_long(number), 0, ctypes.byref(head), ctypes.byref(length)) == 0 and bool(head)


def now_ns():
    return int(time.monotonic() * 1e9)  # monotonic_ns needs Python 3.7


def beat_seconds():
    try:
        period_ms = int(os.environ.get("TASKD_HEARTBEAT_INTERVAL_MS", ""))
    except ValueError:
        period_ms = BEAT_MS_DEFAULT
    return min(max(period_ms, BEAT_MS_MIN), BEAT_MS_MAX) / 1000.0


def start_heartbeat(beat_time):
    """Starts a heartbeat thread without `threading`, if libtaskd cannot: the thread does not survive a fork, the
    interpreter does not wait for it, and `threading` does not list it.

    It needs the interpreter lock: native code that holds the lock for long stops the heartbeat. From Python 3.12 on, a
    program that forks gets a warning about each other thread, this one and libtaskd's included."""
    import _signal  # `signal` itself imports much more  # pyright: ignore[reportMissingImports]
    import _thread

    period, sleep = beat_seconds(), time.sleep
    # Signals are for the program's threads. Python before 3.8 has no valid_signals; 1 to 31 exist everywhere.
    signals = getattr(_signal, "valid_signals", lambda: range(1, 32))()

    def beat():
        _signal.pthread_sigmask(_signal.SIG_BLOCK, signals)
        while True:
            beat_time.value = now_ns()
            sleep(period)

    beat_time.value = now_ns()
    _thread.start_new_thread(beat, ())


def beats_beside_python(ctypes, address):
    """Starts the heartbeat of libtaskd, on a thread that needs no interpreter lock: a C call may hold the lock for
    minutes (a large JSON, a checkpoint), and an interpreter that ends runs no other Python thread. Returns true on
    success; `taskd._native` reports a library that cannot be loaded.

    The heartbeat shows that the process runs, and nothing about the program's progress: the steps show that."""
    library = os.environ.get("TASKD_LIB")
    try:
        beat = ctypes.PyDLL(library).taskd_beat if library else None
        return bool(beat) and beat(ctypes.c_void_p(address), ctypes.c_uint32(int(beat_seconds() * 1000))) == 1
    except Exception:
        return False


class Steps(object):
    """The count of completed training steps in the page."""

    def __init__(self, pid, *words):
        self.pid = pid
        self.move(*words)
        self.then = []  # functions that are called with the number of each completed step
        self.is_reported = False  # true if the program reports completed steps itself

    def move(self, step, step_time, generation, in_loop, named=None, started=None):
        """Moves the count to these words."""
        self.step, self.step_time, self.generation, self.in_loop = step, step_time, generation, in_loop
        self.named, self.started = named, started

    def is_rank(self):
        """Returns true if this process is the rank. A forked child has the same hooks and may train, and so may a
        process whose page another process has claimed."""
        return os.getpid() == self.pid and (self.named is None or self.named.value == self.pid)

    def ends_with_us(self):
        """Returns true if the rank ends with this process. A wrapper may continue after its program (`run.py || true`):
        then the rank ends with the wrapper."""
        return self.started is None or self.started.value in (0, self.pid)

    def completed_by(self, optimizer, remembered):
        """Counts a step that an optimizer has completed. `remembered(optimizer)` returns the number of steps in the
        optimizer's state, this one included, or 0 if the state has none."""
        if self.is_reported:
            return
        # The count is kept in the optimizer: a later optimizer may get the id of a deleted one.
        # Some optimizers step once for each parameter group: each group has its own count.
        counts = optimizer.__dict__.setdefault(COUNT, {})
        part, state = first_parameter(optimizer), id(getattr(optimizer, "state", None))
        known, known_state = counts.get(part, (0, None))
        if known_state != state:
            # The optimizer is new, or has loaded a checkpoint. A new one steps in addition to the others, or replaces
            # them: then its first step is not counted.
            known = max(known, remembered(optimizer) - 1, 0 if part in counts else self.step.value - 1)
        if len(counts) >= PARTS_MAX:
            counts.clear()
        counts[part] = known + 1, state
        self.step_time.value = now_ns()
        if known + 1 > self.step.value:
            self.step.value = known + 1
            for then in self.then:
                then(known + 1)

    def enters(self, generation):
        """Assigns the following steps to this generation: steps of an older generation are ignored."""
        self.generation.value = generation

    def stands_in_loop(self, is_so):
        """Records whether the program is in a `taskd.steps` loop."""
        self.in_loop.value = is_so

    def report(self, number):
        """Sets the number of completed steps to the program's. The steps of optimizers are not counted from then on."""
        self.is_reported = True
        self.step_time.value = now_ns()
        self.step.value = number
        for then in self.then:
            then(number)


def first_parameter(optimizer):
    """Returns the id of an optimizer's first parameter; None if the framework's optimizers have no such list."""
    try:
        return id(optimizer.param_groups[0]["params"][0])
    except Exception:
        return None


def report_another_package():
    """Reports, in one rank of each host, another package named `taskd`: this one comes first on the path."""
    own = os.path.join(here(), "taskd")
    if os.environ.get("TASKD_LOCAL_RANK", "0") != "0" or not os.path.isdir(own):
        return
    for place in sys.path:
        for name in ("taskd/__init__.py", "taskd.py"):  # a directory without such a file is not a package
            other = os.path.join(place or os.curdir, name)
            is_same = os.path.dirname(os.path.realpath(other)) == os.path.realpath(own)
            if os.path.isfile(other) and not is_same and not is_installed(os.path.dirname(other)):
                why = (
                    "%s is not what this program imports as taskd: in effect is %s, of the "
                    "launcher; rename one to use both"
                )
                return say(why % (os.path.abspath(other), own))


def is_installed(directory):
    """Returns true if a directory has an installed copy of this package. The launcher's copy, which has the launcher's
    version, replaces it."""
    return os.path.isfile(os.path.join(directory, "_framework.py")) and os.path.isfile(
        os.path.join(directory, "_session.py")
    )


def load_framework():
    """Returns the module of the framework's file beside this one; None if there is none."""
    if os.path.exists(os.path.join(here(), "_taskd_framework.py")):
        try:
            import _taskd_framework

            return _taskd_framework
        except Exception as error:
            say("no progress: %s" % error)


def follow_framework(framework, steps, after_import):
    """Has the framework's file report completed steps."""
    if framework:
        try:
            framework.start(steps, after_import)
        except Exception as error:
            say("no progress: %s" % error)


def host_port(seated):
    """Has the framework's file take over the launcher's listener at the rendezvous port (`_taskd_port.py`). Not only in
    the rank: a program may host its store in a process that it has started."""
    if os.environ.get("TASKD_PORT_SOCKET"):
        try:
            import _taskd_port

            hosts = getattr(load_framework(), "hosts", None)
            if hosts:
                hosts(after_imports(seated).wait, _taskd_port)
        except Exception as error:
            say("the listener of the port at which ranks meet is not taken: %s" % error)


imports = None  # the only `AfterImport` of the process: two would ask each other for a module endlessly


def after_imports(seated):
    global imports
    imports = imports or AfterImport(seated)
    return imports


class AfterImport(object):
    """A finder that finds no module: it has the other finders find it, and calls functions once its code has run."""

    def __init__(self, seated):
        self.waiting = {}  # functions to call, by the name of the module
        self.seated = seated

    def wait(self, name, then):
        """Calls `then(module)` when the program has imported the module `name`, immediately if it has already."""
        if name in sys.modules and self.seated:
            self.seated.everywhere(sys.modules[name], then)
        elif name in sys.modules:
            then(sys.modules[name])
        else:
            if self not in sys.meta_path:
                sys.meta_path.insert(0, self)
            self.waiting.setdefault(name, []).append(then)

    def find_spec(self, name, path=None, target=None):
        if name not in self.waiting:
            return None
        for finder in sys.meta_path:
            find_spec = getattr(finder, "find_spec", None)
            spec = find_spec(name, path, target) if find_spec and finder is not self else None
            if spec is not None:
                try:
                    self.hook(spec.loader, name)
                except Exception:
                    pass  # a loader that takes no attributes: no function is called
                return spec
        return None

    def hook(self, loader, name):
        run = loader.exec_module

        def exec_module(module):
            del loader.exec_module  # restores the original
            run(module)
            self.notify(name, module)

        loader.exec_module = exec_module

    def notify(self, name, module):
        for then in self.waiting.pop(name, ()):
            try:
                then(module)
            except Exception:
                pass
        if not self.waiting and self in sys.meta_path:
            sys.meta_path.remove(self)


def record_what_is_done(after_import, completed):
    """Has the package `taskd` beside this file, if it exists, install its hooks."""
    if sys.version_info >= (3, 8) and os.environ.get("TASKD_LIB") and os.path.isdir(os.path.join(here(), "taskd")):
        try:
            from taskd import _install

            _install.install(after_import, completed)
        except Exception as error:
            say("nothing is recorded: %s" % error)


def follow_supervisor(after_import, steps, ahead=None):
    """Has the package `taskd` connect to the supervisor (TASKD_CONTROL); in a standby, once the process is a rank."""
    is_there = ahead or os.environ.get("TASKD_CONTROL")
    if sys.version_info >= (3, 8) and is_there and os.path.isdir(os.path.join(here(), "taskd")):
        try:
            from taskd import _recovery

            _recovery.install(after_import, steps, ahead)
        except Exception as error:
            say("no recovery inside of the process: %s" % error)


def here():
    return os.path.dirname(os.path.abspath(__file__))


def record_uncaught(steps):
    """Has an exception that ends the rank recorded, if `_taskd_error.py` lies beside this file."""
    try:
        import _taskd_error
    except ImportError:
        return
    _taskd_error.install(steps, say)


def run_shadowed():
    """Imports the sitecustomize that Python would have found without this one. Its exceptions are not caught."""
    our = here()
    ours = [(at, entry) for at, entry in enumerate(sys.path) if os.path.abspath(entry) == our]
    this = sys.modules.pop("sitecustomize")
    sys.modules["_taskd_rank"] = this
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != our]
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", this)
        for at, entry in ours:
            sys.path.insert(at, entry)


if __name__ == "sitecustomize":
    start()
