"""The common part of the hooks, which record ranges without any effect on the program.

A hook never raises, never changes what a function returns or raises, and keeps no object of the program alive. A hook
that fails turns itself off. The failure is reported as the reason why its kind is not recorded; the first failure of a
process is also logged in one line.
"""

import sys
from _thread import get_ident

PROFILER_ACTIVE = "another profiler is active"

NAMES_MAX = 256  # that a hook caches; other names are looked up in the library each time

hooks = {}  # by kind; of a figure that is reported without marks, by its name
at_first = []  # functions to call once, before a hook records its first range
on_replaced = []  # functions to call with a function and its replacement, for a framework's compiler
failures = 0


def of(native, kind):
    """Returns the hook of a kind."""
    if kind not in hooks:
        hooks[kind] = Hook(native, kind)
    return hooks[kind]


def first():
    """Calls the functions in `at_first`, before the first range of the process."""
    while at_first:
        at_first.pop(0)()


def marked(kind):
    """Stops the hook of a kind or figure that the program reports itself: otherwise it would be recorded twice."""
    if kind in hooks:
        hooks[kind].stop()


def failed(native, kind, error):
    """Reports a hook that has failed or could not be installed."""
    global failures
    failures += 1
    reason = "the hook failed: %s: %s" % (type(error).__name__, error)
    try:
        native.except_(kind, reason)
        if failures == 1:
            sys.stderr.write("taskd: kind %d is not recorded: %s\n" % (kind, reason))
    except Exception:
        pass


class Hook:
    """Records ranges of one kind."""

    def __init__(self, native, kind):
        self.native = native
        self.kind = kind
        self.open_in = set()  # threads inside a range
        self._codes = {}
        self._stopped = False
        native.hooked(kind)

    def begin(self, name):
        """Begins a range and returns it; 0 if nothing is recorded."""
        try:
            first()
            code = self._codes.get(name)
            return self.native.begin(self._code_of(name) if code is None else code)
        except Exception as error:
            self.fail(error)
            return 0

    def end(self, range_):
        try:
            self.native.end(range_)
        except Exception as error:
            self.fail(error)

    def pause(self, reason):
        """Records nothing until `resume`, and reports the reason, for example `PROFILER_ACTIVE`."""
        if not self._stopped:
            self.begin = _begin_nothing
            self.native.except_(self.kind, reason)

    def resume(self):
        """Records again after `pause`."""
        if not self._stopped:
            self.__dict__.pop("begin", None)
            self.native.except_(self.kind, "")

    def stop(self):
        """Records nothing from now on."""
        self._stopped = True
        self.begin = _begin_nothing

    def fail(self, error):
        self.stop()
        failed(self.native, self.kind, error)

    def _code_of(self, name):
        code = code_of(self.native, self.kind, name)
        if len(self._codes) < NAMES_MAX:
            self._codes[name] = code
        return code


def code_of(native, kind, name):
    """Returns kind and name as one number; the kind alone if the name cannot be encoded."""
    try:
        return kind | native.name(name) << 32
    except UnicodeError:
        return kind


def _begin_nothing(name):
    return 0


def outermost(hook, name, function):
    """Returns `function` with a recorded range for each call; of nested calls on one thread, only the outermost."""

    def recorded(*args, **kwargs):
        thread = get_ident()
        range_ = 0 if thread in hook.open_in else hook.begin(name)
        if not range_:
            return function(*args, **kwargs)
        try:
            hook.open_in.add(thread)
            return function(*args, **kwargs)
        finally:
            hook.open_in.discard(thread)
            hook.end(range_)

    return in_place_of(function, recorded)


def in_place_of(function, replacement):
    """Gives `replacement` the metadata of `function`, calls the functions in `on_replaced`, and returns it."""
    import functools

    functools.update_wrapper(replacement, function)
    for then in on_replaced:
        then(function, replacement)
    return replacement
