"""State that an object returns and loads as a whole: `state_dict` and `load_state_dict`, the extra state of modules.

The tensors in it may be copies that have no other reference. So a caller that reads them holds them, copied values are
in memory of their own, and the object loads them by its own method. This module does not fill tensors in place, and
does not decide which rank's values are right.
"""

from __future__ import annotations

import copy
import pickle

import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MARK = "/=/"  # in the path of a value's tensor, between the object's name and the place in its state


def is_value(path: str) -> bool:
    return MARK in path


class Leaf:
    """Placeholder of a tensor, which makes a tensor of the same kind."""

    def __init__(self, path: str, tensor: torch.Tensor) -> None:
        self.path, self.device = path, tensor.device.type
        self.is_parameter = isinstance(tensor, torch.nn.Parameter)
        self.has_grad = tensor.requires_grad and tensor.is_leaf

    def of(self, tensor: torch.Tensor, own: Any) -> Any:
        """Returns the tensor in its place, on the device of the object's `own` tensor."""
        tensor = tensor.to(self.device if own is None else own.device)
        if self.is_parameter:
            return torch.nn.Parameter(tensor, self.has_grad)
        return tensor.requires_grad_() if self.has_grad else tensor


def extra_of(module: Any) -> dict[Any, Any]:
    """Returns `{path: module}` of the parts of a module that have extra state."""
    plain = torch.nn.Module
    return {
        path: part
        for path, part in module.named_modules()
        if type(part).get_extra_state is not plain.get_extra_state
        and type(part).set_extra_state is not plain.set_extra_state
    }


def gives(what: Any) -> bool:
    """Returns True if an object returns its state as a whole."""
    if isinstance(what, torch.nn.Module):
        return bool(extra_of(what))
    if isinstance(what, (torch.Tensor, torch.optim.Optimizer)):
        return False
    return hasattr(what, "state_dict") and hasattr(what, "load_state_dict")


def apart(what: Any) -> Any:
    """Returns `(state with a Leaf for each tensor, {place: tensor})`; `(None, {})` if the object has no such state."""
    if not gives(what):
        return None, {}
    if isinstance(what, torch.nn.Module):
        given = {path: part.get_extra_state() for path, part in extra_of(what).items()}
    else:
        given = what.state_dict()
    found = {}
    return take_out("", given, found), found


def take_out(path: str, value: Any, found: Any) -> Any:
    if is_plain(value):
        while path in found:  # different keys may have the same text: 1 and "1"
            path += "'"
        found[path] = value.detach()
        return Leaf(path, value)
    if isinstance(value, dict):
        same = copy.copy(value)
        for key, one in value.items():
            same[key] = take_out("%s/%s" % (path, key), one, found)
        return same
    if type(value) in (list, tuple):
        return type(value)(take_out("%s/%d" % (path, at), one, found) for at, one in enumerate(value))
    return value


def is_plain(value: Any) -> bool:
    """Returns True for a tensor that is nothing but its bytes. torch writes all other tensors (`codec_types`)."""
    is_usual = type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided
    return is_usual and not (value.is_quantized or value.is_conj() or value.is_neg())


def give_back(what: Any, given: Any, tensors: dict[str, torch.Tensor]) -> None:
    """Makes an object load a state of `apart`, its own or that of a similar object. It may keep the tensors."""
    if given is None:
        return
    given = filled(given, tensors, lambda: apart(what)[1])
    with torch.no_grad():
        if isinstance(what, torch.nn.Module):
            for path, value in given.items():
                what.get_submodule(path).set_extra_state(value)
        else:
            what.load_state_dict(given)
            if hasattr(what, "_per_optimizer_states"):  # a gradient scaler's state of its step
                what._per_optimizer_states.clear()


def filled(given: Any, tensors: dict[str, torch.Tensor], own: Any) -> Any:
    """Returns a state of `apart` with these tensors, on the devices of `own()`, the tensors of the receiving object."""
    here = own() if any(leaf.device != "cpu" for leaf in leaves_in(given)) else {}

    def put_in(value):
        if isinstance(value, Leaf):
            return value.of(tensors[value.path], here.get(value.path))
        if isinstance(value, dict):
            same = copy.copy(value)
            same.update((key, put_in(one)) for key, one in value.items())
            return same
        return type(value)(map(put_in, value)) if type(value) in (list, tuple) else value

    with torch.no_grad():
        return put_in(given)


def leaves_in(value: Any) -> Any:
    if isinstance(value, Leaf):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from leaves_in(one)
    elif type(value) in (list, tuple):
        for one in value:
            yield from leaves_in(one)


def by_name(tensors: dict[str, torch.Tensor]) -> Any:
    """Returns `{name: {place: tensor}}` of the values among tensors."""
    found = {}
    for path, tensor in tensors.items():
        name, mark, place = path.partition(MARK)
        if mark:
            found.setdefault(name, {})[place] = tensor
    return found


class Copy:
    """Copy of an object's state, which can be restored any number of times."""

    def __init__(self, what: Any, parts: Any = None) -> None:
        given, tensors = parts or apart(what)
        self.what, self.given = what, pickle.dumps(given, 4)
        self.tensors = {place: one.clone() for place, one in tensors.items()}

    def check(self) -> None:
        """Does nothing: the copy can always be restored."""

    def put_back(self) -> None:
        give_back(self.what, pickle.loads(self.given), {place: one.clone() for place, one in self.tensors.items()})
