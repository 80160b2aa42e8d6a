"""The options of collectives in torch's memory: native code reads there whether a call is asynchronous.

torch's property `asyncOp` takes up to ten microseconds when nothing of pybind11 is in the processor's caches, the byte
behind it less than one. An object of pybind11 holds a pointer to its C++ object after what all objects of Python have.
Which byte of that object it is, is found by setting the property and looking. Classes without such a byte, and versions
of torch that were not tried, are left to the property.
"""

from __future__ import annotations

import ctypes

from torch._C import _distributed_c10d as c10d

from taskd.torch.tracing import is_known_version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HEADER_BYTES = 16  # number of references, and class
BYTES_MAX = 64  # of a C++ object that are looked at; the largest options are longer


def async_flags() -> tuple[Any, ...]:
    """Returns the classes of options, each with the position of the byte."""
    # A build of Python without the interpreter lock, or for debugging, has a longer header.
    if object.__basicsize__ != HEADER_BYTES or not is_known_version():
        return ()
    classes = [kind for name, kind in vars(c10d).items() if name.endswith("Options") and hasattr(kind, "asyncOp")]
    found = [(kind, position_in(kind)) for kind in classes]
    return tuple((kind, position) for kind, position in found if position is not None)


def position_in(kind: Any) -> int | None:
    """Returns the position of the byte of `asyncOp` in the C++ objects of a class. No byte behind it is read."""
    one, other = kind(), kind()
    for at in range(BYTES_MAX):
        if all(follows(options, at) for options in (one, other)):
            return at
    return None


def follows(options: Any, at: int) -> bool:
    """Returns true if the byte has the value of the property, whatever that is."""
    held = ctypes.c_void_p.from_address(id(options) + HEADER_BYTES).value
    if not held:
        return False
    byte = ctypes.c_uint8.from_address(held + at)
    seen = []
    for is_async in (True, False, True, False):
        options.asyncOp = is_async
        seen.append(byte.value)
    return seen == [1, 0, 1, 0]
