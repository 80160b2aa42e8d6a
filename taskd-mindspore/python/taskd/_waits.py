"""Where a program waits for what it has computed: MindSpore runs behind it, in order."""

from taskd import _collectives, _hooks

WAITS = ("asnumpy", "item", "tolist", "__bool__", "__int__", "__float__", "__index__")


def install(module, native):
    """`module` is mindspore.common.tensor."""
    for name in WAITS:
        function = vars(module.Tensor).get(name)
        if function is not None:
            setattr(module.Tensor, name, with_end(function))


def with_end(function):
    def waited(*args, **kwargs):
        result = function(*args, **kwargs)
        if _collectives.open_ranges:
            _collectives.end_open()
        return result

    return _hooks.in_place_of(function, waited)
