"""Callbacks of a training framework in a recovery: functions of the program that taskd calls after its own part.

Their names are those of the handlers in the reference (MindCluster). They are called on the main thread, between two
steps, in the order of a recovery. If a callback raises, this rank refuses the directive with the exception as the
reason, and the next rung is tried.
"""

NAMES = {
    "stop": "stop(step): this rank has left the old groups, and come to the end of the step that was under way",
    "clean": "clean(): what the framework keeps of the old groups and their operations is to go",
    "rebuild": "rebuild(rank, size): all groups are there again, perhaps of another size; the "
    "framework may make its own",
    "repair": "repair(step, source, sinks): taskd's state is that of the start of `step`; `source` is the rank "
    "that it was copied from (None:\n"
    "    it was here; the first one if several ranks gave parts), `sinks` the ranks that copied it from this one and "
    "are in the same call",
    "rollback": "rollback(step): everything is in place, and `step` is done next, perhaps again",
    "save": "save(directory, step): this rank has written its part of an emergency checkpoint there, and "
    "the framework may write its own",
    "exit": "exit(code): this process is ordered to end: by SIGTERM (code 143), within the grace time of the stop",
}


def checked(callbacks):
    """Returns a checked copy of the dict of callbacks by name.

    Raises ValueError for an unknown name, and TypeError for a callback that is not callable."""
    for name, function in (callbacks or {}).items():
        if name not in NAMES:
            raise ValueError("taskd.steps: there is no callback %r; known are %s" % (name, ", ".join(NAMES)))
        if not callable(function):
            raise TypeError("taskd.steps: the callback %r is not callable" % name)
    return dict(callbacks or {})


def call(callbacks, name, *arguments):
    """Calls a callback, if the program has passed it."""
    function = callbacks.get(name)
    if function is not None:
        function(*arguments)
