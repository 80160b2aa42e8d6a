"""Copies of buffers: made anew where a buffer has changed, which its version does not always show; put back, and packed as bytes."""

import ctypes

import torch

from taskd import _state

COMPARED_BYTES_MAX = 64 << 10  # of a buffer in host memory that is compared with its copy at every step: some microseconds
COMPARED_EVERY = 64  # steps in which all others are, from the first powers of two on; those of a device make the program wait for it
WHY_CHARS_MAX = 100

memcmp = ctypes.CDLL(None).memcmp
memcmp.argtypes, memcmp.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_int


class Copied:
    """A buffer's copy, which is made anew where the buffer has changed since."""

    def __init__(self, changes_always):
        self.changes_always = changes_always
        self.changes_unseen = False  # it was seen to have changed and not to have another version
        self.buffer = self.version = self.copy = None
        self.is_small = False
        self.looks = -2  # ahead of the loop's begin and of its first step

    def of(self, buffer):
        self.looks += 1
        if buffer is not self.buffer or buffer._version != self.version or self.changes_always or self.changes_unseen or self.differs():
            self.take(buffer)
        return self.copy

    def take(self, buffer):
        version, one = buffer._version, buffer.detach().clone()
        if buffer is not self.buffer:
            raw(buffer)  # what is not made of bytes is known here
            self.is_small = one.device.type == "cpu" and one.nbytes <= COMPARED_BYTES_MAX
        self.buffer, self.version, self.copy = buffer, version, one

    def differs(self):
        if self.is_small or not self.looks & (self.looks - 1) or self.looks % COMPARED_EVERY == 0:
            self.changes_unseen = not is_same(self.buffer, self.copy)
        return self.changes_unseen


class Held:
    """`(buffer, copy)` of all that modules have now; the buffers are those that are in their places when they are asked for."""

    def __init__(self, state):
        found = {}
        for what in state.modules():
            for part in _state.inner_of(what).modules():
                for name, one in part._buffers.items():
                    if one is not None and id(one) not in found:
                        found[id(one)] = (part._buffers, name, one, one.detach().clone())
        self.found = list(found.values())

    def __iter__(self):
        for held, name, _, copied in self.found:
            if name in held and held[name] is not None:
                yield held[name], copied


def versions_of(buffers):
    try:
        return [None if one is None else one._version for one in buffers]
    except RuntimeError:  # made in inference mode, in which nothing has one
        return [None if one is None or one.is_inference() else one._version for one in buffers]


def raw(tensor):
    """Its bytes, which are compared as they are: a number that is none is not equal to itself."""
    return tensor.detach().reshape(-1).view(torch.uint8)


def is_same(one, other):
    """Whether two tensors have the same bytes."""
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    if one.device.type == "cpu" and one.is_contiguous() and other.is_contiguous():
        return not memcmp(one.data_ptr(), other.data_ptr(), one.nbytes)
    return torch.equal(raw(one), raw(other))


def kind_of(buffer, error):
    """What is unusual about a buffer that has not become a copy."""
    if isinstance(buffer, torch.nn.parameter.UninitializedTensorMixin):
        return "not initialized"
    if buffer.is_nested or buffer.layout is not torch.strided:
        return "nested" if buffer.is_nested else str(buffer.layout)
    if buffer.is_conj() or buffer.is_neg():
        return "a view that is conjugated or negated when it is read"
    if buffer.is_inference():
        return "made in inference mode"
    return ("%s: %s" % (type(error).__name__, error))[:WHY_CHARS_MAX]


def put(buffer, copied):
    """Copies into the buffer, which a program may have given another shape."""
    if buffer.shape == copied.shape:
        buffer.copy_(copied)
    else:
        buffer.data = copied.clone()


def packed(buffers):
    """Buffers in host memory as bytes, by path. To copy those of a device would make the program wait for it."""
    here = [(path, one) for path, one in buffers if one.device.type == "cpu" and one.numel()]
    return {path: (one.dtype, tuple(one.shape), raw(one).numpy().tobytes()) for path, one in here}


def fill(buffers, values):
    with torch.no_grad():
        for path, one in buffers:
            dtype, shape, data = values.get(path, (None, None, None))
            if dtype == one.dtype and shape == tuple(one.shape):
                one.copy_(torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape))
