"""Keeps the tensors of the latest operations alive, so that no gloo thread holds the last reference to one.

Such a thread drops an operation a moment after the program has seen its end. If the program has dropped the tensors by
then, the thread needs the interpreter's lock, for which it waits in vain if the program exits meanwhile: the thread
that destroys the group holds the lock and waits for the gloo thread (DDP's does, when it outlives
`destroy_process_group`); and an exiting interpreter grants the lock to no thread, which aborts the process. On busy
cores one rank in a hundred hung at its exit.

The module knows nothing of groups, and holds the tensors of a few operations at most.
"""

import ctypes
from collections import deque

OPERATIONS = 4  # gloo has two threads: the current and the previous operation of each

latest = deque(maxlen=OPERATIONS)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(latest))  # kept until the process ends, after modules are gone
