"""Marks for a training program: ranges, moments and figures beside those that taskd records by itself.

    import taskd

    step = taskd.range_start("step 7")      # a training step, as with torch.npu.mstx
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
_ranges = {}  # by the name of a range: what it begins with
_codes = {}  # by name and kind: both as one number
_begin, _end, _end_step = native.begin, native.end, native.end_step


def range_start(name, kind=None):
    """Begins a range. What it returns ends it, on any thread; 0 where it is not recorded."""
    try:
        if kind is None:
            return _begin(_ranges[name])
    except (KeyError, TypeError):
        pass
    return _begin_new(name, kind)


def range_end(range):
    """Ends a range."""
    try:
        if range:
            _end_step(range) if range >> 58 == STEP else _end(range)
    except (TypeError, ValueError, OverflowError):
        pass  # nothing that began a range


def mark(name):
    """Records a moment."""
    native.mark(_code(name, USER))


def counter(name, value):
    """Records a figure."""
    try:
        native.counter(_code(name, USER), float(value))
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
    """A range with a kind, or with a name that is not remembered."""
    if not isinstance(name, str):
        return 0
    if kind is not None:
        return _begin(_code(name, kind if isinstance(kind, int) and USER <= kind <= LAST else USER))
    number = step_number(name)
    if number is not None:
        _hooks.marked(STEP)
        return native.begin_step(number)
    kind = KINDS.get(name, USER)
    _hooks.marked(kind)
    code = _code(name, kind)
    if len(_ranges) < NAMES_MAX:
        _ranges[name] = code
    return _begin(code)


def _code(name, kind):
    """Both as one number; without the name where it is none."""
    if not isinstance(name, str):
        return kind
    code = _codes.get((name, kind))
    if code is not None:
        return code
    try:
        code = kind | native.name(name) << 32
    except UnicodeError:
        return kind
    if len(_codes) < NAMES_MAX:
        _codes[name, kind] = code
    return code


def _begin_nothing(name, kind=None):
    return 0


def _nothing(name, value=None):
    pass


if isinstance(native, Nothing):
    range_start, range_end, mark, counter = _begin_nothing, _nothing, _nothing, _nothing
