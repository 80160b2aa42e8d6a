"""torch's types in values that one process sends to another (`_codec`): dtypes, devices, shapes, and tensors.

`_codec` imports this module at the first such value, and the import registers the types: a hook may be imported while
torch is. torch itself writes and reads a tensor that is more than its bytes, such as a sparse or quantized one: as a
file that contains only weights, from which no code can be run.
"""

from __future__ import annotations

import io

import torch

from taskd import _codec
from taskd.torch import state_dicts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DTYPES = {str(one): one for one in vars(torch).values() if isinstance(one, torch.dtype)}
# quantized tensors are more than their bytes
PLAIN = {name: one for name, one in DTYPES.items() if not name.startswith("torch.q")}


def leaf_apart(leaf: Any) -> list[Any]:
    return [leaf.path, leaf.device, leaf.is_parameter, leaf.has_grad]


def leaf_together(given: Any) -> Any:
    leaf = object.__new__(state_dicts.Leaf)
    leaf.path, leaf.device, leaf.is_parameter, leaf.has_grad = given
    return leaf


def apart(tensor: torch.Tensor) -> Any:
    """Returns the bytes of most tensors, in rows. `torch.save` takes a millisecond for each, `torch.load` three."""
    is_plain = tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_complex()
    if not is_plain:
        file = io.BytesIO()
        torch.save(tensor, file)
        return [file.getvalue()]
    flat = tensor.detach().cpu().resolve_neg().contiguous().reshape(-1)
    return [str(tensor.dtype), list(tensor.shape), tensor.requires_grad, flat.view(torch.uint8).numpy().tobytes()]


def together(given: Any) -> torch.Tensor:
    if len(given) == 1:
        return torch.load(io.BytesIO(given[0]), map_location="cpu", weights_only=True)
    name, shape, requires_grad, data = given
    dtype, length = PLAIN[name], torch.Size(shape).numel()
    if type(data) is not bytes or min(shape, default=0) < 0 or len(data) != length * dtype.itemsize:
        raise _codec.Malformed("no tensor")
    tensor = torch.frombuffer(bytearray(data), dtype=dtype) if length else torch.empty(0, dtype=dtype)
    return tensor.reshape(shape).requires_grad_(requires_grad is True)


def parameter(given: Any) -> Any:
    tensor = together(given)
    return tensor if len(given) == 1 else torch.nn.Parameter(tensor.detach(), requires_grad=tensor.requires_grad)


_codec.add_type("dtype", torch.dtype, str, DTYPES.__getitem__)
_codec.add_type("device", torch.device, str, torch.device)
_codec.add_type("size", torch.Size, list, torch.Size)
_codec.add_type("leaf", state_dicts.Leaf, leaf_apart, leaf_together)
_codec.add_type("tensor", torch.Tensor, apart, together)
_codec.add_type("parameter", torch.nn.Parameter, apart, parameter)
