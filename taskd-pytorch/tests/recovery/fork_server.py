"""Runs scenarios, each in a process that it forks: importing torch takes longer than most of them do.

A request is a line of JSON on the standard input: the program, its arguments, and the file for its output. The answer
is a line with the exit code, or with the number of the signal, negative. At the end of the input the process removes
the directory of its one argument, and exits.
"""

import json
import os
import runpy
import shutil
import sys

import ranks  # noqa: F401  (it imports torch)


def next_in_child():
    """Serves requests. Returns in each child, with its request, and at the end of the input, with None."""
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if not pid:
            return request
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    return None


def main():
    request = next_in_child()
    if request is None:
        shutil.rmtree(sys.argv[1])
        return
    null, output = os.open(os.devnull, os.O_RDONLY), os.open(request["output"], os.O_WRONLY | os.O_APPEND)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(null)
    os.close(output)
    sys.argv = [request["program"], *request["arguments"]]
    runpy.run_path(request["program"], run_name="__main__")


main()
