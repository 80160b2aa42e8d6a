"""Marks in a program that has no torch. Prints true if they were recorded."""

import os
import sys
import threading

import taskd
from taskd._native import native

step = taskd.range_start("step 7")
with taskd.range("outer"):
    inner = taskd.range_start("inner", kind=20)
    taskd.mark("half way")
    taskd.counter("loss", 0.5)


@taskd.range("called")
def called(a, b=2):
    """What it is for."""
    return a + b


assert called(1) == 3 and called.__name__ == "called" and called.__doc__ == "What it is for."
thread = threading.Thread(target=taskd.range_end, args=(inner,))
thread.start()
thread.join()

# Nonsense is no reason to fail.
for nonsense in (None, 7, b"bytes", [], "\ud800", "", "x" * 5000):
    taskd.range_end(taskd.range_start(nonsense))
    taskd.range_end(taskd.range_start(nonsense, kind=nonsense))
    taskd.mark(nonsense)
    taskd.counter("nonsense", nonsense)
    taskd.range_end(nonsense)
for n in range(5000):
    taskd.range_end(taskd.range_start("name %d" % n, kind=99))
taskd.range_end(step)

if os.fork() == 0:
    taskd.mark("of a forked child")
    os._exit(taskd.range_start("of a forked child") + taskd.range_start("step 8"))
assert os.wait()[1] == 0
print("%d.%d" % sys.version_info[:2], type(native).__name__)
