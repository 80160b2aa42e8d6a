"""Ends open collectives when the program waits for a result: MindSpore executes asynchronously, in order."""

from __future__ import annotations

from taskd import _hooks
from taskd.mindspore import collectives

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

WAITS = ("asnumpy", "item", "tolist", "__bool__", "__int__", "__float__", "__index__")


def install(module: Any, native: Any) -> None:
    """Wraps the functions that wait. `module` is mindspore.common.tensor."""
    for name in WAITS:
        function = vars(module.Tensor).get(name)
        if function is not None:
            setattr(module.Tensor, name, with_end(function))


def with_end(function: Callable[..., Any]) -> Any:
    def waited(*args, **kwargs):
        result = function(*args, **kwargs)
        if collectives.open_ranges:
            collectives.end_open()
        return result

    return _hooks.in_place_of(function, waited)
