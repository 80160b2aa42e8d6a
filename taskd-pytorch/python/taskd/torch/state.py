"""State of a program, registered or found: tensors that are copied in place, and the rest as bytes.

Objects that are not registered are found: modules in DDP at their forward pass, optimizers, schedulers and gradient
scalers at their step. Each is flattened into *leaves*, `path: tensor`, which have the same paths on all ranks with the
same state. Leaves of modules and optimizers are the objects' own tensors. Leaves of all other objects, and optimizer
state that belongs to no parameter, are values that the object returns and loads as a whole (`state_dicts`). A trained
parameter that is in no named module is a leaf of its optimizer.
"""

from __future__ import annotations

import hashlib
import sys
import weakref

import torch

from taskd import _codec, _link
from taskd._session import Refused
from taskd.torch import fsdp, registry, state_dicts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Generator

PLAIN_KEYS = str, int, float, bool, bytes, type(None), torch.dtype, torch.device  # keys that are equal on all ranks
LOOSE = "param."  # in the path of a parameter among an optimizer's leaves, before its place in the groups


class State:
    def __init__(self) -> None:
        self.named = {}  # registered and found objects by name, in order of arrival
        self.found = []  # names of found objects
        self.parts = {}  # id: a weak reference to a part of a named object

    def register(self, state: Any) -> None:
        for name, what in (state or {}).items():
            if is_state(what):
                self.named[str(name)] = what
            else:
                names = (name, type(what).__name__)
                _link.say(
                    "%s is no state that can be recovered: a %s without state_dict and "
                    "load_state_dict; give it both" % names
                )

    def find(self, name: str, what: Any) -> bool:
        """Adds an object that the program uses. Returns True if it was not known before."""
        inner = getattr(what, "module", what)
        if id(what) in self.parts and self.parts[id(what)]() is what:
            return False
        for known in self.named.values():
            if known is what or getattr(known, "module", known) is inner or contains(known, what):
                return False
        if name == "scheduler" and any(includes(known, what) for known in self.named.values()):
            self.parts[id(what)] = weakref.ref(what)
            return False
        number = sum(one.partition("#")[0] == name for one in self.named)
        name = "%s#%d" % (name, number + 1) if number else name
        self.named[name] = what
        self.found.append(name)
        return True

    def found_places(self) -> Any:
        """Returns what another rank needs to name found objects alike: the index of each among all objects made."""
        return {
            "places": {name: registry.place_of(self.named[name]) for name in self.found},
            "types": registry.all_types(),
        }

    def names_as(self, found: Any) -> None:
        """Gives found objects the names that another rank has for them, whether they were used here or not. An object
        that only this rank has found, the other rank has not used yet: it is found again when it is used."""
        own = {name: self.named.pop(name) for name in self.found}
        self.found = []
        for name, place in found["places"].items():
            what = registry.at(place, found["types"]) if place is not None else None
            if what is None and name in own and registry.place_of(own[name]) is None:
                what = own[name]  # made by each rank, inside the loop or in a way that is not recorded
            if what is not None and name not in self.named:
                self.named[name] = what
                self.found.append(name)

    def modules(self) -> Any:
        return [one for one in self.named.values() if isinstance(one, torch.nn.Module)]

    def buffers(self) -> Any:
        """Yields `(path, buffer)` of all modules, which a forward pass changes."""
        for name, what in self.named.items():
            if isinstance(what, torch.nn.Module):
                for path, one in inner_of(what).named_buffers():
                    yield "%s/%s" % (name, path), one

    def optimizers(self) -> Any:
        return [one for one in self.named.values() if is_optimizer(one)]

    def leaves(self) -> Any:
        """Returns all tensors, by path. A caller that reads values by address has to hold the tensors meanwhile."""
        found = self.in_place()
        for name, what in self.named.items():
            _, tensors = apart(inner_of(what))
            found.update((name + state_dicts.MARK + place, one) for place, one in tensors.items())
        return found

    def in_place(self) -> Any:
        """Returns the tensors that are filled in place, by path: all except values."""
        found = {}
        for name, what in self.named.items():
            leaves_of(name, what, found)
        found.update((path, local(one)) for path, one in self.loose().items())
        return found

    def loose(self) -> Any:
        """Returns the parameters that optimizers train and that are in no other named object, by path."""
        known = {id(one) for what in self.named.values() if not is_optimizer(what) for one in parameters_of(what)}
        known.update(id(what) for what in self.named.values() if isinstance(what, torch.Tensor))
        found = {}
        for name, what in self.named.items():
            for at, group in enumerate(inner_of(what).param_groups if is_optimizer(what) else ()):
                for number, one in enumerate(group["params"]):
                    if id(one) not in known:
                        known.add(id(one))
                        found["%s/%s%d.%d" % (name, LOOSE, at, number)] = one
        return found

    def parameters(self) -> Any:
        """Returns all parameters that may be trained, by path."""
        found = {}
        for name, what in self.named.items():
            if isinstance(what, torch.nn.Module):
                found.update(("%s/%s" % (name, path), one) for path, one in inner_of(what).named_parameters())
        found.update(self.loose())
        return found

    def groups(self) -> Any:
        """Returns the number of parameters in each group of each optimizer, by name."""
        found = {name: inner_of(what).param_groups for name, what in self.named.items() if is_optimizer(what)}
        return {name: [len(group["params"]) for group in groups] for name, groups in found.items()}

    def may_lack(self, path: str) -> bool:
        """Returns True if a tensor exists only after a step of its optimizer."""
        name, _, rest = path.partition("/")
        return is_optimizer(inner_of(self.named.get(name))) and not rest.startswith(LOOSE)

    def rest(self) -> bytes:
        """Returns state other than tensors, as bytes. Raises Refused if other ranks cannot know an optimizer's key."""
        for name, what in self.named.items():
            for key in keys_in(others_of(inner_of(what))) if is_optimizer(what) else ():
                if not is_plain_key(key):
                    why = (
                        "%s keeps a state by a key that is a %s, which only this process has: it "
                        "is neither copied nor put back"
                    )
                    raise Refused(why % (name, type(key).__name__))
        return _codec.encode({name: rest_of(what) for name, what in self.named.items()})

    def not_encodable(self, besides: Any) -> Any:
        """Returns the reasons why the rest of named objects cannot be sent to another process, by name."""
        found = {}
        for name, what in self.named.items():
            try:
                if name not in besides:
                    _codec.encode(rest_of(what))
            except Exception as error:  # the program's own `state_dict` may raise anything
                found[name] = "%s: %s" % (type(error).__name__, error)
        return found

    def take_rest(self, data: Any, tensors: dict[str, torch.Tensor]) -> None:
        """Loads all that is not filled in place; the values are taken from `tensors`."""
        values = state_dicts.by_name(tensors)
        for name, rest in _codec.decode(data).items():
            take_rest_of(self.named[name], rest, values.get(name, {}))

    def unknown(self, data: Any) -> Any:
        """Returns the names that another rank's rest contains and this state does not."""
        return sorted(set(_codec.decode(data)) - set(self.named))

    def own(self, leaves: Any) -> set[str]:
        """Returns the paths of state that may be each rank's own. All other state, which is parameters and optimizer
        state of parameters, is the same on replicas."""
        plain = {
            name
            for name, what in self.named.items()
            if not isinstance(inner_of(what), (torch.nn.Module, torch.optim.Optimizer))
        }
        return {path for path, _ in self.buffers()} | {path for path in leaves if path.partition("/")[0] in plain}

    def replicated(self) -> Any:
        """Returns what replicas share at the start of a step: parameters, and optimizer state of parameters."""
        leaves = self.in_place()
        own, sharded = self.own(leaves), set(self.not_replicated())
        return {
            path: leaf for path, leaf in leaves.items() if path not in own and path.partition("/")[0] not in sharded
        }

    def trained(self) -> Any:
        """Yields the parameters that optimizers change; those of all modules if no optimizer is known yet."""
        for what in self.optimizers() or self.modules():
            yield from parameters_of(inner_of(what))

    def layout(self, leaves: Any) -> str:
        """Returns one checksum of the names, shapes and dtypes of all tensors that are filled in place."""
        digest = hashlib.sha256()
        for path, leaf in sorted(leaves.items()):
            if state_dicts.is_value(path):
                continue
            digest.update(("%s %s %s\n" % (path, tuple(leaf.shape), leaf.dtype)).encode())
        return digest.hexdigest()

    def not_replicated(self) -> Any:
        """Returns the names of objects of which no other rank has a copy."""
        replicas = {id(one) for module in self.modules() if fsdp.is_replica(module) for one in module.parameters()}
        return [name for name, what in self.named.items() if is_sharded(what, replicas)]


def contains(known: Any, what: Any) -> bool:
    """Returns True if a module is part of a known one, or an optimizer inside one (ZeroRedundancyOptimizer's)."""
    if isinstance(known, torch.nn.Module) and isinstance(what, torch.nn.Module):
        inner = getattr(what, "module", what)
        return any(part is inner for part in known.modules())
    if is_optimizer(known) and is_optimizer(what) and known.state is what.state:  # a wrapper, such as accelerate's
        return True
    return getattr(known, "optim", None) is what


def includes(known: Any, what: Any) -> bool:
    """Returns True if `known` includes the state of `what` in its own, as a scheduler does for the schedulers that it
    runs in sequence: if it calls `what.state_dict`."""
    if (
        isinstance(known, (torch.nn.Module, torch.Tensor))
        or is_optimizer(inner_of(known))
        or sys.getprofile() is not None
    ):
        return False
    seen = []

    def look(frame, event, _):
        if event == "call" and frame.f_code.co_name == "state_dict" and frame.f_code.co_argcount:
            seen.append(frame.f_locals.get(frame.f_code.co_varnames[0]) is what)

    sys.setprofile(look)
    try:
        known.state_dict()
    except Exception:
        return False  # its state is requested elsewhere, and the reason reported there
    finally:
        sys.setprofile(None)
    return any(seen)


def is_sharded(what: Any, replicas: Any) -> bool:
    """Returns True if a rank has only a part. `replicas`: ids of FSDP's parameters that each rank has completely."""
    if any(not fsdp.keeps_all(part) for part in fsdp.wrapped(what)):
        return True
    return is_zero(what) or any(is_shard(one) and id(one) not in replicas for one in parameters_of(what))


def is_zero(what: Any) -> bool:
    return type(what).__name__ == "ZeroRedundancyOptimizer"


def parameters_of(what: Any) -> Any:
    if isinstance(what, torch.nn.Module):
        return what.parameters()
    return (one for group in what.param_groups for one in group["params"]) if is_optimizer(what) else ()


def is_shard(parameter: torch.Tensor) -> bool:
    """Returns True for a shard of FSDP, old or new, or of tensor parallelism."""
    return type(parameter).__name__ in ("DTensor", "FlatParameter") or getattr(parameter, "_fsdp_flattened", False)


def is_state(what: Any) -> bool:
    return isinstance(what, torch.Tensor) or hasattr(what, "state_dict") and hasattr(what, "load_state_dict")


def is_optimizer(what: Any) -> bool:
    return isinstance(what, torch.optim.Optimizer)


def inner_of(what: Any) -> Any:
    """Returns the object that holds the state, not its wrapper."""
    if type(what).__name__ == "DistributedDataParallel":
        return what.module
    if is_zero(what):
        return what.optim
    return what


def leaves_of(name: str, what: Any, found: Any) -> None:
    what = inner_of(what)
    if isinstance(what, torch.Tensor):
        found[name] = what
    elif isinstance(what, torch.nn.Module):
        for path, leaf in list(what.named_parameters()) + list(what.named_buffers()):
            found["%s/%s" % (name, path)] = local(leaf)
    elif is_optimizer(what):
        for path, state in states_of(what):
            for key in state:
                if isinstance(state[key], torch.Tensor):
                    found["%s/%s.%s" % (name, path, key)] = local(state[key])
        for at, group in enumerate(what.param_groups):
            for key, value in group.items():
                if isinstance(value, torch.Tensor):
                    found["%s/group.%d.%s" % (name, at, key)] = value


def states_of(optimizer: torch.optim.Optimizer) -> Generator[tuple[str, Any], Any, None]:
    """Yields `(path, state)` of each parameter in the order of the groups."""
    for at, group in enumerate(optimizer.param_groups):
        for number, parameter in enumerate(group["params"]):
            if parameter in optimizer.state:
                yield "%d.%d" % (at, number), optimizer.state[parameter]


def local(leaf: Any) -> Any:
    return getattr(leaf, "_local_tensor", leaf).detach()


def rest_of(what: Any) -> Any:
    what = inner_of(what)
    if is_optimizer(what):
        groups = [
            {k: v for k, v in g.items() if k != "params" and not isinstance(v, torch.Tensor)} for g in what.param_groups
        ]
        states = {
            path: {k: v for k, v in state.items() if not isinstance(v, torch.Tensor)} for path, state in states_of(what)
        }
        return groups, states, apart(what)[0]
    return apart(what)[0]


def apart(what: Any) -> Any:
    """See `state_dicts.apart`."""
    if not is_optimizer(what):
        return state_dicts.apart(what)
    found = {}
    return state_dicts.take_out(
        "", {key: one for key, one in others_of(what).items() if is_plain_key(key)}, found
    ), found


def others_of(optimizer: torch.optim.Optimizer) -> Any:
    """Returns optimizer state that belongs to no parameter: torch has that in `optimizer.state`, too."""
    return {key: value for key, value in optimizer.state.items() if not isinstance(key, torch.Tensor)}


def keys_in(value: Any) -> Any:
    if isinstance(value, dict):
        yield from value
        value = value.values()
    elif type(value) not in (list, tuple):
        return
    for one in value:
        yield from keys_in(one)


def is_plain_key(key: Any) -> bool:
    """Returns True if a key is the same on every rank."""
    return all(map(is_plain_key, key)) if type(key) is tuple else type(key) in PLAIN_KEYS


def take_rest_of(what: Any, rest: Any, values: Any) -> None:
    what = inner_of(what)
    if is_optimizer(what):
        groups, states, *others = rest
        for group, given in zip(what.param_groups, groups):
            group.update(given)
        for at, group in enumerate(what.param_groups):
            for number, parameter in enumerate(group["params"]):
                given = states.get("%d.%d" % (at, number))
                if given is None:
                    what.state.pop(parameter, None)
                else:
                    what.state[parameter].update(given)
        for given in others:  # a checkpoint of an older version has none
            take_others(what, given, values)
    else:
        state_dicts.give_back(what, rest, values)


def take_others(optimizer: torch.optim.Optimizer, given: Any, values: Any) -> None:
    """Loads optimizer state that belongs to no parameter. It is not changed if there are no values: a joining rank gets
    it from another rank."""
    if any(leaf.path not in values for leaf in state_dicts.leaves_in(given)):
        return
    given = state_dicts.filled(given, values, lambda: apart(optimizer)[1])
    for key in [one for one in others_of(optimizer) if is_plain_key(one) and one not in given]:
        del optimizer.state[key]
    for key, value in given.items():
        here = optimizer.state.get(key)
        if isinstance(here, dict) and isinstance(value, dict):  # the optimizer may reference it elsewhere as well
            here.clear()
            here.update(value)
        else:
            optimizer.state[key] = value


def make_room(optimizer: torch.optim.Optimizer, path: str, like: Any, spare: Any) -> torch.Tensor:
    """Returns a new tensor for optimizer state that does not exist yet, of the kind that the sending rank has."""
    at, number, key = path.split(".", 2)
    if at == "group":  # a number when the optimizer was made, such as its rate
        group, (shape, dtype, device) = optimizer.param_groups[int(number)], like
        where = "cpu" if device == "cpu" or not group["params"] else group["params"][0].device
        group[key] = torch.empty(shape, dtype=dtype, device=where)
        return group[key]
    if path.startswith(LOOSE):
        raise Refused("there is no parameter %s in the groups of %s" % (path[len(LOOSE) :], type(optimizer).__name__))
    parameter = optimizer.param_groups[int(at)]["params"][int(number)]
    shape, dtype, device = like
    if hasattr(parameter, "_local_tensor") and tuple(local(parameter).shape) == tuple(shape):
        # an optimizer computes with the whole tensor, of which each rank has a part
        optimizer.state[parameter][key] = torch.empty_like(parameter.detach(), dtype=dtype)
        return local(optimizer.state[parameter][key])
    tensor = spare.get(parameter, {}).get(key)
    if tensor is None or tuple(tensor.shape) != tuple(shape) or tensor.dtype != dtype:
        tensor = torch.empty(shape, dtype=dtype, device="cpu" if device == "cpu" else parameter.device)
    optimizer.state[parameter][key] = tensor
    return tensor
