"""Marks for a training program: ranges, moments and figures beside those that taskd records by itself.

    import taskd

    step = taskd.range_start("step 7")      # a training step
    with taskd.range("augment"):            # a range of the program's own
        ...
    taskd.counter("loss", loss)
    taskd.range_end(step)

What a range means its name says: `step 7` is training step 7, `dataloader`, `save_checkpoint` and `forward` are what they
are called, and everything else is the program's own. Once a program marks one of these four itself, what taskd would have
recorded of it without marks is left out. A kind of 16 to 63 puts ranges together that are switched on and off together.

Outside of a taskd job all of this does nothing, and nothing of it ever raises.
"""

from taskd import _hooks
from taskd._kinds import KINDS, LAST, STEP, USER, step_number
from taskd._native import Nothing, native

__all__ = ["counter", "mark", "range", "range_end", "range_start"]

NAMES_MAX = 4096  # that are remembered here; for others the library is asked each time
_ranges = {}  # what to begin a range with, by its name, or its name and kind
_moments = {}  # what to record for a mark or a counter, by its name
_begin, _end = native.begin, native.end
_mark, _counter = native.mark, native.counter


def range_start(name, kind=None):
    """Begins a range. What it returns ends it, on any thread; 0 where it is not recorded."""
    try:
        return _begin(_ranges[name] if kind is None else _ranges[name, kind])
    except (KeyError, TypeError):
        return _begin_new(name, kind)


def range_end(range):
    """Ends a range."""
    try:
        if range:
            _end(range)
    except Exception:
        pass  # nothing that began a range


def mark(name):
    """Records a moment."""
    try:
        _mark(_moments[name])
    except (KeyError, TypeError):
        _mark(_code(_moments, name, USER, name))


def counter(name, value):
    """Records a figure."""
    try:
        _counter(_code(_moments, name, USER, name), float(value))
    except (TypeError, ValueError, OverflowError):
        pass  # not a number


class range:
    """A range around what runs inside: a context manager, for one `with` at a time, or a decorator."""

    __slots__ = ("_name", "_kind", "_range")

    def __init__(self, name, kind=None):
        self._name = name
        self._kind = kind

    def __enter__(self):
        self._range = range_start(self._name, self._kind)
        return self

    def __exit__(self, *_):
        range_end(self._range)

    def __call__(self, function):
        import functools

        name, kind = self._name, self._kind

        @functools.wraps(function)
        def ranged(*args, **kwargs):
            with range(name, kind):
                return function(*args, **kwargs)

        return ranged


def _begin_new(name, kind):
    """A range that is not remembered."""
    if kind is not None:
        known = isinstance(kind, int) and USER <= kind <= LAST
        return _begin(_code(_ranges, name, kind if known else USER, (name, kind)))
    if not isinstance(name, str):
        return 0
    number = step_number(name)
    if number is not None:
        _hooks.marked(STEP)
        return native.begin_step(number)
    kind = KINDS.get(name, USER)
    _hooks.marked(kind)
    return _begin(_code(_ranges, name, kind, name))


def _code(codes, name, kind, key):
    """Kind and name as one number, which is remembered; the kind alone for what is no name."""
    if not isinstance(name, str):
        return kind
    code = codes.get(key)
    if code is None:
        code = _hooks.code_of(native, kind, name)
        if len(codes) < NAMES_MAX:
            codes[key] = code
    return code


def _begin_nothing(name, kind=None):
    return 0


def _nothing(name, value=None):
    pass


if isinstance(native, Nothing):
    range_start, range_end, mark, counter = _begin_nothing, _nothing, _nothing, _nothing
