"""Snapshot of a batch as it was first returned, and its restoration.

The snapshot holds the items of containers and the versions of tensors; only other mutable data is copied, or pickled,
when the snapshot is made.
"""

from __future__ import annotations

import collections
import copy
import enum
import pickle
import sys
import types
import weakref

import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OTHERS_BYTES_MAX = 16 << 20  # limit of data beside the tensors of a batch; copying it takes some milliseconds
HOLDER_BYTES = 256  # counted for one container
# Container types, each before its base class; and types whose objects never change.
HOLDERS = collections.OrderedDict, dict, list, set, collections.deque
CODE = types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, type
CONSTANT = {
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    range,
    slice,
    frozenset,
    torch.dtype,
    torch.device,
    weakref.ref,
    *CODE,
}


class BatchSnapshot:
    """A batch as it is when it is first returned."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self.holders = []  # (container, its kind, its items)
        self.tensors = []  # (tensor, its version, requires_grad, its gradient, the gradient's version)
        self.arrays = []  # (NumPy array, a copy)
        self.others = []  # (object that is compared as a whole, its bytes)
        self.left_out = []  # objects that are not data
        self.bytes = 0  # number of bytes copied
        self.why = None
        try:
            self.look(batch)
        except TooLarge:
            why = (
                "a batch has more than %d MiB beside its tensors, which is not copied, so its step cannot be done again"
            )
            self.why = why % (OTHERS_BYTES_MAX >> 20)
        except Exception as error:
            why = (
                "it cannot be determined whether the program changes its batches, which cannot be pickled, "
                "so no step is done again: %s: %s"
            )
            self.why = why % (type(error).__name__, error)

    def look(self, batch: Any) -> None:
        waiting, seen = [batch], set()
        while waiting:
            value = waiting.pop()
            if type(value) in CONSTANT or id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, torch.Tensor):
                self.tensors.append(mark_of(value))
            elif is_array(value):
                waiting += self.copy_array(value)
            elif isinstance(value, HOLDERS + (tuple,)) or has_only_attributes(value):
                waiting += self.note_holder(value)
            elif is_no_data(value):
                self.left_out.append(value)
            else:
                data, tensors = pickled(value, OTHERS_BYTES_MAX - self.bytes)
                self.takes(len(data))
                self.others.append((value, data))
                waiting += tensors

    def takes(self, count: Any) -> None:
        self.bytes += count
        if self.bytes > OTHERS_BYTES_MAX:
            raise TooLarge

    def copy_array(self, array: Any) -> Any:
        """Copies an array; returns the objects in it that are to be examined."""
        self.takes(array.nbytes)
        if array.flags.writeable:
            self.arrays.append((array, array.copy()))
        return array.ravel().tolist() if array.dtype.hasobject else []

    def note_holder(self, value: Any) -> Any:
        """Saves the items of a container; returns the objects in it that are to be examined."""
        kind = next((one for one in HOLDERS if isinstance(value, one)), None)
        found = entries(kind, value) if kind else list(value) if isinstance(value, tuple) else []
        self.takes(HOLDER_BYTES + 8 * len(found))
        if kind is not None:
            self.holders.append((value, kind, found))
        if kind is not None and issubclass(kind, dict):
            found = [one for _, one in found]
        attributes = getattr(value, "__dict__", None)
        return [one for one in found if type(one) not in CONSTANT] + ([] if attributes is None else [attributes])

    def has_changed(self) -> bool:
        for tensor, version, _, grad, grads_version in self.tensors:
            if version_of(tensor) != version or grad is not None and version_of(grad) != grads_version:
                return True
        return any(is_other(value, data) for value, data in self.others)

    def again(self) -> Any:
        """Restores the items of every container, and returns the batch; `has_changed` reports other changes."""
        for value, kind, found in self.holders:
            put_back(kind, value, found)
        for array, copied in self.arrays:
            array[...] = copied
        for tensor, _, requires_grad, grad, _ in self.tensors:
            if tensor.is_leaf and not tensor.is_inference():
                tensor.grad = grad
                tensor.requires_grad_(requires_grad)
        return self.batch

    def copy(self) -> Any:
        """Returns a copy of the batch, or the batch itself if it contains an object that cannot be copied."""
        memo = {id(one): one for one in self.left_out}
        memo.update((id(one), own_copy(one)) for one, *_ in self.tensors)
        try:
            return copy.deepcopy(self.batch, memo)
        except Exception:
            return self.batch


class TooLarge(Exception):
    """A batch has more data than is copied."""


def mark_of(tensor: torch.Tensor) -> Any:
    grad = tensor.grad if tensor.is_leaf else None
    return tensor, version_of(tensor), tensor.requires_grad, grad, None if grad is None else version_of(grad)


def version_of(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version  # an inference tensor changes in inference mode only


def own_copy(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_leaf and tensor.requires_grad:
        return tensor.detach().clone().requires_grad_()
    return tensor.clone()


def is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


class Nothing:
    """A class whose objects have attributes and nothing else."""


def has_only_attributes(value: Any) -> bool:
    """Returns true if an object consists of its attributes: a data class, or a class that holds its items in an
    attribute, as Hugging Face's batches do. False if a class has its own methods for pickle."""
    if isinstance(value, (collections.UserDict, collections.UserList)):
        return True
    kind = type(value)
    plain = all(
        getattr(kind, name, None) is getattr(object, name, None)
        for name in ("__reduce__", "__reduce_ex__", "__getstate__")
    )
    return (
        plain and kind.__basicsize__ == Nothing.__basicsize__ and hasattr(value, "__dict__") and not is_no_data(value)
    )


def is_no_data(value: Any) -> bool:
    """Returns true if the object is a part of the program to which a batch only refers."""
    data = torch.utils.data
    return isinstance(
        value, (torch.nn.Module, torch.Generator, data.Dataset, data.DataLoader, data.Sampler, type, enum.Enum)
    )


def entries(kind: Any, value: Any) -> Any:
    """Returns the items of a container, by the methods of its kind: a derived class may have others."""
    return list(kind.items(value)) if issubclass(kind, dict) else list(kind.__iter__(value))


def put_back(kind: Any, value: Any, found: Any) -> None:
    kind.clear(value)
    if issubclass(kind, dict):
        for key, one in found:
            kind.__setitem__(value, key, one)
    else:
        (kind.update if kind is set else kind.extend)(value, found)


class Bounded:
    """A writer with a size limit."""

    def __init__(self, left: Any) -> None:
        self.left, self.parts = left, []

    def write(self, data: Any) -> None:
        self.left -= len(data)
        if self.left < 0:
            raise TooLarge
        self.parts.append(bytes(data))


class Pickler(pickle.Pickler):
    """Pickles all objects but tensors, which it collects."""

    def __init__(self, file: Any) -> None:
        pickle.Pickler.__init__(self, file, 4)
        self.tensors = []

    def persistent_id(self, value: Any) -> int | None:
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
            return id(value)
        return None


def pickled(value: Any, left: Any) -> Any:
    """Returns `(bytes, the tensors in the value)`."""
    file = Bounded(left)
    pickler = Pickler(file)
    pickler.dump(value)
    return b"".join(file.parts), pickler.tensors


def is_other(value: Any, data: Any) -> bool:
    """Returns true if a pickled object has changed since."""
    try:
        return pickled(value, OTHERS_BYTES_MAX)[0] != data
    except Exception:
        return True
