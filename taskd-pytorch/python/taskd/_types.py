"""What of torch's stands in values that one process hands to another (`_codec`): types, devices, shapes, and tensors.

`_codec` imports it when it meets such a value first, and that is all there is to do: a hook may be imported while torch is. A tensor that
is more than its bytes, such as a sparse or quantized one, is torch's to write and to read: as a file of weights alone, in which nothing
can be run.
"""

import io

import torch

from taskd import _codec, _values

DTYPES = {str(one): one for one in vars(torch).values() if isinstance(one, torch.dtype)}
PLAIN = {name: one for name, one in DTYPES.items() if not name.startswith("torch.q")}  # quantized ones are more than their bytes


def leaf_apart(leaf):
    return [leaf.path, leaf.device, leaf.is_parameter, leaf.has_grad]


def leaf_together(given):
    leaf = object.__new__(_values.Leaf)
    leaf.path, leaf.device, leaf.is_parameter, leaf.has_grad = given
    return leaf


def apart(tensor):
    """What most tensors are: bytes, in rows. `torch.save` takes a millisecond for each, and `torch.load` three."""
    is_plain = tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_complex()
    if not is_plain:
        file = io.BytesIO()
        torch.save(tensor, file)
        return [file.getvalue()]
    flat = tensor.detach().cpu().resolve_neg().contiguous().reshape(-1)
    return [str(tensor.dtype), list(tensor.shape), tensor.requires_grad, flat.view(torch.uint8).numpy().tobytes()]


def together(given):
    if len(given) == 1:
        return torch.load(io.BytesIO(given[0]), map_location="cpu", weights_only=True)
    name, shape, requires_grad, data = given
    dtype, length = PLAIN[name], torch.Size(shape).numel()
    if type(data) is not bytes or min(shape, default=0) < 0 or len(data) != length * dtype.itemsize:
        raise _codec.Malformed("no tensor")
    tensor = torch.frombuffer(bytearray(data), dtype=dtype) if length else torch.empty(0, dtype=dtype)
    return tensor.reshape(shape).requires_grad_(requires_grad is True)


def parameter(given):
    tensor = together(given)
    return tensor if len(given) == 1 else torch.nn.Parameter(tensor.detach(), requires_grad=tensor.requires_grad)


_codec.add_type("dtype", torch.dtype, str, DTYPES.__getitem__)
_codec.add_type("device", torch.device, str, torch.device)
_codec.add_type("size", torch.Size, list, torch.Size)
_codec.add_type("leaf", _values.Leaf, leaf_apart, leaf_together)
_codec.add_type("tensor", torch.Tensor, apart, together)
_codec.add_type("parameter", torch.nn.Parameter, apart, parameter)
