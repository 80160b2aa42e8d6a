"""What of torch's stands in values that one process hands to another (`_codec`): types, devices, shapes, and tensors.

`_codec` imports it when it meets such a value first, and that is all there is to do: a hook may be imported while torch is. A tensor that is more than its bytes, such as a sparse or quantized one, is torch's to write and to
read: as a file of weights alone, in which nothing can be run.
"""

import io

import torch

from taskd import _codec, _values

DTYPES = {str(one): one for one in vars(torch).values() if isinstance(one, torch.dtype)}


def leaf_apart(leaf):
    return [leaf.path, leaf.device, leaf.is_parameter, leaf.has_grad]


def leaf_together(given):
    leaf = object.__new__(_values.Leaf)
    leaf.path, leaf.device, leaf.is_parameter, leaf.has_grad = given
    return leaf


def saved(tensor):
    file = io.BytesIO()
    torch.save(tensor, file)
    return file.getvalue()


def loaded(data):
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


_codec.add_type("dtype", torch.dtype, str, DTYPES.__getitem__)
_codec.add_type("device", torch.device, str, torch.device)
_codec.add_type("size", torch.Size, list, torch.Size)
_codec.add_type("leaf", _values.Leaf, leaf_apart, leaf_together)
_codec.add_type("tensor", torch.Tensor, saved, loaded)
_codec.add_type("parameter", torch.nn.Parameter, saved, loaded)
