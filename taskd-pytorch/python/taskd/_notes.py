"""What a forward and backward pass changes, noted when a step begins and put back when it is done again: random numbers,
buffers (BatchNorm's), gradient scalers, gradients, modes of modules, values of optimizers' groups, and what a program registers
besides (`_noted`). Parameters and optimizers' tensors it never touches: they change in the commit window. Whether they have changed
ahead of it is seen here, and such a step is not done again.

A buffer that did not change since the last note is not copied again.
"""

import copy

import torch

from taskd import _buffers, _noted, _random, _state, _zeroing
from taskd._session import Refused


class Noter:
    UNSEEN = "running_mean", "running_var"  # of BatchNorm: torch's kernels change them without giving them another version

    def __init__(self, state):
        self.state = state
        self.copies = {}  # path of a buffer: `Copied`
        self.zeroing = _zeroing.Zeroing()
        self.paths, self.places = [], []  # of the buffers that there were when the step began: where each is, as (a module's buffers, name)
        self.buffers_noted = []  # (buffer, copy) of each
        self.found, self.versions = [], []  # what was in these places when that was asked last
        self.unseen = set()  # paths of those that change without another version
        self.watched = {}  # path of a small one of these: the copy of it from then
        self.storages = {}  # id of a parameter: (itself, its address, what holds its values there)
        self.keeps_storages = True
        self.unusual = None  # what buffer cannot be copied, and why
        self.others = _noted.Others(state)

    def note(self):
        self.zeroing.next_step()
        return Note(self)

    def looks_at_buffers(self):
        """Whether all that are known can be copied is known from here on."""
        for path, one in self.state.buffers():
            self.copy_of(path, one)

    def buffers(self):
        """`(path, buffer)` of those that there were when the step began, as they are now: a program may have put others in their places."""
        found = [held[name] if name in held else None for held, name in self.places]
        return [(path, one) for path, one in zip(self.paths, found) if one is not None]

    def changed(self):
        """Whether buffers have changed since this was asked last, or since the step began."""
        return bool(self.changes())

    def changes(self):
        """Paths of those that have."""
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

    def changes_unseen(self, found):
        for path, then in self.watched.items():
            if found[path] is not None and not _buffers.is_same(found[path], then):
                self.watched[path] = found[path].detach().clone()
                yield path

    def changes_late(self):
        """Paths of buffers that have changed since that was asked last, and of those of which nobody can tell."""
        return self.changes() | {path for path in self.unseen if path not in self.watched}

    def begin_looks(self):
        """What is in the places of buffers now is what they have when the step begins."""
        self.found = [one for one, _ in self.buffers_noted]
        self.versions = _buffers.versions_of(self.found)
        self.watched = {path: self.copies[path].copy for path in self.unseen if self.copies[path].is_small}

    def copy_of(self, path, buffer):
        """Its copy; None where it cannot be copied."""
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

    def mark_of(self, parameter):
        """`(version, storage)` by which it is seen that a parameter has changed. None and None: FSDP moves it with every pass."""
        if type(parameter) is not torch.nn.Parameter:  # one that is not initialized has no address, and what others do is not known
            return (None, None) if _state.is_shard(parameter) else (parameter._version, None)
        if "_fsdp_flattened" in parameter.__dict__:
            return None, None
        return parameter._version, self.storage_of(parameter) if self.keeps_storages else None

    def storage_of(self, parameter):
        """Its address, and what holds the values there though the program may have it use others."""
        known = self.storages.get(id(parameter))
        if known is None or known[0] is not parameter or known[1] != parameter.data_ptr():
            known = self.storages[id(parameter)] = (parameter, parameter.data_ptr(), parameter.detach())
        return known


class Note:
    def __init__(self, noter):
        self.noter = noter
        self.random = _random.state()
        self.buffers, self.parts, self.parameters, self.grads, self.scalers = [], [], [], [], []
        self.known, self.known_grads = set(), set()  # ids
        self.why_not = None  # the step cannot be done again: it has changed parameters ahead of its commit window
        noter.paths, noter.places, noter.unseen, noter.buffers_noted = [], [], set(), self.buffers
        self.scalers_are_found()
        self.others = noter.others.note()
        self.optimizers = [(one.param_groups, values_of(one.param_groups)) for one in noter.state.optimizers()]
        for groups, _ in self.optimizers:
            is_zeroed = _zeroing.has(noter.zeroing.predicted, groups)
            for group in groups:
                self.note_parameters(group["params"])
                self.note_grads(groups, group["params"], is_zeroed)
        self.modules_are_found(not self.optimizers)

    def note_parameters(self, parameters):
        known, noter = self.known, self.noter
        for one in parameters:
            if id(one) not in known:
                known.add(id(one))
                self.parameters.append((one, one.requires_grad, *noter.mark_of(one)))

    def note_grads(self, groups, parameters, is_zeroed=False):
        """Those that the step is known to zero ahead of its first pass are not copied."""
        known = self.known_grads
        for parameter in parameters:
            grad = parameter.grad
            if id(parameter) not in known and (grad is None or not is_zeroed):
                known.add(id(parameter))
                self.grads.append((groups, parameter, None if grad is None else grad.detach().clone()))

    def grads_are_wanted(self, unzeroed):
        """Ahead of the first pass: these were not zeroed, other than in the step before."""
        for groups in unzeroed:
            for group in groups:
                self.note_grads(groups, group["params"])

    def scalers_are_found(self):
        """Notes those that are known by now. The program's first use of one comes ahead of what changes its scale."""
        known = {id(one.scaler) for one in self.scalers}
        found = [one for one in self.noter.state.named.values() if _noted.is_scaler(one) and id(one) not in known]
        self.scalers += [Scaler(one) for one in found]

    def modules_are_found(self, with_grads):
        """Notes what is known by now and was not before: the program uses it for the first time."""
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

    def note_part(self, name, path, part, with_grads):
        if id(part) in self.known:
            return
        self.known.add(id(part))
        buffers = part._buffers
        self.parts.append((part, part.training, dict(buffers) if buffers else {}))
        if path is None:  # what is around the module that has all
            return
        for last, one in buffers.items() if buffers else ():
            if one is not None and id(one) not in self.known:
                self.note_buffer("%s/%s%s%s" % (name, path, "." if path else "", last), buffers, last, one)
        parameters = [one for one in part._parameters.values() if one is not None] if part._parameters else ()
        self.note_parameters(parameters)
        if with_grads:
            self.note_grads(None, parameters)

    def note_buffer(self, path, buffers, name, one):
        copied = self.noter.copy_of(path, one)
        if copied is not None:
            self.known.add(id(one))
            self.noter.paths.append(path)
            self.noter.places.append((buffers, name))
            self.buffers.append((one, copied))

    def changed_parameter(self):
        """A parameter that is not what it was when the step began; None where all are. Those that are as they were have cost no look at
        their values."""
        for one, _, version, storage in self.parameters:
            if version is not None and one._version != version:
                return one
            if storage is not None and one.data_ptr() != storage[1] and not _buffers.is_same(one, storage[2]):
                return one
        return None

    def parameters_are_right(self):
        """They are what the step begins with: they were copied here, or taken back what a window had done."""
        self.parameters = [(one, flag, *self.noter.mark_of(one)) for one, flag, _, _ in self.parameters]

    def put_back(self):
        for other in self.others:  # before anything is changed
            other.check()
        for part, _, buffers in self.parts:
            check_caches(part, buffers)
        for other in self.others:
            other.put_back()
        _random.restore(self.random)
        self.put_back_modes()
        self.put_back_buffers()
        with torch.no_grad():
            for groups, values in self.optimizers:
                put_back_values(groups, values)
            for _, parameter, grad in self.grads:
                put_back_grad(parameter, grad)
        for scaler in self.scalers:
            scaler.put_back()
        for model, syncs in self.ddp:  # whether its next forward pass copies buffers, which is an operation of all ranks
            model.require_forward_param_sync = syncs
        self.noter.begin_looks()
        self.noter.zeroing.begin()

    def put_back_buffers(self):
        with torch.no_grad():
            for buffer, copied in self.buffers:
                _buffers.put(buffer, copied)

    def put_back_modes(self):
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


def put_back_grad(parameter, grad):
    now = parameter.grad
    if grad is None:
        parameter.grad = None
    elif now is None or now.shape != grad.shape or now.layout != grad.layout:
        parameter.grad = grad.clone()  # the program adds to it, and the step may be done once more
    else:
        now.copy_(grad)


def check_caches(part, buffers):
    """What is no part of a module's state_dict and of another size than before may be a cache that goes with a number which no step puts
    back: a table of positions, and how many it has."""
    if not part._buffers:
        return
    derived = getattr(part, "_non_persistent_buffers_set", ())
    for name in derived:
        now, then = part._buffers[name] if name in part._buffers else None, buffers.get(name)
        if now is not then and (now is None or then is None or now.shape != then.shape):
            why = "a step has made a buffer %s of %s that no state_dict has, in place of another or of none; restart all ranks"
            raise Refused(why % (name, type(part).__name__))


def values_of(groups):
    """Of each of an optimizer's groups what it has besides parameters."""
    return [(group, {key: value_of(one) for key, one in group.items() if key != "params"}) for group in groups]


def value_of(one):
    if isinstance(one, torch.Tensor):
        return one.detach().clone()
    return copy.copy(one) if isinstance(one, (list, dict)) else one


def put_back_values(groups, values):
    if len(groups) != len(values):
        groups[:] = [group for group, _ in values]
    for group, given in values:
        for key, one in given.items():
            now = group.get(key)
            if isinstance(one, torch.Tensor) and isinstance(now, torch.Tensor):
                _buffers.put(now, one)
            else:
                group[key] = value_of(one)


def is_ddp(what):
    return hasattr(what, "require_forward_param_sync")


class Scaler:
    """A gradient scaler's state, without a look at its values: that would make the program wait for its device."""

    TENSORS = ("_scale", "_growth_tracker")

    def __init__(self, scaler):
        self.scaler = scaler
        self.copies = {name: one.clone() for name in self.TENSORS for one in [getattr(scaler, name)] if one is not None}

    def put_back(self):
        for name, copied in self.copies.items():
            getattr(self.scaler, name).copy_(copied)
        self.scaler._per_optimizer_states.clear()
