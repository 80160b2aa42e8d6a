"""A training framework's own part in a recovery: functions of its own that are called when taskd has done its part.

Their names are those of the reference's (MindCluster's) handlers. It calls them on the main thread, between two steps, in the order
of a recovery; what one raises is the reason for which this rank refuses the directive, and the next rung is tried.
"""

NAMES = {
    "stop": "stop(step): this rank has left the old groups, and come to the end of the step that was under way",
    "clean": "clean(): what the framework keeps of the old groups and their operations is to go",
    "rebuild": "rebuild(rank, size): all groups are there again, perhaps of another size; the framework may make its own",
    "repair": "repair(step, source, sinks): taskd's state is of the start of `step`; the rank of whom it was taken (None: it was\n"
    "    here; of several that have given parts the first) and those that took it from this one, who are in the same call",
    "rollback": "rollback(step): everything is in place, and `step` is done next, perhaps again",
    "save": "save(directory, step): this rank has written its part of a dying checkpoint there, and the framework may write its own",
    "exit": "exit(code): this process is told to end: by SIGTERM (code 143), within the grace time of the stop",
}


def checked(callbacks):
    """A dict of them by name.

    Raises TypeError or ValueError: it is not."""
    for name, function in (callbacks or {}).items():
        if name not in NAMES:
            raise ValueError("taskd.steps: there is no callback %r; known are %s" % (name, ", ".join(NAMES)))
        if not callable(function):
            raise TypeError("taskd.steps: the callback %r is not callable" % name)
    return dict(callbacks or {})


def call(callbacks, name, *arguments):
    """Calls it, if the program has given one."""
    function = callbacks.get(name)
    if function is not None:
        function(*arguments)
