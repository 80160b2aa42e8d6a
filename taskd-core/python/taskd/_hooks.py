"""What the hooks have in common: they record ranges, and whatever befalls them, the program does not notice.

A hook never raises, never changes what a function returns or raises, and keeps no object of the program alive. Its own
failure turns it off; the failure is reported as the reason why its kind is not recorded, and the first one of a process
is told in one line.
"""

import sys
from _thread import get_ident

PROFILER_ACTIVE = "another profiler is active"

NAMES_MAX = 256  # that a hook remembers; for others the library is asked each time

hooks = {}  # by kind
at_first = []  # what is to be called once, before the first range that a hook records
on_replaced = []  # what is called with a function and what takes its place: a framework's compiler may have to be told
failures = 0


def of(native, kind):
    """The hook of a kind."""
    if kind not in hooks:
        hooks[kind] = Hook(native, kind)
    return hooks[kind]


def first():
    """What is to be done before the first range of all."""
    while at_first:
        at_first.pop(0)()


def marked(kind):
    """The program marks a kind itself: what is recorded of it without marks would be there twice."""
    if kind in hooks:
        hooks[kind].stop()


def failed(native, kind, error):
    """A hook has failed, or could not be put in place."""
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
        self.open_in = set()  # threads that are inside of a range
        self._codes = {}
        self._stopped = False
        native.hooked(kind)

    def begin(self, name):
        """Begins a range; 0 where nothing is recorded."""
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
        """Records nothing until `resume`, and says why: `PROFILER_ACTIVE`, for instance."""
        if not self._stopped:
            self.begin = _begin_nothing
            self.native.except_(self.kind, reason)

    def resume(self):
        """What the pause was for is over."""
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
    """Kind and name as one number; the kind alone where the name cannot be written down."""
    try:
        return kind | native.name(name) << 32
    except UnicodeError:
        return kind


def _begin_nothing(name):
    return 0


def outermost(hook, name, function):
    """`function`, recorded: of calls inside of each other on one thread only the outermost."""

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
    """`replacement` as `function` looks to Python, and to whom it is told."""
    import functools

    functools.update_wrapper(replacement, function)
    for then in on_replaced:
        then(function, replacement)
    return replacement
