"""Prints the milliseconds that one `process_vm_readv` takes for BYTES bytes of another process: the minimum of three.

`python plain_copy.py BYTES`. The reference for a copy of a training state."""

import ctypes
import mmap
import os
import signal
import sys
import time


class Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def touched(size, value):
    """Returns memory whose pages all exist."""
    memory = mmap.mmap(-1, size)
    for at in range(0, size, mmap.PAGESIZE):
        memory[at] = value
    return memory


def read(pid, here, there, size):
    done = 0
    while done < size:  # the kernel copies at most 2 GiB per call
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
    theirs[0] = 3  # the child has its own pages from here on, as separate processes have
    for at in range(0, size, mmap.PAGESIZE):
        theirs[at] = 3
    signal.pause()
try:
    time.sleep(0.2 + size / 2**30)  # until the child has written all pages
    times = []
    for _ in range(3):
        before = time.perf_counter()
        read(child, here, there, size)
        times.append(time.perf_counter() - before)
finally:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
print(min(times) * 1e3)
