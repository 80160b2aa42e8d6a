"""Keeps the tensors of the latest operations, so that no thread of gloo's is the last to have one.

Such a thread lets go of an operation a moment after the program has heard of its end. Where the program has dropped the tensors
by then, that needs the interpreter's lock, for which the thread waits in vain if the program ends meanwhile: whoever takes the group
down has the lock, and waits for the thread (DDP does, when it outlives `destroy_process_group`); and an interpreter that is
ending gives it to nobody, which aborts the process. On busy cores one rank in a hundred hung at its end.

It knows nothing of groups, and holds a few operations' tensors at most.
"""

import ctypes
from collections import deque

OPERATIONS = 4  # gloo has two threads: what each works at, and what it worked at before

latest = deque(maxlen=OPERATIONS)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(latest))  # to the very end, when modules are gone
