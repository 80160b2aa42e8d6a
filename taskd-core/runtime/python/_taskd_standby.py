"""A standby: a process that waits for its rank.

The guard starts it before a rank needs it, with the command line of a rank and a socket, its *seat* (TASKD_STANDBY_FD).
Python's `site` starts this module before the program. The process imports what the program will import, and waits. When
it is *seated*, it receives a rank's variables and arguments; then Python continues as usual and runs the program
itself, unmodified and as `__main__`.

  * A *probe* answers, which shows that this interpreter runs this module, and ends.
  * A *template* has one thread. It forks children that wait in its place, as often as the guard requests.
  * Any other standby waits itself.

No standby ever runs its program without a seat: any failure ends it, and the guard starts the rank in the usual way.
Standbys end with the guard. Another process with this environment (a helper of a wrapper script) finds that the first
packet has another pid, and leaves the socket alone.

The packets that the guard and a standby exchange are texts separated by NUL: a kind, and then `name=value` fields. A
waiting standby receives `run`, with its rank, or before that `ahead`: then it runs the program up to the point that
needs a rank (`_taskd_standby_prepare.py`), sends `parked`, and waits there.

The framework's part is `_taskd_standby_framework.py` in the same directory; all functions there are optional. This
module imports as little as possible: the program would find it loaded. For Python 3.8 and later.
"""

import _socket
import os
import sys

from _taskd_standby_reset import (
    Mark,
    Noted,
    Seated,
    Threads,
    as_new,
    generators,
    look_for_files_again,
    replace_arguments,
)

VERSION = "1"
PACKET_BYTES_MAX = 128 << 10
FORKS_MAX = 64  # of one request: its packet carries three descriptors for each fork
HELLO_SECONDS = 30.0  # for the first packet, normally sent before this process starts
PARENT_SECONDS = 4.0  # for the end of a child's parent
THREADS_SECONDS = 4.0  # for the end of the threads of the warm-up step
FAILED = 70  # exit code of a standby that cannot do its work
PR_SET_PDEATHSIG, SIGKILL = 1, 9
THREADS = "OMP_NUM_THREADS"  # number of threads that a rank computes with
HARMLESS = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")  # devices that processes may share


def wait():
    """Waits, in a standby, until it is seated. Returns its `Seated` object, with the method `everywhere` for hooks. In
    any other process, returns None at once."""
    number = os.environ.pop("TASKD_STANDBY_FD", None)
    seat = number and Seat.of_this_process(number)
    if not seat:
        return None
    try:
        return seat.serve()
    except BaseException as error:
        seat.refuse("%s: %s" % (type(error).__name__, error))
        os._exit(FAILED)


class Seat:
    """This process's end of its seat, the socket."""

    def __init__(self, socket, hello):
        self.socket = socket
        self.hello = hello
        self.guard = int(hello.one("guard"))
        self.framework = None
        self.known = ()  # descriptors that a rank has as well, and the seat
        self.seeds = {}  # states of the generators before the program's own modules were imported
        self.noted = self.mark = self.threads = self.seated = None
        self.missing = None  # the part of the warm-up step that failed

    @classmethod
    def of_this_process(cls, number):
        try:
            socket = _socket.socket(fileno=int(number))
            socket.settimeout(HELLO_SECONDS)
            hello = Packet(socket.recv(PACKET_BYTES_MAX, _socket.MSG_PEEK))
            if hello.kind != "hello" or hello.one("pid") != str(os.getpid()):
                socket.detach()
                return None
            socket.recv(PACKET_BYTES_MAX)
            socket.settimeout(None)
            os.set_inheritable(socket.fileno(), False)
            return cls(socket, hello)
        except Exception:
            return None  # the descriptor is not a seat: it belongs to another process

    def serve(self):
        """Does what the first packet requests; returns when this process is seated."""
        if self.hello.one("version") != VERSION:
            raise RuntimeError("the guard speaks version %s of this, and not %s" % (self.hello.one("version"), VERSION))
        self.known = descriptors()
        be = self.hello.one("be")
        if be == "probe":
            self.answer_probe()
        self.prepare(be)
        if be == "standby":
            self.noted.seed()
        self.say("ready", missing=self.missing or "")
        return self.wait_for_rank() if be == "standby" else self.fork_on_demand()

    def answer_probe(self):
        threads = ""
        if not os.environ.get(THREADS):
            self.import_all()
            threads = self.ask("threads")
        self.compile_helper()
        self.say("here", python="%d.%d.%d" % sys.version_info[:3], threads=threads or "")
        self.receive(0)  # the guard inspects this process and then closes the socket
        os._exit(0)

    def compile_helper(self):
        """Compiles these files once: otherwise that is half of the time from a seat to the start of the program."""
        try:
            import compileall

            compileall.compile_dir(os.path.dirname(os.path.abspath(__file__)), quiet=2)
        except Exception:
            pass  # the directory is not writable

    def prepare(self, be):
        """Does everything that would take time in the program's own start."""
        self.import_all()
        self.noted = Noted(self.seeds, self.framework)
        if be == "standby":
            self.ask("hold_device", int(self.hello.one("slot") or 0))
        self.missing = self.ask("warm")
        self.mark, self.threads = Mark(), Threads(self.framework if be == "template" else None)
        self.seated = Seated()

    def import_all(self):
        """Imports the modules as the program would, with its own directory first on the path."""
        script = self.hello.one("script")
        path = None if getattr(sys.flags, "safe_path", False) else directory_of(script)
        if path is not None:
            sys.path.insert(0, path)
        try:
            for name in self.hello.all("framework"):
                imported(name)
            if os.path.exists(os.path.join(os.path.dirname(os.path.abspath(__file__)), "_taskd_standby_framework.py")):
                import _taskd_standby_framework

                self.framework = _taskd_standby_framework
            self.seeds = generators(self.framework)
            for name in self.hello.all("import"):
                imported(name)
        finally:
            if path in sys.path:
                sys.path.remove(path)

    def ask(self, what, *arguments):
        function = getattr(self.framework, what, None)
        return function(*arguments) if function else None

    def fork_on_demand(self):
        """Forks as often as the guard requests. Returns only in the children, when they are seated."""
        import gc

        gc.collect()
        gc.freeze()  # the children share these pages until a process writes to them
        while True:
            packet, passed = self.receive(FORKS_MAX * 3)
            count = int(packet.one("count") or 0)
            if packet.kind != "fork" or not 0 < count <= FORKS_MAX or len(passed) != 3 * count:
                raise RuntimeError("a request that this is not: %s with %d descriptors" % (packet.kind, len(passed)))
            reason = self.why_not_to_fork(passed)
            if reason:
                self.refuse(reason)
                os._exit(FAILED)
            sys.stdout.flush()
            sys.stderr.flush()
            between = os.fork()  # the guard adopts its children when it has ended
            if between == 0:
                for at in range(count):
                    if os.fork() == 0:
                        return self.wait_as_child(passed, passed[3 * at : 3 * at + 3])
                os._exit(0)
            status = os.waitpid(between, 0)[1]
            for number in passed:
                os.close(number)
            if status:
                raise RuntimeError("cannot fork %d processes (status %d)" % (count, status))
            self.say("forked")

    def why_not_to_fork(self, passed):
        """Returns why a child would differ from a new process; None if it would not."""
        names = threads_when_settled()
        if len(names) != 1:
            return "it has %d threads (%s), and a forked child would have one of them" % (len(names), ", ".join(names))
        for number, target in sorted(descriptors().items()):
            if number in passed or number in self.known or number == self.socket.fileno():
                continue
            if not os.path.isfile(target) and target not in HARMLESS:
                return "an imported module has opened %s, which children would share" % target
        return self.ask("why_not_to_fork")

    def wait_as_child(self, passed, own):
        """Turns a child of a template into a child of the guard, and waits for a rank."""
        try:
            self.socket.close()
            seat, stdout, stderr = own
            self.socket = _socket.socket(fileno=seat)  # first, so that any failure can be reported
            self.socket.settimeout(None)  # imported modules may have changed the default
            os.setsid()
            await_parent(self.guard)
            end_with_parent(self.guard)
            os.dup2(stdout, 1)
            os.dup2(stderr, 2)
            for number in passed:
                if number != seat:
                    os.close(number)
            self.noted.seed()
            as_new()
            self.say("unseated", pid=os.getpid())
            return self.wait_for_rank()
        except BaseException as error:
            self.refuse("%s: %s" % (type(error).__name__, error))
            os._exit(FAILED)

    def wait_for_rank(self):
        """Waits for the packet with which this process runs its program: `run` or `ahead`."""
        packet, _ = self.receive(0)
        if packet.kind == "ahead":
            from _taskd_standby_prepare import Ahead

            shared = [entry.partition("=")[0] for entry in packet.all("set")]
            self.seated.ahead = Ahead(self, packet.all("unknown"), shared)  # pyright: ignore[reportAttributeAccessIssue]
            self.take_own(packet)
        else:
            self.be_rank(packet)
        return self.seated

    def await_seat(self, at, asked):
        """Waits for a rank at the point `at`, where the program needs one. `asked` names the variables that the program
        has read. Returns the argument of `be_rank`."""
        try:
            sys.stdout.flush()
            sys.stderr.flush()
            self.say("parked", at=at, asked=",".join(sorted(asked)))
            return self.receive(0)[0]
        except Exception as error:
            self.refuse("%s: %s" % (type(error).__name__, error))
            os._exit(FAILED)

    def be_rank(self, packet):
        if packet.kind != "run":
            raise RuntimeError("a request that this is not: %s" % packet.kind)
        self.socket.close()
        self.take_own(packet)
        self.mark.write(packet.all("set"))

    def take_own(self, packet):
        """Sets this process's own variables, arguments and number of threads."""
        for name in packet.all("unset"):
            os.environ.pop(name, None)
        for entry in packet.all("set"):
            name, _, value = entry.partition("=")
            os.environ[name] = value
        replace_arguments(packet.all("argument"))
        self.threads.set(os.environ.get(THREADS) or packet.one("threads"))
        look_for_files_again()

    def receive(self, descriptors_max):
        """Returns the next packet and its descriptors. Ends this process if the guard has closed the socket."""
        room = _socket.CMSG_SPACE(4 * descriptors_max) if descriptors_max else 0
        data, ancillary, _, _ = self.socket.recvmsg(PACKET_BYTES_MAX, room, _socket.MSG_CMSG_CLOEXEC)
        if not data:
            os._exit(0)
        passed = []
        for level, kind, content in ancillary:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                view = memoryview(content)[: len(content) // 4 * 4].cast("i")
                passed.extend(view)
        return Packet(data), passed

    def say(self, kind, **fields):
        texts = [kind] + ["%s=%s" % field for field in fields.items()]
        data = "\0".join(text.replace("\0", " ") for text in texts)
        self.socket.send(data.encode("utf-8", "replace")[:PACKET_BYTES_MAX])

    def refuse(self, reason):
        try:
            self.say("refused", why=reason[:1000])
        except Exception:
            pass  # the guard learns of the end of this process


class Packet:
    def __init__(self, data):
        self.kind, *self.fields = data.decode("utf-8", "surrogateescape").split("\0")

    def all(self, name):
        return [field[len(name) + 1 :] for field in self.fields if field.startswith(name + "=")]

    def one(self, name):
        return next(iter(self.all(name)), "")


def imported(name):
    try:
        __import__(name)
    except BaseException as error:
        raise ImportError("import of %s: %s: %s" % (name, type(error).__name__, error))


def directory_of(script):
    """Returns the directory that Python puts first on its path: the script's, or the current one for `-c` and `-m`."""
    if not script:
        return os.getcwd()
    found = os.path.realpath(script)
    return os.path.dirname(found) if os.path.isfile(found) and not is_archive(found) else found


def is_archive(path):
    with open(path, "rb") as file:
        return file.read(4) == b"PK\x03\x04"


def threads():
    found = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open("/proc/self/task/%s/comm" % task) as name:
                found.append(name.read().strip())
        except OSError:
            pass  # the thread has ended
    return found


def threads_when_settled():
    """Returns the names of all threads, after waiting for threads that are about to end."""
    import time

    until = time.monotonic() + THREADS_SECONDS
    while True:
        found = threads()
        if len(found) <= 1 or time.monotonic() >= until:
            return found
        time.sleep(0.005)


def descriptors():
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[int(number)] = os.readlink("/proc/self/fd/" + number)
        except OSError:
            pass  # the descriptor of the listing itself
    return found


def await_parent(guard):
    """Waits until the guard is this process's parent, once the process between has ended. No event reports that."""
    import time

    until = time.monotonic() + PARENT_SECONDS
    while os.getppid() != guard:
        if time.monotonic() >= until:
            raise RuntimeError("the guard has not become our parent")
        time.sleep(0.0005)


def end_with_parent(guard):
    """Has the kernel kill this process when the guard ends. The fork has cleared the template's setting."""
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this process would outlive the guard")
    if os.getppid() != guard:
        os._exit(0)
