"""A bare background thread, such as the heartbeat's, that ends before the interpreter. A thread that is in C++ when the
interpreter is finalized ends the whole process, by a signal instead of the program's exit code.

The module does not depend on what the thread does. The thread does not survive fork, and the wait for its end is short.
"""

from __future__ import annotations

import atexit
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

STOP_SECONDS = 5  # limit of the wait; a thread ends within milliseconds, except on an overloaded host


def start(run: Callable[[], object], stop: Callable[[], object]) -> None:
    """Runs `run()` on a thread. Before the interpreter ends, calls `stop()`, which makes `run` return soon, and waits
    for that."""
    import _thread

    pid, running = os.getpid(), _thread.allocate_lock()
    running.acquire()

    def run_to_the_end():
        import _signal  # pyright: ignore[reportMissingImports]

        _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
        try:
            run()
        finally:
            running.release()

    def stop_it():
        if os.getpid() == pid:
            stop()
            running.acquire(True, STOP_SECONDS)

    _thread.start_new_thread(run_to_the_end, ())
    atexit.register(stop_it)
