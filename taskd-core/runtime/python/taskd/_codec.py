"""Encodes values as bytes for other processes, and decodes them, without pickle: a JSON header, then byte strings.

    length of the header (u32, little endian), the header, the byte strings one after the other

The header is `[value, lengths]`. In the value every JSON object has one key, the type's: `{"t": [1, 2]}` is a tuple,
`{"b": 0}` is the first byte string. So decoding creates only values of the types in the tables here and in `add_type`,
and runs no code from the input.

This module never reads from a socket, and does not check where the bytes come from (`_auth` does).
"""

import collections
import json
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LENGTH = struct.Struct("<I")
DEPTH_MAX = 50  # of nested values
SAME = frozenset((type(None), bool, int, float, str))  # encoded as JSON directly


class NotEncodable(TypeError):
    """Raised for a value whose type cannot be sent to another process, with the type."""


class Malformed(ValueError):
    """Raised for bytes that `encode` has not created."""


def encode(value: "Any") -> bytes:
    """Returns the value as bytes. Raises NotEncodable."""
    parts = []
    plain = take_apart(value, parts, 0)
    header = json.dumps([plain, [len(part) for part in parts]], separators=(",", ":")).encode()
    return b"".join([LENGTH.pack(len(header)), header] + parts)


def decode(data: bytes) -> "Any":
    """Returns the encoded value. Raises Malformed."""
    try:
        begins = LENGTH.size + LENGTH.unpack_from(data)[0]
        if begins > len(data):
            raise Malformed("a header that goes beyond the end")
        plain, lengths = json.loads(bytes(data[LENGTH.size : begins]).decode())
        parts = []
        for length in lengths:
            if type(length) is not int or not 0 <= length <= len(data) - begins:
                raise Malformed("a byte string that goes beyond the end")
            parts.append(bytes(data[begins : begins + length]))
            begins += length
        if begins != len(data):
            raise Malformed("%d bytes too many" % (len(data) - begins))
        return put_together(plain, parts, 0)
    except Malformed:
        raise
    except Exception as error:  # of any type: the bytes may be arbitrary
        raise Malformed("%s: %s" % (type(error).__name__, error))


# For each type: its key, a function to an encodable value, and a function back.

BY_TYPE, BY_KEY = {}, {}


def add_type(key, kind, apart, together):
    """Registers a type: values of exactly this type are encoded as `apart(value)`, and decoded by `together(given)`,
    which checks its argument."""
    BY_TYPE[kind] = key, apart
    BY_KEY[key] = together


def items_of(value):
    return [list(item) for item in value.items()]


def as_ordered(given):
    return collections.OrderedDict((key, one) for key, one in given)


FACTORIES = {one.__name__: one for one in (int, float, str, list, dict, set)}


def default_apart(value):
    factory = value.default_factory
    name = getattr(factory, "__name__", None)
    if factory is not None and FACTORIES.get(name) is not factory:  # pyright: ignore[reportArgumentType]
        raise NotEncodable("a defaultdict of %r" % (factory,))
    return [None if factory is None else name, items_of(value)]


def default_together(given):
    name, items = given
    return collections.defaultdict(None if name is None else FACTORIES[name], ((key, one) for key, one in items))


def as_bytearray(given):
    if type(given) is not bytes:  # bytearray(number) would create that many bytes
        raise Malformed("no bytes")
    return bytearray(given)


BY_KEY["t"] = tuple
add_type("s", set, list, set)
add_type("f", frozenset, list, frozenset)
add_type("y", bytearray, bytes, as_bytearray)
add_type("c", complex, lambda value: [value.real, value.imag], lambda given: complex(*given))
add_type("o", collections.OrderedDict, items_of, as_ordered)
add_type("n", collections.Counter, items_of, lambda given: collections.Counter({key: one for key, one in given}))
add_type("e", collections.defaultdict, default_apart, default_together)
add_type("q", collections.deque, lambda value: [list(value), value.maxlen], lambda given: collections.deque(*given))


# NumPy, registered with its first value.

NUMPY = SCALAR, ARRAY = "scalar", "array"
OF_BYTES = "biufcSUmM"  # kinds of dtypes that consist of plain bytes


def add_numpy():
    import numpy

    def apart(value):
        if value.dtype.kind not in OF_BYTES:
            raise NotEncodable("a NumPy array of %s" % value.dtype)
        return [value.dtype.str, list(value.shape), value.tobytes()]

    def together(given):
        dtype, shape, data = given
        if type(data) is not bytes or numpy.dtype(dtype).kind not in OF_BYTES:
            raise Malformed("no NumPy array")
        return numpy.frombuffer(bytearray(data), dtype).reshape(shape)

    for kind in {numpy.dtype(code).type for code in numpy.typecodes["All"] if code not in "OV"}:
        add_type(SCALAR, kind, apart, lambda given: together(given)[()])
    add_type(ARRAY, numpy.ndarray, apart, together)


def add_types_of(package):
    """Registers the types of a package when one of its values is found: before that, the package may be missing or only
    partly imported. The framework's interface registers its types (`add_codec_types` of `_framework.Framework`)."""
    if package == "numpy":
        return add_numpy()
    try:
        from taskd import _framework

        framework = _framework.current()
        if hasattr(framework, "add_codec_types"):
            framework.add_codec_types()
    except ImportError:
        pass  # the framework is missing, or only partly imported


def add_types_ahead():
    """Registers the types of all packages imported so far, in a standby: once it has a rank, others wait for it."""
    if "numpy" in sys.modules:
        add_types_of("numpy")
    add_types_of("taskd")


def take_apart(value, parts, depth):
    kind = type(value)
    if kind in SAME:
        return value
    if depth > DEPTH_MAX:
        raise NotEncodable("values more than %d deep in each other" % DEPTH_MAX)
    if kind is bytes:
        parts.append(value)
        return {"b": len(parts) - 1}
    if kind is list:
        return [one if type(one) in SAME else take_apart(one, parts, depth + 1) for one in value]
    if kind is tuple:
        return {"t": [one if type(one) in SAME else take_apart(one, parts, depth + 1) for one in value]}
    if kind is dict:
        if all(type(key) is str for key in value):
            return {
                "d": {
                    key: one if type(one) in SAME else take_apart(one, parts, depth + 1) for key, one in value.items()
                }
            }
        return {"m": [take_apart(list(item), parts, depth + 1) for item in value.items()]}
    if kind not in BY_TYPE:
        add_types_of(kind.__module__.partition(".")[0])
    known = BY_TYPE.get(kind)
    if known is None:
        raise NotEncodable("a %s.%s" % (kind.__module__, kind.__qualname__))
    return {known[0]: take_apart(known[1](value), parts, depth + 1)}


def put_together(plain, parts, depth):
    kind = type(plain)
    if kind in SAME:
        return plain
    if depth > DEPTH_MAX + 1:
        raise Malformed("values more than %d deep in each other" % DEPTH_MAX)
    if kind is list:
        return [one if type(one) in SAME else put_together(one, parts, depth + 1) for one in plain]
    ((key, given),) = plain.items()
    if key == "b":
        if type(given) is not int or given < 0:
            raise Malformed("no number of a byte string")
        return parts[given]
    if key == "d":
        return {name: put_together(one, parts, depth + 1) for name, one in given.items()}
    if key == "m":
        return {key: one for key, one in (put_together(item, parts, depth + 1) for item in given)}
    if key not in BY_KEY:
        add_types_of("numpy" if key in NUMPY else "taskd")
    return BY_KEY[key](put_together(given, parts, depth + 1))
