"""What a rank is handed: the batches of a step that is done again, and the state and the place in the data of another
rank.

Each scenario but the last is one process. The session's link and its lifeline's page are doubles that say so, and so is
the store through which one engine gives another one its state; the loop, its directives, the engine and the copy are
the real ones.
"""

import collections
import dataclasses
import datetime
import importlib
import itertools
import json
import os
import sys
import threading
import types

os.environ.setdefault("RANK", "0")
os.environ.setdefault("WORLD_SIZE", "2")

import numpy
import programs
import torch
import torch.distributed
from torch.utils.data import BatchSampler, DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from taskd import _attempt, _batches, _codec, _link, _phases, _session
from taskd.torch import abort_points, digest, engine as _engine, registry
from taskd.torch.data import loader as _loader
from taskd._aborted import StepAborted

os.environ["TASKD_SECRET"] = "5a" * 32

STEPS, FAILS_AT = 6, 3
IDS = itertools.count(1)


class DoubleOfLink:
    is_a_stand_in = is_greeted = True
    standing = None

    def __init__(self):
        self.sent = []

    def send(self, message):
        self.sent.append(message)

    def flush(self):
        return True

    def start(self, *_):
        pass


class DoubleOfPage:
    is_a_stand_in = is_reported = True
    report = stands_in_loop = enters = staticmethod(lambda value: None)


def begin():
    """A session that trains, with a new engine."""
    session = _session.current = _session.Session("pytorch", DoubleOfPage())
    session.link, session.mode, session.generation = DoubleOfLink(), "train", 1
    session.engine = _engine.Engine(session)
    return session


def hooked():
    session = begin()

    def after_import(name, then):
        then(importlib.import_module(name))

    registry.install(after_import)
    abort_points.install(after_import, session)
    return session


SESSION = None  # of scenarios in one process
LOGGED = []


class Peer:
    """One that is lost in a step, once."""

    def __init__(self, at):
        self.at = at

    def __call__(self, step):
        session = SESSION
        if step.number != self.at or session.loop.phase is not _phases.TRAINING:
            return
        self.at = None
        generation = session.generation + 1
        for kind, order in (("abort", {}), ("sync-state", {"step": step.number}), ("resume", {"step": step.number})):
            session.on_do({"id": next(IDS), "generation": generation, "what": {kind: order}})
        session.loop.tainted = True
        raise StepAborted("the peer is lost")


def anew():
    """The same session, with another engine."""
    SESSION.engine = _engine.Engine(SESSION)
    del LOGGED[:], SESSION.link.sent[:]


def refusals():
    return [one["reply"]["error"] for one in SESSION.link.sent if "error" in one.get("reply", ())]


# Batches that the program changes.


class Encoding(collections.UserDict):
    """Like Hugging Face's BatchEncoding, it defines how it is pickled."""

    def __getattr__(self, name):
        if name.startswith("__") or name == "data":
            raise AttributeError(name)
        return self.data[name]

    def __getstate__(self):
        return {"data": self.data}

    def __setstate__(self, state):
        self.data = state["data"]


@dataclasses.dataclass
class Batch:
    x: torch.Tensor


class Graph:
    """As PyTorch Geometric's Data, it has its items in a store that refers to it."""

    def __init__(self, x):
        self.__dict__["store"] = {"x": x}

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self.__dict__["store"][name]

    def __setattr__(self, name, value):
        self.__dict__["store"][name] = value


class Slots:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


def with_grad(x, model):
    """Goes a step along the gradient of its own data, as adversarial training does."""
    x.requires_grad_(True)
    model(x).square().sum().backward()
    return (x + 0.01 * x.grad).detach()


def replaced(batch, key):
    batch[key] = batch[key] / 5
    return batch[key]


def set_anew(batch):
    batch.x = batch.x / 5
    return batch.x


def in_array(batch):
    batch["x"] /= 5
    return torch.from_numpy(batch["x"])


# What makes a batch of a tensor, and what the program does with it.
CHANGES = {
    "an entry of a dict": (lambda x: {"x": x}, lambda batch, _: replaced(batch, "x")),
    "an entry of a list": (lambda x: [x, x], lambda batch, _: replaced(batch, 0)),
    "an entry taken out": (lambda x: {"x": x}, lambda batch, _: batch.pop("x") / 5),
    "an entry of a dict in a tuple": (lambda x: ({"x": x}, 1), lambda batch, _: replaced(batch[0], "x")),
    "an entry of an encoding": (lambda x: Encoding(x=x), lambda batch, _: replaced(batch, "x")),
    "an encoding in place": (lambda x: Encoding(x=x), lambda batch, _: batch["x"].div_(5)),
    "an attribute": (Batch, lambda batch, _: set_anew(batch)),
    "a data class in place": (Batch, lambda batch, _: batch.x.div_(5)),
    "an entry of a graph": (Graph, lambda batch, _: set_anew(batch)),
    "a graph in place": (Graph, lambda batch, _: batch.x.div_(5)),
    "a slot": (Slots, lambda batch, _: set_anew(batch)),
    "a slot in place": (Slots, lambda batch, _: batch.x.div_(5)),
    "an array": (lambda x: {"x": x.numpy()}, lambda batch, _: in_array(batch)),
    "its gradient": (lambda x: x, with_grad),
}


def trained(make, change, lost_at):
    """The parameters after some steps on such batches."""
    anew()
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = [make(torch.randn(4, 3) * 5) for _ in range(STEPS)]
    peer = Peer(lost_at)
    import taskd

    for step in taskd.steps({"model": model, "optimizer": optimizer}, data=loader, until=STEPS):
        with step:
            optimizer.zero_grad()
            x = change(step.next(), model)
            model(x).square().mean().backward()
            peer(step)
            optimizer.step()
    return torch.cat([one.detach().reshape(-1) for one in model.parameters()])


def changed_batches():
    """Whether a run in which a step is done again ends as one in which none is."""
    found = {}
    for name, (make, change) in CHANGES.items():
        reference = trained(make, change, None)
        found[name] = torch.equal(reference, trained(make, change, FAILS_AT)) and not refusals() and not LOGGED
    return found


def why_not(batch, change):
    """Why a step cannot be done again that has changed its batch so; None where it can."""
    stream = _batches.Stream([batch], _loader.open_at, _loader.Copier())
    stream.begin_step()
    change(stream.next())
    try:
        stream.check_step()
    except _batches.TooMany as error:
        return str(error)


def large():
    return numpy.zeros((16 << 20) // 8 + 1)


def batches_that_are_not_there_any_more():
    """Returns what is refused, and what is logged of it before."""
    del LOGGED[:]
    found = {
        "an encoding in place": why_not(Encoding(x=torch.ones(2)), lambda batch: batch["x"].div_(5)),
        "a slot": why_not(Slots(torch.ones(2)), set_anew),
        "nothing of a slot": why_not(Slots(torch.ones(2)), lambda batch: None),
    }
    logged, locked = list(LOGGED), why_not({"x": torch.ones(2), "lock": threading.Lock()}, lambda batch: None)
    found.update(
        {
            "a lock": locked,
            "a large array": why_not([large()], lambda batch: None),
            "logged": LOGGED[len(logged) :],
            "early": logged,
        }
    )
    return found


class Held:
    """Hands out the same tensor for each batch, as a loader with one buffer does."""

    def __init__(self):
        self.x = torch.zeros(2)

    def __iter__(self):
        for at in range(8):
            self.x.fill_(at)
            yield self.x


def batches_as_they_are():
    """Returns what is handed out while no code changes it: the loader's own, and the same again."""
    x = torch.ones(2)
    found, others = (
        {},
        {
            "tensor": x,
            "dict": {"x": x},
            "list": [x, 1],
            "tuple": (x, "a"),
            "encoding": Encoding(x=x),
            "graph": Graph(x),
        },
    )
    for name, batch in others.items():
        stream = _batches.Stream([batch], _loader.open_at, _loader.Copier())
        stream.begin_step()
        first = stream.next()
        stream.check_step()
        stream.redo_step()
        found[name] = first is batch and stream.next() is batch and not (stream.kept[0].arrays or stream.kept[0].others)
    stream = _batches.Stream(Held(), _loader.open_at, _loader.Copier())
    found["one buffer"] = [two_of(stream), two_of(stream)]
    return found


def two_of(stream):
    """Two batches, and why their step cannot be done again."""
    stream.begin_step()
    two = [stream.next()[0].item() for _ in range(2)]
    try:
        stream.check_step()
    except _batches.TooMany as error:
        return two + [str(error)]


def warm_batches():
    """What a replacement has of an iterator whose batches its warm-up has changed."""
    streams = _batches.Streams(_loader.open_at, _loader.Copier())
    streams.is_warming = True
    source = iter([{"x": torch.full((2,), float(at))} for at in range(4)])

    def step():
        streams.begin_step()
        batch = streams.of(source).next()
        given = batch["x"].tolist()
        batch["x"].add_(7)
        batch["x"] = batch["x"] * 2
        return given

    warm = [step() for _ in range(2)]
    streams.rewind()
    return {"warm": warm, "then": [step() for _ in range(4)]}


# State that a replacement takes.


class DoubleOfStore(dict):
    is_a_stand_in = True
    set = dict.__setitem__
    get = dict.__getitem__

    def check(self, keys):
        return all(key in self for key in keys)


class DoubleOfStreams:
    is_a_stand_in = True
    begun_otherwise = staticmethod(lambda positions: None)


class DoubleOfLoop:
    """At the start of a step, of a rank that is there, and of a replacement."""

    is_a_stand_in = is_new = True
    number, committed, spoiled = 5, 4, False
    streams = DoubleOfStreams()

    def __init__(self):
        self.program = types.SimpleNamespace(first=0)
        self.attempt = _attempt.Attempt(_phases.TRAINING, _attempt.TORN)
        self.snapshot, self.recovery = _attempt.Snapshot(), _attempt.Recovery()
        self.snapshot.take(-1, None)
        self.recovery.replacement = _attempt.Replacement()

    def private(self, with_buffers=True):
        return _codec.encode((b"", [], {}))

    def spoil(self):
        self.spoiled = True

    def held_buffers(self):
        return None


STORE = DoubleOfStore()


def engine_of(state):
    engine = _engine.Engine(SESSION)
    engine.state_.register(state)
    engine.store, engine.rank, engine.members, engine.loop = STORE, 0, {1: os.getpid()}, DoubleOfLoop()
    return engine


class Both(dict):
    """What a program has, and what of it it names."""

    def state(self, *left_out):
        return {name: self[name] for name in ("model", "optimizer") if name not in left_out}

    def step(self, number):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(number))
        self["optimizer"].zero_grad()
        self.get("criterion", lambda one: one)(self["model"](x)).square().mean().backward()
        self["optimizer"].step()


def plain():
    model = torch.nn.Linear(3, 3)
    return Both(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=0.1))


def with_criterion():
    both = plain()
    both["criterion"] = torch.nn.Linear(3, 1)
    both["optimizer"] = torch.optim.Adam([*both["model"].parameters(), *both["criterion"].parameters()], lr=0.1)
    return both


class Norm(torch.optim.Optimizer):
    """Keeps a mean of the gradients' norm, and how often, that is no parameter's."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self):
        whole = self.state["global"]
        parameters = [one for group in self.param_groups for one in group["params"]]
        norm = sum(one.grad.square().sum() for one in parameters)
        whole["mean"] = whole.get("mean", torch.zeros(())) * 0.9 + norm * 0.1
        whole["times"] = whole.get("times", 0) + 1
        for one in parameters:
            one.add_(one.grad / whole["mean"].sqrt(), alpha=-0.1 / whole["times"])


def with_state_of_no_parameter():
    model = torch.nn.Linear(3, 3)
    return Both(model=model, optimizer=Norm(model.parameters()))


def with_state_of_a_module():
    both = plain()
    both["optimizer"].state[both["model"]]["factor"] = torch.ones(3)
    return both


def with_state_of_no_parameter_by_parameters():
    both = plain()
    both["optimizer"].state["slow"]["copies"] = [{one: one.detach().clone()} for one in both["model"].parameters()]
    return both


class Thaws(Both):
    def step(self, number):
        self["model"][0].requires_grad_(number >= 2)
        Both.step(self, number)


def layers():
    return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))


def thawing():
    model = layers()
    model[0].requires_grad_(False)
    return Thaws(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


class ThawsOnce(Both):
    def step(self, number):
        if number == 2:
            self["model"][0].requires_grad_(True)
        Both.step(self, number)


def thawing_once():
    return ThawsOnce(thawing())


class Adds(Both):
    def step(self, number):
        if number == 2:
            self["optimizer"].add_param_group({"params": list(self["model"][0].parameters()), "lr": 0.01})
        Both.step(self, number)


def adding(momentum=0.0):
    model = layers()
    return Adds(model=model, optimizer=torch.optim.SGD(model[1].parameters(), lr=0.1, momentum=momentum))


class Rates(Both):
    def step(self, number):
        if number == 2:
            self["optimizer"].param_groups[0]["lr"] = torch.tensor(0.05)
        Both.step(self, number)


def rated():
    return Rates(plain())


def values_of(both):
    return [
        one for what in (both["model"], both.get("criterion")) if what is not None for one in what.state_dict().values()
    ]


def are_equal(one, other):
    return all(torch.equal(*both) for both in zip(values_of(one), values_of(other)))


def handed_over(make, *left_out):
    """A replacement takes the state of another rank, and both go on. Returns true if all is the same then, or the
    reason why not."""
    STORE.clear()
    torch.manual_seed(0)
    there = make()
    for number in range(5):
        there.step(number)
    here = make()
    giver, taker = engine_of(there.state(*left_out)), engine_of(here.state(*left_out))
    try:
        giver.transfer.give(giver.loop, {"to": [1]})
        taker.transfer.take(taker.loop, 5, [0], lambda: False)
    except Exception as error:
        return {"refused": str(error), "untouched": not taker.loop.spoiled}
    finally:
        giver.transfer.close()
    digests = [digest.report(one, one.loop)["digest"] for one in (giver, taker)]
    found = {"copied": are_equal(there, here), "checksums": digests[0] == digests[1]}
    for number in range(5, 8):
        there.step(number)
        here.step(number)
    return dict(found, later=are_equal(there, here))


def replacements():
    return {
        "plain": handed_over(plain),
        "unnamed model": handed_over(plain, "model"),
        "criterion": handed_over(with_criterion),
        "state of no parameter": handed_over(with_state_of_no_parameter),
        "state of a module": handed_over(with_state_of_a_module),
        "state by parameters": handed_over(with_state_of_no_parameter_by_parameters),
        "thawed": handed_over(thawing_once),
        "thawed by the step's number": handed_over(thawing),
        "rate that became a tensor": handed_over(rated),
        "added group": handed_over(adding),
        "added group with momentum": handed_over(lambda: adding(0.9)),
    }


def checksums_differ():
    """A parameter in no module that is named is a part of the checksum."""
    torch.manual_seed(0)
    both = with_criterion()
    both.step(0)
    engine = engine_of(both.state())
    digests = [digest.report(engine, engine.loop)["digest"]]
    with torch.no_grad():
        both["criterion"].weight.add_(1)
    return {"differ": digests[0] != digest.report(engine, engine.loop)["digest"]}


def undone():
    """What an optimizer keeps that is no parameter's, put back with the rest."""
    torch.manual_seed(0)
    both = with_state_of_no_parameter()
    both.step(0)
    engine = engine_of(both.state())
    before = [one.clone() for one in values_of(both)], both["optimizer"].state["global"]["mean"].clone()
    engine.undo.keep()
    whole = both["optimizer"].state["global"]
    both.step(1)
    is_done = engine.undone()
    there = values_of(both), whole["mean"]
    same = all(torch.equal(*one) for one in zip(before[0], there[0])) and torch.equal(before[1], there[1])
    return {"undone": is_done, "same": same, "times": whole["times"]}


# Places in the data.


class Prefetches:
    """No DataLoader, and has one."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return iter(self.loader)


def loaders(kind, data):
    sampler = DistributedSampler(data, num_replicas=2, rank=0, shuffle=True)
    if kind == "batch sampler":
        return DataLoader(data, batch_sampler=BatchSampler(sampler, 2, False)), sampler
    if kind == "around a loader":
        return Prefetches(DataLoader(data, sampler=sampler, batch_size=2)), sampler
    return DataLoader(data, sampler=sampler, batch_size=2), sampler


def epochs_of(kind, sets):
    """Batches of three epochs, and what a replacement has in the middle of the last one. The program sets the epoch of
    the sampler."""
    data, first = TensorDataset(torch.arange(16)), None
    torch.manual_seed(0)
    loader, sampler = loaders(kind, data)
    stream, out = _batches.Stream(loader, _loader.open_at, _loader.Copier()), []
    for number in range(12):
        if sets and number % 4 == 0:
            sampler.set_epoch(number // 4)
        stream.begin_step()
        first = stream.start if number == 10 else first
        out.append(stream.next()[0].tolist())
    epochs = [sorted(sum(out[at : at + 4], [])) for at in (0, 4, 8)]
    orders = {tuple(sum(out[at : at + 4], [])) for at in (0, 4, 8)}
    torch.manual_seed(0)
    replacement = _batches.Stream(loaders(kind, data)[0], _loader.open_at, _loader.Copier())
    replacement.seek(*first)
    got = [replacement.next()[0].tolist() for _ in range(2)]
    return {"same": got == out[10:], "whole epochs": all(len(set(one)) == 8 for one in epochs), "orders": len(orders)}


def epochs():
    kinds = "sampler", "batch sampler", "around a loader"
    return {
        "%s, %s" % (kind, "set" if sets else "not set"): epochs_of(kind, sets)
        for kind in kinds
        for sets in (True, False)
    }


def epoch_is_put_back():
    """A step that sets its sampler's epoch itself, done again."""
    data = TensorDataset(torch.arange(16))
    loader, sampler = loaders("batch sampler", data)
    stream = _batches.Stream(loader, _loader.open_at, _loader.Copier())
    stream.begin_step()
    stream.next()
    sampler.epoch = 9
    stream.check_step()
    stream.redo_step()
    return {"epoch": sampler.epoch}


# An undo that cannot be kept.


class Rule(torch.optim.lr_scheduler.LRScheduler):
    def __init__(self, optimizer, rule):
        self.rule = rule
        super().__init__(optimizer)

    def get_lr(self):
        return [self.rule(self.last_epoch) * rate for rate in self.base_lrs]


class Locked:
    def state_dict(self):
        return {"lock": threading.Lock()}

    def load_state_dict(self, state):
        pass


class Clock:
    def state_dict(self):
        return {"since": datetime.datetime(2026, 1, 1)}

    def load_state_dict(self, state):
        pass


def of_scheduler(model, optimizer):
    return {"scheduler": Rule(optimizer, lambda epoch: 0.9**epoch)}


def of_group(model, optimizer):
    optimizer.param_groups[0]["rule"] = lambda: 1
    return {}


def of_object(model, optimizer):
    return {"locked": Locked()}


def of_time(model, optimizer):
    return {"clock": Clock()}


def trains_on(unlike):
    import taskd

    anew()
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    more, ends = unlike(model, optimizer), []
    for step in taskd.steps(dict({"model": model, "optimizer": optimizer}, **more), until=3):
        with step:
            SESSION.engine.undo.is_needed = True  # as where operations are called for in the window
            optimizer.zero_grad()
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            for one in more.values():
                one.step() if hasattr(one, "step") else None
        ends.append(step.completed)
    logged = [one for one in LOGGED if "cannot be copied" in one]
    given = [one for one in LOGGED if "cannot be given" in one]
    return {"completed": ends, "logged": logged, "given": given, "undo": SESSION.engine.undone()}


def no_undo():
    makes = {"scheduler": of_scheduler, "group": of_group, "object": of_object, "time": of_time}
    return {name: trains_on(make) for name, make in makes.items()}


# All of it with four ranks that are killed.


def by_hand():
    """Averages gradients itself, also those of a criterion that it does not name; changes its batches, thaws a layer,
    and sets the epoch of a sampler that is deep inside of its loader."""
    taskd, rank, size = programs.begin()
    torch.manual_seed(7)
    model, criterion = torch.nn.Sequential(torch.nn.Linear(32, 16), torch.nn.Linear(16, 16)), torch.nn.Linear(16, 1)
    model[0].requires_grad_(False)
    parameters = [*model.parameters(), *criterion.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-2)
    optimizer.state["global"]["mean"] = torch.zeros(())
    data = [{"x": torch.randn(32) * 50} for _ in range(96)]
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_sampler=BatchSampler(sampler, 4, False))
    torch.manual_seed(100 + rank)
    losses = programs.Losses()
    for step in taskd.steps({"model": model, "optimizer": optimizer}, data=loader, until=programs.steps()):
        with step:
            if step.number % len(loader) == 0:
                sampler.set_epoch(step.number // len(loader))
            batch = step.next()
            batch["x"] = batch["x"] / 50
            if step.number == 3:
                model[0].requires_grad_(True)
            optimizer.zero_grad()
            loss = criterion(model(batch["x"])).square().mean()
            loss.backward()
            flat = torch.cat([one.grad.view(-1) for one in parameters if one.grad is not None])
            torch.distributed.all_reduce(flat)
            with_grad = [one for one in parameters if one.grad is not None]
            for one, grad in zip(with_grad, flat.split([one.numel() for one in with_grad])):
                one.grad.copy_(grad.view_as(one) / size)
            optimizer.step()
            optimizer.state["global"]["mean"].mul_(0.9).add_(flat.square().sum())
            losses.add(step, loss)
    return {"digest": programs.digest(model, criterion, optimizer), "losses": losses}


def killed():
    import scenarios

    return scenarios.compared(by_hand, scenarios.kill)


# Classes that are derived from torch's.


class Counted:
    made = 0

    def __new__(cls, *args, **kwargs):
        what = super().__new__(cls)
        Counted.made += 1
        what.arguments = len(args), sorted(kwargs)
        return what


class CountedSGD(torch.optim.SGD, Counted):
    pass


def made_by_a_mixin():
    optimizer = CountedSGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    return {
        "made": Counted.made,
        "arguments": optimizer.arguments,
        "noted": registry.made[registry.by_id[id(optimizer)]]() is optimizer,
    }


SCENARIOS = {
    "changed_batches": changed_batches,
    "batches_that_are_not_there_any_more": batches_that_are_not_there_any_more,
    "batches_as_they_are": batches_as_they_are,
    "warm_batches": warm_batches,
    "replacements": replacements,
    "checksums_differ": checksums_differ,
    "undone": undone,
    "epochs": epochs,
    "epoch_is_put_back": epoch_is_put_back,
    "no_undo": no_undo,
    "made_by_a_mixin": made_by_a_mixin,
    "killed": killed,
}


def main():
    global SESSION
    name, path = sys.argv[1:]
    if name != "killed":
        SESSION, _link.say = hooked(), LOGGED.append
    value = SCENARIOS[name]()
    with open(path, "w") as file:
        json.dump(value, file)


if __name__ == "__main__":
    main()
