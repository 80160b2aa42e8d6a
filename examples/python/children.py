"""Starts a child of every kind, as programs with helpers and daemons do: all of them must end with the rank, however
the rank ends.

Two words of each child's command line identify it: 1000000.NUMBER (of the run) and 0.KKPPPPPPPPPP (its place in KINDS,
and the rank's process id). `sleep` takes both as times, and the others ignore them.
"""

import os
import signal
import subprocess
import sys

# Two threads, of which the first ends: such a process is in state Z and still runs.
HEADLESS = (
    "import ctypes, threading; threading.Thread(target=threading.Event().wait).start(); "
    "ctypes.CDLL(None).pthread_exit(None)"
)
# prctl(PR_SET_DUMPABLE, 0): other processes of its user cannot read its environment.
UNDUMPABLE = "import ctypes, time; ctypes.CDLL(None).prctl(4, 0); time.sleep(1000000)"
# Each process of the chain runs for some milliseconds.
CHAIN = 'sleep 0.02; setsid env -i /bin/sh -c "$0" "$0" "$1" "$2" & exit 0'


def start(words, **how):
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, **how)


def shell(text, words, **how):
    """Runs `text` in a shell, with the words as "$@"."""
    return start(["/bin/sh", "-c", text, "sh", *words], **how)


def stopped(words):
    start(["sleep", *words]).send_signal(signal.SIGSTOP)


def other_user(words):
    if os.geteuid() == 0:
        start(["sleep", *words], user=65534, group=65534, extra_groups=[], env={}, cwd="/", start_new_session=True)


def namespace(words):
    if os.geteuid() == 0:
        start(["unshare", "--pid", "--fork", "sleep", *words])


KINDS = (
    ("child", lambda words: start(["sleep", *words])),
    ("group", lambda words: start(["sleep", *words], process_group=0)),
    ("session", lambda words: start(["sleep", *words], env={}, start_new_session=True)),
    ("bare", lambda words: start(["sleep", *words], env={})),
    ("orphan", lambda words: shell('sleep "$@" &', words).wait()),
    ("daemon", lambda words: shell('setsid env -i sleep "$@" &', words).wait()),
    ("stopped", stopped),
    ("deaf", lambda words: shell('trap "" TERM HUP INT; exec sleep "$@"', words)),
    ("other-user", other_user),
    ("namespace", namespace),
    ("headless", lambda words: start([sys.executable, "-c", HEADLESS, *words], env={})),
    ("undumpable", lambda words: start([sys.executable, "-c", UNDUMPABLE, *words])),
    ("chain", lambda words: start(["/bin/sh", "-c", CHAIN, CHAIN, *words], env={}, start_new_session=True)),
)


def leave(number):
    for kind, (_, begin) in enumerate(KINDS):
        begin(["1000000.%d" % number, "0.%02d%010d" % (kind, os.getpid())])
