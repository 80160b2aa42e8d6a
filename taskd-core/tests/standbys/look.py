"""Reports everything that one process has and another might not, and draws a number from each generator."""

import sys

modules = sorted(sys.modules)

import atexit
import ctypes
import gc
import json
import os
import random
import resource
import signal
import threading

# Of each process its own, or of each start.
OWN = """TASKD_PROC TASKD_RANK_PID TASKD_LIFELINE TASKD_HANDOFF TASKD_INCARNATION TASKD_GENERATION TASKD_RESTARTS TASKD_ERROR_FILE PORT MASTER_PORT
    TORCHELASTIC_ERROR_FILE TORCHELASTIC_RESTART_COUNT""".split()
PR_GET_PDEATHSIG = 2


def descriptors():
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[number] = os.readlink("/proc/self/fd/" + number).split(":")[0]
        except OSError:
            pass  # the listing's own
    return found


def parent_death_signal():
    found = ctypes.c_int()
    assert ctypes.CDLL(None).prctl(PR_GET_PDEATHSIG, ctypes.byref(found), 0, 0, 0) == 0
    return found.value


def torch_has():
    torch = sys.modules["torch"]
    return dict(
        threads=[torch.get_num_threads(), torch.get_num_interop_threads()],
        modes=[torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled(), str(torch.get_default_dtype())],
        group=[torch.distributed.is_initialized(), str(torch.distributed.group.WORLD)],
        compiled=torch.compiler.is_compiling(),
        on_device=torch.cuda.is_initialized(),
    )


with open("/proc/self/status") as file:
    status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
with open("/proc/self/cmdline") as file:
    cmdline = file.read()
with open("/proc/self/comm") as file:
    comm = file.read()
seen = dict(
    env={name: value for name, value in os.environ.items() if name not in OWN},
    modules=modules,
    masks={name: status[name] for name in ("SigBlk", "SigIgn", "SigCgt", "NoNewPrivs", "Umask", "Seccomp")},
    handlers={str(number): str(signal.getsignal(number)).split(" at ")[0] for number in signal.valid_signals()},
    atexit=atexit._ncallbacks(),
    fds=descriptors(),
    limits={name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")},
    cwd=os.getcwd(),
    flags=list(sys.flags),
    argv=sys.argv,
    path=sys.path,
    main=sorted(vars(sys.modules["__main__"])),
    loader=type(__loader__).__name__,
    nice=os.nice(0),
    policy=os.sched_getscheduler(0),
    cpus=sorted(os.sched_getaffinity(0)),
    hooks=[sys.excepthook.__module__, str(len(sys.meta_path))],
    group=[os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    comm=comm,
    cmdline=cmdline,
    threads=len(os.listdir("/proc/self/task")),
    python_threads=threading.active_count(),
    main_thread=[
        threading.main_thread().native_id == os.getpid(),
        threading.current_thread() is threading.main_thread(),
    ],
    gc=[gc.isenabled(), gc.get_threshold()],
    hash=hash("taskd"),
    recursion=sys.getrecursionlimit(),
    streams=[
        [stream.fileno(), stream.seekable(), stream.isatty(), stream.encoding, stream.line_buffering]
        for stream in (sys.stdin, sys.stdout, sys.stderr)
    ],
    tracing=[sys.gettrace() is None, sys.getprofile() is None],
    stdin=os.readlink("/proc/self/fd/0"),
    pdeathsig=parent_death_signal(),
)
drawn = dict(random=random.random())
if "torch" in sys.modules:
    seen["torch"] = torch_has()
    drawn["numpy"] = float(sys.modules["numpy"].random.random())
    drawn["torch"] = float(sys.modules["torch"].rand(1))
whole = "report-%s" % os.environ["TASKD_PROC"]
with open(whole + ".new", "w") as file:
    json.dump(dict(seen=seen, drawn=drawn, pid=os.getpid()), file)
os.rename(whole + ".new", whole)
