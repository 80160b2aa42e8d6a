"""Snapshot of what a forward and backward pass changes, taken when a step begins and restored when the step is
repeated: random numbers, buffers (BatchNorm's), gradient scalers, gradients, modes of modules, values of optimizers'
groups, and other registered objects (`registered_snapshot`). Parameters and optimizers' tensors are not part of it:
they change in the commit window. A change before the window is detected here, and such a step is not repeated.

A buffer that has not changed since the last snapshot is not copied again.
"""

from __future__ import annotations

import copy

import torch

from taskd._session import Refused
from taskd.torch import buffers as _buffers
from taskd.torch import registered_snapshot, rng, zero_grad
from taskd.torch import state as _state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class SnapshotTaker:
    # of BatchNorm: torch's kernels change them without a new version
    UNSEEN = "running_mean", "running_var"

    def __init__(self, state: Any) -> None:
        self.state = state
        self.copies = {}  # path of a buffer: `Copied`
        self.zeroing = zero_grad.Zeroing()
        # of the buffers at the start of the step: path, and place as (a module's buffers, name)
        self.paths, self.places = [], []
        self.buffers_noted = []  # (buffer, copy) of each
        self.found, self.versions = [], []  # what was in these places at the last check
        self.unseen = set()  # paths of buffers that change without a new version
        self.watched = {}  # path of a small one of these: its copy of the last check
        self.storages = {}  # id of a parameter: (parameter, address, tensor with the values there)
        self.keeps_storages = True
        self.unusual = None  # a buffer that cannot be copied, and the reason
        self.others = registered_snapshot.Others(state)

    def note(self) -> Any:
        self.zeroing.next_step()
        return Note(self)

    def looks_at_buffers(self) -> None:
        """Checks whether all known buffers can be copied."""
        for path, one in self.state.buffers():
            self.copy_of(path, one)

    def buffers(self) -> Any:
        """Returns `(path, buffer)` of the buffers at the start of the step, as they are now: a program may have
        replaced them."""
        found = [held[name] if name in held else None for held, name in self.places]
        return [(path, one) for path, one in zip(self.paths, found) if one is not None]

    def changed(self) -> bool:
        """Returns True if buffers have changed since the last check, or since the step began."""
        return bool(self.changes())

    def changes(self) -> Any:
        """Returns the paths of buffers that have changed."""
        found = [held[name] if name in held else None for held, name in self.places]
        versions = _buffers.versions_of(found)
        was, self.found, self.versions = (self.found, self.versions), found, versions
        changed = set()
        if versions != was[1] or any(one is not other for one, other in zip(found, was[0])):
            before = zip(self.paths, found, versions, *was)
            changed.update(path for path, one, version, other, then in before if one is not other or version != then)
        if self.watched:
            changed.update(self.changes_unseen(dict(zip(self.paths, found))))
        return changed

    def changes_unseen(self, found: Any) -> Any:
        for path, then in self.watched.items():
            if found[path] is not None and not _buffers.is_same(found[path], then):
                self.watched[path] = found[path].detach().clone()
                yield path

    def changes_late(self) -> Any:
        """Returns the paths of buffers that have changed since the last check, or whose changes are not detected."""
        return self.changes() | {path for path in self.unseen if path not in self.watched}

    def begin_looks(self) -> None:
        """Makes the buffers of the step's start the reference for the next check."""
        self.found = [one for one, _ in self.buffers_noted]
        self.versions = _buffers.versions_of(self.found)
        self.watched = {path: self.copies[path].copy for path in self.unseen if self.copies[path].is_small}

    def copy_of(self, path: str, buffer: torch.Tensor) -> Any:
        """Returns the copy of a buffer; None if it cannot be copied."""
        if path not in self.copies:
            self.copies[path] = _buffers.Copied(path.endswith(self.UNSEEN))
        try:
            copied = self.copies[path].of(buffer)
            if self.copies[path].changes_unseen:
                self.unseen.add(path)
            return copied
        except Exception as error:
            if self.unusual is None:
                self.unusual = "%s (%s)" % (path, _buffers.kind_of(buffer, error))
            return None

    def mark_of(self, parameter: torch.Tensor) -> Any:
        """Returns `(version, storage)`, by which a change of a parameter is detected. `(None, None)`: FSDP moves the
        parameter with every pass."""
        # an uninitialized parameter has no address, and what other types do is not known
        if type(parameter) is not torch.nn.Parameter:
            return (None, None) if _state.is_shard(parameter) else (parameter._version, None)
        if "_fsdp_flattened" in parameter.__dict__:
            return None, None
        return parameter._version, self.storage_of(parameter) if self.keeps_storages else None

    def storage_of(self, parameter: torch.Tensor) -> Any:
        """Returns a parameter, its address, and a tensor that keeps these values if the program moves the parameter."""
        known = self.storages.get(id(parameter))
        if known is None or known[0] is not parameter or known[1] != parameter.data_ptr():
            known = self.storages[id(parameter)] = (parameter, parameter.data_ptr(), parameter.detach())
        return known


class Note:
    def __init__(self, noter: Any) -> None:
        self.noter = noter
        self.random = rng.state()
        self.buffers, self.parts, self.parameters, self.grads, self.scalers = [], [], [], [], []
        self.known, self.known_grads = set(), set()  # ids
        self.why_not = None  # why the step cannot be repeated: it has changed parameters before its commit window
        noter.paths, noter.places, noter.unseen, noter.buffers_noted = [], [], set(), self.buffers
        self.scalers_are_found()
        self.others = noter.others.note()
        self.optimizers = [(one.param_groups, values_of(one.param_groups)) for one in noter.state.optimizers()]
        for groups, _ in self.optimizers:
            is_zeroed = zero_grad.has(noter.zeroing.predicted, groups)
            for group in groups:
                self.note_parameters(group["params"])
                self.note_grads(groups, group["params"], is_zeroed)
        self.modules_are_found(not self.optimizers)

    def note_parameters(self, parameters: Any) -> None:
        known, noter = self.known, self.noter
        for one in parameters:
            if id(one) not in known:
                known.add(id(one))
                self.parameters.append((one, one.requires_grad, *noter.mark_of(one)))

    def note_grads(self, groups: Any, parameters: Any, is_zeroed: bool = False) -> None:
        """Copies gradients, except those that the step is known to zero before its first pass."""
        known = self.known_grads
        for parameter in parameters:
            grad = parameter.grad
            if id(parameter) not in known and (grad is None or not is_zeroed):
                known.add(id(parameter))
                self.grads.append((groups, parameter, None if grad is None else grad.detach().clone()))

    def grads_are_wanted(self, unzeroed: Any) -> None:
        """Called before the first pass, with groups that were not zeroed, other than in the step before."""
        for groups in unzeroed:
            for group in groups:
                self.note_grads(groups, group["params"])

    def scalers_are_found(self) -> None:
        """Copies the scalers known by now. The program's first use of a scaler comes before changes of its scale."""
        known = {id(one.scaler) for one in self.scalers}
        found = [
            one
            for one in self.noter.state.named.values()
            if registered_snapshot.is_scaler(one) and id(one) not in known
        ]
        self.scalers += [Scaler(one) for one in found]

    def modules_are_found(self, with_grads: Any) -> None:
        """Adds modules that were not known before: the program uses them for the first time."""
        state = self.noter.state
        for name, what in state.named.items():
            if isinstance(what, torch.nn.Module):
                inner = _state.inner_of(what)
                if inner is not what:
                    self.note_part(name, None, what, False)
                for path, part in inner.named_modules():
                    self.note_part(name, path, part, with_grads)
        self.noter.begin_looks()
        self.ddp = [(one, one.require_forward_param_sync) for one in state.modules() if is_ddp(one)]

    def note_part(self, name: str, path: str | None, part: Any, with_grads: Any) -> None:
        if id(part) in self.known:
            return
        self.known.add(id(part))
        buffers = part._buffers
        self.parts.append((part, part.training, dict(buffers) if buffers else {}))
        if path is None:  # a wrapper of the module with all buffers
            return
        for last, one in buffers.items() if buffers else ():
            if one is not None and id(one) not in self.known:
                self.note_buffer("%s/%s%s%s" % (name, path, "." if path else "", last), buffers, last, one)
        parameters = [one for one in part._parameters.values() if one is not None] if part._parameters else ()
        self.note_parameters(parameters)
        if with_grads:
            self.note_grads(None, parameters)

    def note_buffer(self, path: str, buffers: Any, name: str, one: Any) -> None:
        copied = self.noter.copy_of(path, one)
        if copied is not None:
            self.known.add(id(one))
            self.noter.paths.append(path)
            self.noter.places.append((buffers, name))
            self.buffers.append((one, copied))

    def changed_parameter(self) -> Any:
        """Returns a parameter that has changed since the step began; None if there is none. The values of unchanged
        parameters are not read."""
        for one, _, version, storage in self.parameters:
            if version is not None and one._version != version:
                return one
            if storage is not None and one.data_ptr() != storage[1] and not _buffers.is_same(one, storage[2]):
                return one
        return None

    def parameters_are_right(self) -> None:
        """Takes the parameters as those of the step's start: they were copied here, or a window was undone."""
        self.parameters = [(one, flag, *self.noter.mark_of(one)) for one, flag, _, _ in self.parameters]

    def put_back(self) -> None:
        for other in self.others:  # before anything is changed
            other.check()
        for part, _, buffers in self.parts:
            check_caches(part, buffers)
        for other in self.others:
            other.put_back()
        rng.restore(self.random)
        self.put_back_modes()
        self.put_back_buffers()
        with torch.no_grad():
            for groups, values in self.optimizers:
                put_back_values(groups, values)
            for _, parameter, grad in self.grads:
                put_back_grad(parameter, grad)
        for scaler in self.scalers:
            scaler.put_back()
        # True if its next forward pass copies buffers, which is an operation of all ranks
        for model, syncs in self.ddp:
            model.require_forward_param_sync = syncs
        self.noter.begin_looks()
        self.noter.zeroing.begin()

    def put_back_buffers(self) -> None:
        with torch.no_grad():
            for buffer, copied in self.buffers:
                _buffers.put(buffer, copied)

    def put_back_modes(self) -> None:
        for part, is_training, buffers in self.parts:
            if part.training != is_training:
                part.training = is_training
            for name in [one for one in part._buffers if one not in buffers] if part._buffers else ():
                del part._buffers[name]
            for name, one in buffers.items():
                if name not in part._buffers or part._buffers[name] is not one:
                    part._buffers[name] = one
        for parameter, flag, _, _ in self.parameters:
            if parameter.requires_grad != flag:
                parameter.requires_grad_(flag)


def put_back_grad(parameter: torch.Tensor, grad: torch.Tensor) -> None:
    now = parameter.grad
    if grad is None:
        parameter.grad = None
    elif now is None or now.shape != grad.shape or now.layout != grad.layout:
        parameter.grad = grad.clone()  # the program adds to it, and the step may be repeated again
    else:
        now.copy_(grad)


def check_caches(part: Any, buffers: Any) -> None:
    """Raises Refused if a module's buffer that is not in its state_dict has another size than before. It may be a cache
    that belongs to a number which no step restores: a table of positions, and its length."""
    if not part._buffers:
        return
    derived = getattr(part, "_non_persistent_buffers_set", ())
    for name in derived:
        now, then = part._buffers[name] if name in part._buffers else None, buffers.get(name)
        if now is not then and (now is None or then is None or now.shape != then.shape):
            why = (
                "a step has made a buffer %s of %s that no state_dict has, in place of another or "
                "of none; restart all ranks"
            )
            raise Refused(why % (name, type(part).__name__))


def values_of(groups: Any) -> Any:
    """Returns the values of each of an optimizer's groups, without parameters."""
    return [(group, {key: value_of(one) for key, one in group.items() if key != "params"}) for group in groups]


def value_of(one: Any) -> Any:
    if isinstance(one, torch.Tensor):
        return one.detach().clone()
    return copy.copy(one) if isinstance(one, (list, dict)) else one


def put_back_values(groups: Any, values: Any) -> None:
    if len(groups) != len(values):
        groups[:] = [group for group, _ in values]
    for group, given in values:
        for key, one in given.items():
            now = group.get(key)
            if isinstance(one, torch.Tensor) and isinstance(now, torch.Tensor):
                _buffers.put(now, one)
            else:
                group[key] = value_of(one)


def is_ddp(what: Any) -> bool:
    return hasattr(what, "require_forward_param_sync")


class Scaler:
    """Copy of a gradient scaler's state. The values are not read: the program would wait for the device."""

    TENSORS = ("_scale", "_growth_tracker")

    def __init__(self, scaler: Any) -> None:
        self.scaler = scaler
        self.copies = {name: one.clone() for name in self.TENSORS for one in [getattr(scaler, name)] if one is not None}

    def put_back(self) -> None:
        for name, copied in self.copies.items():
            getattr(self.scaler, name).copy_(copied)
        self.scaler._per_optimizer_states.clear()
