"""A batch as it is when it is handed out first, and how it becomes that again.

Of what holds its tensors it is noted what it holds, and of the tensors which version they have; only what else may change in it is
copied, or pickled, beforehand.
"""

import collections
import copy
import enum
import pickle
import sys
import types
import weakref

import torch

OTHERS_BYTES_MAX = 16 << 20  # of a batch, beside its tensors: some milliseconds
HOLDER_BYTES = 256  # for what that counts that holds others
# What holds others, each ahead of what it is derived from; and what never changes.
HOLDERS = collections.OrderedDict, dict, list, set, collections.deque
CODE = types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, type
CONSTANT = {type(None), bool, int, float, complex, str, bytes, range, slice, frozenset, torch.dtype, torch.device, weakref.ref, *CODE}


class Kept:
    """A batch as it is when it is handed out first."""

    def __init__(self, batch):
        self.batch = batch
        self.holders = []  # (what holds others, which kind of holder it is, what it holds)
        self.tensors = []  # (tensor, its version, whether it requires a gradient, that, its version)
        self.arrays = []  # (array of NumPy's, a copy)
        self.others = []  # (an object that is looked at as a whole, its bytes)
        self.left_out = []  # what is no data
        self.bytes = 0  # that were copied
        self.why = None
        try:
            self.look(batch)
        except TooLarge:
            why = "a batch has more than %d MiB beside its tensors, which is not copied, so its step cannot be done again"
            self.why = why % (OTHERS_BYTES_MAX >> 20)
        except Exception as error:
            why = "nobody can tell whether the program changes its batches, which cannot be pickled, so no step is done again: %s: %s"
            self.why = why % (type(error).__name__, error)

    def look(self, batch):
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

    def takes(self, count):
        self.bytes += count
        if self.bytes > OTHERS_BYTES_MAX:
            raise TooLarge

    def copy_array(self, array):
        """What else there is to be looked at in it."""
        self.takes(array.nbytes)
        if array.flags.writeable:
            self.arrays.append((array, array.copy()))
        return array.ravel().tolist() if array.dtype.hasobject else []

    def note_holder(self, value):
        """The same."""
        kind = next((one for one in HOLDERS if isinstance(value, one)), None)
        found = entries(kind, value) if kind else list(value) if isinstance(value, tuple) else []
        self.takes(HOLDER_BYTES + 8 * len(found))
        if kind is not None:
            self.holders.append((value, kind, found))
        if kind is not None and issubclass(kind, dict):
            found = [one for _, one in found]
        attributes = getattr(value, "__dict__", None)
        return [one for one in found if type(one) not in CONSTANT] + ([] if attributes is None else [attributes])

    def has_changed(self):
        for tensor, version, _, grad, grads_version in self.tensors:
            if version_of(tensor) != version or grad is not None and version_of(grad) != grads_version:
                return True
        return any(is_other(value, data) for value, data in self.others)

    def again(self):
        """Everything holds again what it held; of what has changed otherwise `has_changed` knows."""
        for value, kind, found in self.holders:
            put_back(kind, value, found)
        for array, copied in self.arrays:
            array[...] = copied
        for tensor, _, requires_grad, grad, _ in self.tensors:
            if tensor.is_leaf and not tensor.is_inference():
                tensor.grad = grad
                tensor.requires_grad_(requires_grad)
        return self.batch

    def copy(self):
        """Another one like it, unless there is something in it that cannot be copied."""
        memo = {id(one): one for one in self.left_out}
        memo.update((id(one), own_copy(one)) for one, *_ in self.tensors)
        try:
            return copy.deepcopy(self.batch, memo)
        except Exception:
            return self.batch


class TooLarge(Exception):
    """More than is copied."""


def mark_of(tensor):
    grad = tensor.grad if tensor.is_leaf else None
    return tensor, version_of(tensor), tensor.requires_grad, grad, None if grad is None else version_of(grad)


def version_of(tensor):
    return None if tensor.is_inference() else tensor._version  # one of inference mode does not change outside of that


def own_copy(tensor):
    if tensor.is_leaf and tensor.requires_grad:
        return tensor.detach().clone().requires_grad_()
    return tensor.clone()


def is_array(value):
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


class Nothing:
    """Has its attributes and nothing else."""


def has_only_attributes(value):
    """Whether an object is what its attributes are: a data class, or one that holds its items in an attribute as Hugging Face's batches
    do. One that says itself what it is made of, by methods for pickle, is not."""
    if isinstance(value, (collections.UserDict, collections.UserList)):
        return True
    kind = type(value)
    plain = all(getattr(kind, name, None) is getattr(object, name, None) for name in ("__reduce__", "__reduce_ex__", "__getstate__"))
    return plain and kind.__basicsize__ == Nothing.__basicsize__ and hasattr(value, "__dict__") and not is_no_data(value)


def is_no_data(value):
    """Whether it is a part of the program that a batch only refers to."""
    data = torch.utils.data
    return isinstance(value, (torch.nn.Module, torch.Generator, data.Dataset, data.DataLoader, data.Sampler, type, enum.Enum))


def entries(kind, value):
    """What an object holds, by the methods of its kind: a class derived from that may have others."""
    return list(kind.items(value)) if issubclass(kind, dict) else list(kind.__iter__(value))


def put_back(kind, value, found):
    kind.clear(value)
    if issubclass(kind, dict):
        for key, one in found:
            kind.__setitem__(value, key, one)
    else:
        (kind.update if kind is set else kind.extend)(value, found)


class Bounded:
    """What is written, up to a size."""

    def __init__(self, left):
        self.left, self.parts = left, []

    def write(self, data):
        self.left -= len(data)
        if self.left < 0:
            raise TooLarge
        self.parts.append(bytes(data))


class Pickler(pickle.Pickler):
    """Of all but tensors, which it finds."""

    def __init__(self, file):
        pickle.Pickler.__init__(self, file, 4)
        self.tensors = []

    def persistent_id(self, value):
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
            return id(value)
        return None


def pickled(value, left):
    """`(bytes, the tensors in it)`"""
    file = Bounded(left)
    pickler = Pickler(file)
    pickler.dump(value)
    return b"".join(file.parts), pickler.tensors


def is_other(value, data):
    """Whether what was pickled has changed since."""
    try:
        return pickled(value, OTHERS_BYTES_MAX)[0] != data
    except Exception:
        return True
