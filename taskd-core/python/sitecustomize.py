"""What taskd adds to a rank that runs Python, without a change to the program.

The launcher puts this file's directory on the rank's PYTHONPATH, and Python's `site` module imports it before the
program starts. In the one process that is the rank, and in no other, it

  * takes the rank's lifeline, so that the guard knows of its death before the kernel has torn its memory down,
  * has a heartbeat written into the rank's page every TASKD_BEAT_MS (default 500), by a thread of libtaskd's that needs no
    interpreter's lock, or by one of Python's where there is no libtaskd (TASKD_LIB),
  * notes in the page that a training step was completed, where the framework's file beside it (`_taskd_framework.py`)
    tells of it,
  * has the package `taskd` keep in touch with the supervisor (TASKD_CONTROL), for recovery inside of the process,
  * has the package `taskd` record what the program does, where it lies beside this file and there is a libtaskd (TASKD_LIB),
  * takes the listener that the launcher holds at the port where ranks meet (TASKD_PORT_SOCKET), where it is to listen there,
  * writes an uncaught exception to TASKD_ERROR_FILE, unless the framework has written there itself, and marks the record of one
    by which the rank ends: it is taken for failed from then on, whatever it still does (`atexit`, threads that are joined).

The page (TASKD_LIFELINE) names the rank by pid and start time. Whatever else runs Python with this environment finds itself
not named and leaves everything alone. There is one exception: the program of a wrapper that does not exec it (`_taskd_claim.py`).
It works without the files beside it as well, of which each adds a part: so all that a rank needs at the least is in here.

A process that was started ahead of need (TASKD_SEAT) waits here until it is a rank (`_taskd_standby.py`). A process that execs
itself keeps its name: its heartbeat and steps go on, its lifeline does not, because exec released it.

Progress means that the training loop is alive. The step that is noted counts the steps of optimizers; where several take
part in a training step it follows the one that steps most. It goes on from the count that an optimizer remembers from its
checkpoint, if it does, and else starts with the process. The program's own step number only the program knows.

It imports nothing heavy (ctypes only in the rank, json and traceback only after an exception), never fails the program
(every failure means to go without), prints at most one line, and does nothing with TASKD_HOOKS=0. A sitecustomize that
it shadows is run after it. It must parse on Python 3.6 and later.
"""

import os
import sys
import time

PAGE_BYTES = 4096
MAGIC = b"TASKDPG1"
VERSION = 1

# Offsets in the page.
AT_VERSION, AT_PID, AT_STATE, AT_START_TIME = 8, 16, 20, 24
AT_STARTED_PID, AT_STARTED_TIME = 80, 88  # of the process that was started, once the page names another one
AT_GENERATION, AT_STEP, AT_STEP_TIME, AT_BEAT_TIME, AT_WORD_OFFSET, AT_IN_LOOP, AT_LOCK = 40, 48, 56, 64, 72, 76, 128

# States of the lifeline, as far as a rank writes them.
NEVER_TAKEN, HELD, UNAVAILABLE = 0, 1, 3

# glibc and musl agree on these.
PTHREAD_PROCESS_SHARED, PTHREAD_MUTEX_ROBUST = 1, 1
PTHREAD_BYTES_MAX = 64  # pthread_mutex_t and pthread_mutexattr_t are shorter everywhere
FUTEX_TID_MASK = 0x3FFFFFFF
GET_ROBUST_LIST = {"x86_64": 274, "aarch64": 100}  # the number of the system call

BEAT_MS_DEFAULT, BEAT_MS_MIN, BEAT_MS_MAX = 500, 10, 60000
OF_RANK = "TASKD_RANK_PID"  # the rank that a process descends from, itself included
COUNT = "_taskd_steps"  # what an optimizer is given: its steps, which its state and its copies leave out
PARTS_MAX = 64  # groups of parameters with a count of their own; then all are counted anew


def start():
    """Everything, in the order in which it matters. Called once, by the import of this file as `sitecustomize`."""
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
    """A process that was started ahead waits here until it is a rank; what it then has to do otherwise. None in all others."""
    if "TASKD_SEAT" in os.environ and sys.version_info >= (3, 8):
        import _taskd_standby

        return _taskd_standby.wait()


def say(text):
    try:
        sys.stderr.write("taskd: %s\n" % text)
    except Exception:
        pass


def open_own_page():
    """A descriptor of the page if it names this very process; None for everybody else."""
    path = os.environ.get("TASKD_LIFELINE")
    if not path:
        return None
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None  # a helper that outlived the guard, for instance
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
    # Another process has claimed the page of this one, which has become Python only now: it is this one's.
    return number(page, AT_STARTED_PID, 4) == os.getpid() and number(page, AT_STARTED_TIME, 8) == stat_of("self")[22]


def stat_of(pid):
    """The fields of a process's stat, by their numbers from 1; the second is left out."""
    with open("/proc/%s/stat" % pid, "rb") as stat:
        first, rest = stat.read().rsplit(b")", 1)  # the name in parentheses may hold anything
    fields = rest.split()
    return {1: int(first.split(None, 1)[0]), 3: fields[0], 4: int(fields[4 - 3]), 22: int(fields[22 - 3])}


def is_of_rank():
    """Whether a process that this one descends from is a rank that runs Python. A program that execs itself is still itself."""
    return os.environ.get(OF_RANK, str(os.getpid())) != str(os.getpid())


def join_page(fd, seated=None):
    """This process is the rank."""
    os.environ[OF_RANK] = str(os.getpid())  # what it starts is not
    name_us(fd)
    tell_of_another_package()
    framework = load_framework()
    steps, imports = Steps(os.getpid(), *hold_page(fd)), after_imports(seated)
    follow_framework(framework, steps, imports.wait)
    record_uncaught(steps)
    follow_supervisor(imports.wait, steps)
    record_what_is_done(imports.wait, steps.then)


def name_us(fd):
    """Has the page name this process, where another one has claimed it before this one became Python."""
    page = os.pread(fd, PAGE_BYTES, 0)
    if number(page, AT_PID, 4) != os.getpid():
        clear(fd)
        os.pwrite(fd, page[AT_STARTED_TIME : AT_STARTED_TIME + 8], AT_START_TIME)
        os.pwrite(fd, page[AT_STARTED_PID : AT_STARTED_PID + 4], AT_PID)


def clear(fd):
    """What another process has left in the page and in the error file is not this one's."""
    os.pwrite(fd, bytes(AT_WORD_OFFSET - AT_STEP), AT_STEP)
    os.pwrite(fd, bytes(4), AT_IN_LOOP)
    try:
        os.unlink(os.environ.get("TASKD_ERROR_FILE") or "")
    except OSError:
        pass


def run_ahead(seated):
    """This process runs the program before it is a rank: what a rank has besides comes when it is one."""
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
    """Maps the page for as long as the process lives (an unmapped lock is never released), takes the lifeline, and beats. What
    the page has for `Steps`."""
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
    is_started = word(AT_STARTED_PID).value in (0, pid)  # the guard waits for the end of the process that it has started
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

    # Before 3.8 Python cannot tell, and then only a program that embeds Python could be elsewhere.
    return getattr(_thread, "get_native_id", lambda: pid)() == pid


def take_lifeline(ctypes, libc, address, word, pid):
    """Locks the robust mutex for ever. The kernel marks its word when the main thread ends, in whatever way."""
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
    # The futex word is the one that holds our thread id: the first in glibc, the second in musl.
    for offset in range(AT_LOCK, AT_LOCK + PTHREAD_BYTES_MAX, 4):
        if word(offset).value & FUTEX_TID_MASK == pid:
            word(AT_WORD_OFFSET).value = offset
            word(AT_STATE).value = HELD
            return
    raise OSError("no word of the lock names its holder")


def kernel_releases_locks(ctypes, libc):
    """Whether the kernel knows where libc lists this thread's robust locks: not under qemu-user, for instance."""
    number = GET_ROBUST_LIST.get(os.uname()[4])
    if number is None:
        return True  # another processor, whose number we do not know
    head, length = ctypes.c_void_p(), ctypes.c_size_t()
    return libc.syscall(ctypes.c_long(number), 0, ctypes.byref(head), ctypes.byref(length)) == 0 and bool(head)


def now_ns():
    return int(time.monotonic() * 1e9)  # monotonic_ns came with 3.7


def beat_seconds():
    try:
        period_ms = int(os.environ.get("TASKD_BEAT_MS", ""))
    except ValueError:
        period_ms = BEAT_MS_DEFAULT
    return min(max(period_ms, BEAT_MS_MIN), BEAT_MS_MAX) / 1000.0


def start_heartbeat(beat_time):
    """A bare thread, where libtaskd is not there to beat: it does not survive fork, the interpreter does not wait for it, and
    `threading` does not list it.

    It needs the interpreter's lock to beat: code that holds that for long, without Python running, silences the rank.
    From Python 3.12 on a program that forks is warned of every thread that it has: this one, and libtaskd's as well.
    """
    import _signal  # `signal` itself imports much more
    import _thread

    period, sleep = beat_seconds(), time.sleep
    # Signals are for the program's threads. Before 3.8 Python does not name the valid ones; these are everywhere.
    signals = getattr(_signal, "valid_signals", lambda: range(1, 32))()

    def beat():
        _signal.pthread_sigmask(_signal.SIG_BLOCK, signals)
        while True:
            beat_time.value = now_ns()
            sleep(period)

    beat_time.value = now_ns()
    _thread.start_new_thread(beat, ())


def beats_beside_python(ctypes, address):
    """Has libtaskd beat, from a thread that needs no interpreter's lock: one call of C's may keep that for minutes (a large
    JSON, a checkpoint), and an interpreter that ends lets no other thread of Python's run any more.

    It says that the process runs, and nothing of what the program does: that is for its steps to say. Whoever cannot load
    the library says so elsewhere (`taskd._native`)."""
    library = os.environ.get("TASKD_LIB")
    try:
        beat = ctypes.PyDLL(library).taskd_beat if library else None
        return bool(beat) and beat(ctypes.c_void_p(address), ctypes.c_uint32(int(beat_seconds() * 1000))) == 1
    except Exception:
        return False


class Steps(object):
    """The completed training steps, as the page counts them."""

    def __init__(self, pid, *words):
        self.pid = pid
        self.move(*words)
        self.then = []  # what is called with the number of every completed step
        self.is_said = False  # the program itself says which step is completed

    def move(self, step, step_time, generation, in_loop, named=None, started=None):
        """Counts here from now on."""
        self.step, self.step_time, self.generation, self.in_loop = step, step_time, generation, in_loop
        self.named, self.started = named, started

    def is_rank(self):
        """Whether this is the rank: a forked child has the same hooks, and may train. So may one whose page another has now."""
        return os.getpid() == self.pid and (self.named is None or self.named.value == self.pid)

    def ends_with_us(self):
        """Whether the end of this process is the rank's. Behind a wrapper it is the wrapper's, which may go on (`run.py || true`)."""
        return self.started is None or self.started.value in (0, self.pid)

    def completed_by(self, optimizer, remembered):
        """An optimizer has completed a step. `remembered(optimizer)` is how many it remembers, this one included; 0 where
        it does not."""
        if self.is_said:
            return
        # The count is kept with the optimizer: another may later have the place, and so the id, of one that is gone. Some step once
        # for each of their parameter groups: each has its own count.
        counts = optimizer.__dict__.setdefault(COUNT, {})
        part, state = first_parameter(optimizer), id(getattr(optimizer, "state", None))
        known, known_state = counts.get(part, (0, None))
        if known_state != state:
            # It is new, or has loaded a checkpoint. A newcomer steps beside the others, or in their place and then loses its first step.
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
        """Steps from now on are those of another world: of an older one nobody takes them."""
        self.generation.value = generation

    def stands_in_loop(self, is_so):
        """Whether the program is in a step loop of taskd's."""
        self.in_loop.value = is_so

    def says(self, number):
        """So many steps are completed, says the program; those of optimizers are not counted any more."""
        self.is_said = True
        self.step_time.value = now_ns()
        self.step.value = number
        for then in self.then:
            then(number)


def first_parameter(optimizer):
    """The id of the first parameter that a step is of; None where a framework's optimizers have no such list."""
    try:
        return id(optimizer.param_groups[0]["params"][0])
    except Exception:
        return None


def tell_of_another_package():
    """One rank of a host says so where a package of our name is installed as well: this one comes first on the path."""
    own = os.path.join(here(), "taskd")
    if os.environ.get("TASKD_LOCAL_RANK", "0") != "0" or not os.path.isdir(own):
        return
    for place in sys.path:
        for name in ("taskd/__init__.py", "taskd.py"):  # a directory without such a file is no package
            other = os.path.join(place or os.curdir, name)
            if os.path.isfile(other) and os.path.dirname(os.path.realpath(other)) != os.path.realpath(own):
                told = "%s is not what this program imports as taskd: in effect is %s, of the launcher; rename one to use both"
                return say(told % (os.path.abspath(other), own))


def load_framework():
    """The framework's file beside this one, if there is one."""
    if os.path.exists(os.path.join(here(), "_taskd_framework.py")):
        try:
            import _taskd_framework

            return _taskd_framework
        except Exception as error:
            say("no progress: %s" % error)


def follow_framework(framework, steps, after_import):
    """Has the framework's file tell of completed steps."""
    if framework:
        try:
            framework.start(steps, after_import)
        except Exception as error:
            say("no progress: %s" % error)


def host_port(seated):
    """Has the framework's file take the launcher's listener where its processes meet (`_taskd_port.py`). Not only in the rank: a program
    may host its store in a process that it has started."""
    if os.environ.get("TASKD_PORT_SOCKET"):
        try:
            import _taskd_port

            hosts = getattr(load_framework(), "hosts", None)
            if hosts:
                hosts(after_imports(seated).wait, _taskd_port)
        except Exception as error:
            say("the listener of the port at which ranks meet is not taken: %s" % error)


imports = None  # the process's, when there is one: two would ask each other for a module without end


def after_imports(seated):
    global imports
    imports = imports or AfterImport(seated)
    return imports


class AfterImport(object):
    """A finder that finds nothing itself: it lets the others find some modules and waits for their code to have run."""

    def __init__(self, seated):
        self.waiting = {}  # what is to be called, by the name of a module
        self.seated = seated

    def wait(self, name, then):
        """Calls `then(module)` when the program has imported `name`, at once if it has already."""
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
                    pass  # a loader that takes no attributes: nobody is told
                return spec
        return None

    def hook(self, loader, name):
        run = loader.exec_module

        def exec_module(module):
            del loader.exec_module  # as it was
            run(module)
            self.tell(name, module)

        loader.exec_module = exec_module

    def tell(self, name, module):
        for then in self.waiting.pop(name, ()):
            try:
                then(module)
            except Exception:
                pass
        if not self.waiting and self in sys.meta_path:
            sys.meta_path.remove(self)


def record_what_is_done(after_import, completed):
    """Has the package beside this file put its hooks in place, if there is one."""
    if sys.version_info >= (3, 8) and os.environ.get("TASKD_LIB") and os.path.isdir(os.path.join(here(), "taskd")):
        try:
            from taskd import _install

            _install.install(after_import, completed)
        except Exception as error:
            say("nothing is recorded: %s" % error)


def follow_supervisor(after_import, steps, ahead=None):
    """Has the package beside this file keep in touch with the supervisor, where there is one (TASKD_CONTROL), or will be one
    when this process is a rank."""
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
    """Has an exception that ends the rank recorded, where what does so lies beside this file."""
    try:
        import _taskd_error
    except ImportError:
        return
    _taskd_error.install(steps, say)


def run_shadowed():
    """Imports the sitecustomize that would have been found without this one. Its errors are its own."""
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
