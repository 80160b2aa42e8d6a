"""How many milliseconds one `process_vm_readv` takes for so many bytes of another process: the least of three.

`python plain_copy.py BYTES`. What a copy of a training state is held against."""

import ctypes
import mmap
import os
import signal
import sys
import time


class Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def touched(size, value):
    """Memory of which no page has to be made any more."""
    memory = mmap.mmap(-1, size)
    for at in range(0, size, mmap.PAGESIZE):
        memory[at] = value
    return memory


def read(pid, here, there, size):
    done = 0
    while done < size:  # the kernel gives at most 2 GiB a call
        own, theirs = Iovec(here + done, size - done), Iovec(there + done, size - done)
        got = call(pid, ctypes.byref(own), 1, ctypes.byref(theirs), 1, 0)
        if got <= 0:
            raise OSError(ctypes.get_errno(), "process_vm_readv: " + os.strerror(ctypes.get_errno()))
        done += got


call = ctypes.CDLL(None, use_errno=True).process_vm_readv
call.restype = ctypes.c_ssize_t
size = int(sys.argv[1])
theirs, own = touched(size, 1), touched(size, 2)
there, here = (ctypes.addressof(ctypes.c_char.from_buffer(memory)) for memory in (theirs, own))
child = os.fork()
if not child:
    theirs[0] = 3  # its own from here on, as another process's is
    for at in range(0, size, mmap.PAGESIZE):
        theirs[at] = 3
    signal.pause()
try:
    time.sleep(0.2 + size / 2**30)  # until the child has touched it
    times = []
    for _ in range(3):
        before = time.perf_counter()
        read(child, here, there, size)
        times.append(time.perf_counter() - before)
finally:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
print(min(times) * 1e3)
