"""Copies of buffers: made again if a buffer has changed, which its version does not always show; restored, and packed
as bytes."""

from __future__ import annotations

import ctypes

import torch

from taskd.torch import state as _state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# size up to which a buffer in host memory is compared with its copy at every step: some microseconds
COMPARED_BYTES_MAX = 64 << 10
# steps between comparisons of all others, besides powers of two: the program has to wait for a device's buffers
COMPARED_EVERY = 64
WHY_CHARS_MAX = 100

memcmp = ctypes.CDLL(None).memcmp
memcmp.argtypes, memcmp.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_int


class Copied:
    """Copy of a buffer, which is made again if the buffer has changed."""

    def __init__(self, changes_always: bool) -> None:
        self.changes_always = changes_always
        self.changes_unseen = False  # True if the buffer has changed without a new version
        self.buffer = self.version = self.copy = None
        self.is_small = False
        self.looks = -2  # the first two are before the loop and before its first step

    def of(self, buffer: torch.Tensor) -> torch.Tensor | None:
        self.looks += 1
        if (
            buffer is not self.buffer
            or buffer._version != self.version
            or self.changes_always
            or self.changes_unseen
            or self.differs()
        ):
            self.take(buffer)
        return self.copy

    def take(self, buffer: torch.Tensor) -> None:
        version, one = buffer._version, buffer.detach().clone()
        if buffer is not self.buffer:
            raw(buffer)  # raises if the buffer does not consist of bytes
            self.is_small = one.device.type == "cpu" and one.nbytes <= COMPARED_BYTES_MAX
        self.buffer, self.version, self.copy = buffer, version, one

    def differs(self) -> bool:
        if self.is_small or not self.looks & (self.looks - 1) or self.looks % COMPARED_EVERY == 0:
            self.changes_unseen = not is_same(self.buffer, self.copy)
        return self.changes_unseen


class Held:
    """`(buffer, copy)` of all buffers that modules have now. An iteration returns the buffers that are in their places
    at that time."""

    def __init__(self, state: Any) -> None:
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


def versions_of(buffers: Any) -> list[Any | None]:
    try:
        return [None if one is None else one._version for one in buffers]
    except RuntimeError:  # made in inference mode, in which tensors have no version
        return [None if one is None or one.is_inference() else one._version for one in buffers]


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the bytes of a tensor, for comparison: NaN is not equal to itself as a number."""
    return tensor.detach().reshape(-1).view(torch.uint8)


def is_same(one: Any, other: Any) -> bool:
    """Returns True if two tensors have the same bytes."""
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    if one.device.type == "cpu" and one.is_contiguous() and other.is_contiguous():
        return not memcmp(one.data_ptr(), other.data_ptr(), one.nbytes)
    return torch.equal(raw(one), raw(other))


def kind_of(buffer: torch.Tensor, error: BaseException) -> str:
    """Returns the reason why a buffer could not be copied."""
    if isinstance(buffer, torch.nn.parameter.UninitializedTensorMixin):  # pyright: ignore[reportAttributeAccessIssue]
        return "not initialized"
    if buffer.is_nested or buffer.layout is not torch.strided:
        return "nested" if buffer.is_nested else str(buffer.layout)
    if buffer.is_conj() or buffer.is_neg():
        return "a view that is conjugated or negated when it is read"
    if buffer.is_inference():
        return "made in inference mode"
    return ("%s: %s" % (type(error).__name__, error))[:WHY_CHARS_MAX]


def put(buffer: torch.Tensor, copied: Any) -> None:
    """Copies into the buffer, to which a program may have given another shape."""
    if buffer.shape == copied.shape:
        buffer.copy_(copied)
    else:
        buffer.data = copied.clone()


def packed(buffers: Any) -> dict[Any, tuple[Any, tuple[Any, ...], bytes]]:
    """Returns buffers in host memory as bytes, by path: for those of a device the program would wait."""
    here = [(path, one) for path, one in buffers if one.device.type == "cpu" and one.numel()]
    return {path: (one.dtype, tuple(one.shape), raw(one).numpy().tobytes()) for path, one in here}


def fill(buffers: Any, values: Any) -> None:
    with torch.no_grad():
        for path, one in buffers:
            dtype, shape, data = values.get(path, (None, None, None))
            if dtype == one.dtype and shape == tuple(one.shape):
                one.copy_(torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape))
