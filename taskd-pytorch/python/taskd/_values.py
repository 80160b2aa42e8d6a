"""What an object gives of its state and takes back as a whole: `state_dict` and `load_state_dict`, the extra state of modules.

The tensors in it may be copies that nobody else holds. So whoever reads them keeps them, what is taken comes into memory of its
own, and the object gets it by the call that it has for that. It never fills them in place, and never decides whose values are right.
"""

import copy
import pickle

import torch

MARK = "/=/"  # in the path of a tensor among values, between the object's name and the place in what it gives


def is_value(path):
    return MARK in path


class Leaf:
    """Stands where a tensor was, and makes one of the same kind."""

    def __init__(self, path, tensor):
        self.path, self.device = path, tensor.device.type
        self.is_parameter = isinstance(tensor, torch.nn.Parameter)
        self.has_grad = tensor.requires_grad and tensor.is_leaf

    def of(self, tensor, own):
        """The tensor in its place, where the object has its `own`."""
        tensor = tensor.to(self.device if own is None else own.device)
        if self.is_parameter:
            return torch.nn.Parameter(tensor, self.has_grad)
        return tensor.requires_grad_() if self.has_grad else tensor


def extra_of(module):
    """`{path: module}` of the parts of a module that have extra state."""
    plain = torch.nn.Module
    return {
        path: part
        for path, part in module.named_modules()
        if type(part).get_extra_state is not plain.get_extra_state and type(part).set_extra_state is not plain.set_extra_state
    }


def gives(what):
    """Whether it gives its state as a whole."""
    if isinstance(what, torch.nn.Module):
        return bool(extra_of(what))
    if isinstance(what, (torch.Tensor, torch.optim.Optimizer)):
        return False
    return hasattr(what, "state_dict") and hasattr(what, "load_state_dict")


def apart(what):
    """`(what it gives with a Leaf for each tensor, {place: tensor})`; None and nothing where it gives nothing."""
    if not gives(what):
        return None, {}
    if isinstance(what, torch.nn.Module):
        given = {path: part.get_extra_state() for path, part in extra_of(what).items()}
    else:
        given = what.state_dict()
    found = {}
    return take_out("", given, found), found


def take_out(path, value, found):
    if is_plain(value):
        while path in found:  # keys may look the same and be others: 1 and "1"
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


def is_plain(value):
    """Whether it is a tensor that is nothing but its bytes. All others are torch's to write (`_types`)."""
    is_usual = type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided
    return is_usual and not (value.is_quantized or value.is_conj() or value.is_neg())


def give_back(what, given, tensors):
    """Has it load what was taken `apart`, of itself or of another like it. It may keep the tensors."""
    if given is None:
        return
    given = filled(given, tensors, lambda: apart(what)[1])
    with torch.no_grad():
        if isinstance(what, torch.nn.Module):
            for path, value in given.items():
                what.get_submodule(path).set_extra_state(value)
        else:
            what.load_state_dict(given)
            if hasattr(what, "_per_optimizer_states"):  # a gradient scaler's, of the step that it was in
                what._per_optimizer_states.clear()


def filled(given, tensors, own):
    """What was taken apart, with these tensors in it; `own()` are those of who gets it, whose devices they come to."""
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


def leaves_in(value):
    if isinstance(value, Leaf):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from leaves_in(one)
    elif type(value) in (list, tuple):
        for one in value:
            yield from leaves_in(one)


def by_name(tensors):
    """`{name: {place: tensor}}` of the values among tensors."""
    found = {}
    for path, tensor in tensors.items():
        name, mark, place = path.partition(MARK)
        if mark:
            found.setdefault(name, {})[place] = tensor
    return found


class Copy:
    """What an object gave, to be given back as often as is wanted."""

    def __init__(self, what, parts=None):
        given, tensors = parts or apart(what)
        self.what, self.given = what, pickle.dumps(given, 4)
        self.tensors = {place: one.clone() for place, one in tensors.items()}

    def check(self):
        """That it can be put back: it always can."""

    def put_back(self):
        give_back(self.what, pickle.loads(self.given), {place: one.clone() for place, one in self.tensors.items()})
