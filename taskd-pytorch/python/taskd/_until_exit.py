"""A bare thread beside the program, as the heartbeat's, that ends ahead of the interpreter: one that is in C++ when that is taken
down takes the whole process down, by a signal instead of the program's exit code.

It knows nothing of what the thread does. It does not survive fork, and nobody waits for it for long.
"""

import atexit
import os

STOP_SECONDS = 5  # its end is a matter of milliseconds, but on a host that has no time for it


def start(run, stop):
    """Runs `run()` on a thread. Before the interpreter ends calls `stop()`, which has it return soon, and waits for that."""
    import _thread

    pid, running = os.getpid(), _thread.allocate_lock()
    running.acquire()

    def run_to_the_end():
        import _signal

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
