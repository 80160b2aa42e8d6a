"""What is noted when a step begins and put back when it is given up: `python noted.py NAME FILE` runs programs in this
process, each once undisturbed and once with steps that are given up and done again, compares the two bit by bit, and
writes to the file as JSON what came of it.

The link and the page are doubles. Where a program calls `world.fails`, it stands for an operation of torch's whose peer
is lost there: the supervisor sends abort, sync-state and resume, and the call raises.
"""

import ctypes
import importlib
import json
import os
import sys
import traceback
import types
import warnings

import torch
import torch.distributed  # noqa: F401
import torch.optim.swa_utils  # noqa: F401  (ahead of the hooks)

STEPS = 6


class RecoveryRefused(Exception):
    """A directive was refused: in a job all ranks would start again."""


class Link:
    is_greeted, standing = True, None

    def send(self, message):
        if "error" in message.get("reply", {}):
            raise RecoveryRefused(message["reply"]["error"])

    def flush(self):
        return True

    def start(self, *_):
        pass


def now(name, then):
    try:
        module = importlib.import_module(name)
    except ImportError:
        return  # an older torch has no such module
    then(module)


class World:
    """The session, which is this process's one, and an engine for each program."""

    def __init__(self):
        from taskd import _session
        from taskd.torch import abort_points, registry

        page = types.SimpleNamespace(
            is_reported=True, report=lambda *_: None, stands_in_loop=lambda *_: None, enters=lambda *_: None
        )
        self.session = _session.current = _session.Session("pytorch", page)
        self.session.link, self.session.mode, self.session.generation = Link(), "train", 1
        registry.install(now)
        abort_points.install(now, self.session)
        self.directives = 0

    def begin(self, fails):
        from taskd.torch import engine as _engine

        self.session.engine, self.left, self.failed = _engine.Engine(self.session), dict(fails), 0
        self.session.loop, self.session.position = None, "before-loop"
        torch.manual_seed(7)

    @property
    def engine(self):
        return self.session.engine

    def fails(self, step):
        """An operation of the step fails, as often as that is wanted of this step."""
        from taskd._aborted import StepAborted

        if not self.left.get(step):
            return
        self.left[step] -= 1
        self.failed += 1
        generation = self.session.generation + 1
        for what in ({"abort": {}}, {"sync-state": {"step": step}}, {"resume": {"step": step}}):
            self.directives += 1
            self.session.on_do({"id": self.directives, "generation": generation, "what": what})
        self.session.loop.tainted = True
        raise StepAborted("step %d is given up" % step)

    def fails_in_window(self, step):
        """The same of an operation of the commit window, in which there is one in every step."""
        self.engine.issued(None)
        self.fails(step)


world = None


def steps(state, until=STEPS):
    import taskd

    return taskd.steps(state, until=until)


def bits(*whats):
    """All state as bytes, by name."""
    found = {}
    for at, what in enumerate(whats):
        named = what.state_dict() if isinstance(what, torch.nn.Module) else dict(enumerate(what))
        found.update(("%d/%s" % (at, name), bits_of(one)) for name, one in named.items())
    return found


def bits_of(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist()


def once(program, fails):
    """In a child, which leaves nothing to the next one of a recovery that was refused."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            with open(write, "w") as file:
                json.dump(run(program, fails), file)
            os._exit(0)
        finally:
            traceback.print_exc()
            os._exit(1)
    os.close(write)
    with open(read) as file:
        found = file.read()
    os.waitpid(child, 0)
    return json.loads(found)


def run(program, fails):
    world.begin(fails)
    refused = None
    try:
        found = program()
    except RecoveryRefused as error:
        found, refused = None, str(error)
    finally:
        if world.session.loop is not None:
            world.session.loop.leave()
    engine = world.engine
    limits = {"carries": bool(engine.reported_sharded), "cannot": engine.cannot}
    return found, {"refused": refused, "failed": world.failed, **limits}


def compared(program, fails=((3, 1),)):
    """Returns, of a run with failures, whether all bits are the undisturbed run's, and what was reported."""
    expected, reported = once(program, ())
    found, seen = once(program, fails)
    wrong = sorted(name for name in expected if found is not None and found[name] != expected[name])
    return dict(
        seen,
        equal=found is not None and not wrong,
        wrong=wrong[:8],
        before={name: reported[name] for name in ("carries", "cannot")},
    )


# Buffers.


class Averages(torch.nn.Module):
    """Has an average of what it gives, in one of the ways that there are. LARGE: one that is not looked at in every
    step."""

    def __init__(self, how, size=3):
        super().__init__()
        self.linear, self.how = torch.nn.Linear(3, 3), how
        self.register_buffer("mean", None if how == "made" else torch.zeros(size))
        self.register_buffer("still", torch.full((3,), float("nan")))

    def forward(self, x):
        y = self.linear(x)
        with torch.no_grad():
            self.average(y.mean())
        return y

    def average(self, new):
        if self.how == "version":
            self.mean.mul_(0.9).add_(new, alpha=0.1)
        elif self.how == "data":
            self.mean.data.mul_(0.9).add_(new, alpha=0.1)
        elif self.how == "numpy":
            self.mean.numpy()[:] = self.mean.numpy() * 0.9 + float(new) * 0.1
        elif self.how == "bound":
            self.mean = self.mean * 0.9 + new * 0.1
        elif self.how == "made":
            self.mean = new.reshape(1) if self.mean is None else self.mean * 0.9 + new * 0.1
        elif self.how == "grows":
            self.mean = torch.cat([self.mean, new.reshape(1)])
        elif self.how == "new" and not hasattr(self, "later"):
            self.register_buffer("later", torch.zeros(1))
        if self.how == "new":
            self.later.add_(new)


def averaging(how, size=3, until=STEPS):
    def program():
        model = Averages(how, size)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in steps({"model": model, "optimizer": optimizer}, until):
            with step:
                optimizer.zero_grad()
                model(torch.randn(4, 3)).square().mean().backward()
                world.fails(step.number)
                optimizer.step()
        return bits(model)

    return program


def quantizing():
    from torch.ao.quantization import FusedMovingAvgObsFakeQuantize, MovingAverageMinMaxObserver

    model = torch.nn.Sequential(
        torch.nn.Linear(3, 3), FusedMovingAvgObsFakeQuantize(observer=MovingAverageMinMaxObserver)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in steps({"model": model, "optimizer": optimizer}):
        with step:
            optimizer.zero_grad()
            model(torch.randn(4, 3) * (1 + step.number)).square().mean().backward()
            world.fails(step.number)
            optimizer.step()
    return bits(model)


def reducing():
    """A collective gives a buffer no other version. A double of it: the sum of two ranks that have the same, written as
    gloo writes it."""
    model = torch.nn.Linear(3, 3)
    model.register_buffer("sum", torch.ones(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in steps({"model": model, "optimizer": optimizer}):
        with step:
            optimizer.zero_grad()
            model(torch.randn(4, 3)).square().mean().backward()
            doubled = model.sum * 2
            ctypes.memmove(model.sum.data_ptr(), doubled.data_ptr(), doubled.nbytes)
            world.fails(step.number)
            optimizer.step()
    return bits(model)


def unseen():
    """Buffers that change and have the version that they had."""
    found = {how: compared(averaging(how)) for how in ("version", "data", "numpy")}
    found["twice"] = compared(averaging("data"), ((2, 2), (3, 1)))
    found["quantization"] = compared(quantizing)
    found["large"] = compared(averaging("data", 1 << 18, until=8), ((5, 1),))
    found["collective"] = compared(reducing)
    world.begin(())
    averaging("data")()
    copies = world.engine.noter.copies
    found["known"] = sorted(path for path, one in copies.items() if getattr(one, "changes_unseen", False))
    return found


class Grows(torch.nn.Module):
    """A cache that goes with a number: no state_dict has either."""

    def __init__(self):
        super().__init__()
        self.linear, self.length = torch.nn.Linear(3, 3), 2
        self.register_buffer("table", torch.arange(2.0), persistent=False)

    def forward(self, x, length):
        if length > self.length:
            self.length = length
            self.register_buffer("table", torch.arange(float(length)), persistent=False)
        return self.linear(x) * self.table[:length].sum()


def caching():
    model = Grows()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in steps({"model": model, "optimizer": optimizer}):
        with step:
            optimizer.zero_grad()
            model(torch.randn(4, 3), 2 + step.number // 3).square().mean().backward()
            world.fails(step.number)
            optimizer.step()
    return bits(model)


def bound():
    """Buffers in whose place the program puts others."""
    found = {how: compared(averaging(how)) for how in ("bound", "grows", "new")}
    found["made"] = compared(averaging("made"), ((0, 1), (3, 1)))
    found["new"] = compared(averaging("new"), ((0, 1), (3, 1)))
    found["cache"] = compared(caching, ((3, 1),))
    found["cache, another step"] = compared(caching, ((2, 1), (4, 1)))
    found["kept"] = kept_and_held()
    return found


def kept_and_held():
    """What a forward pass has left for a successor, and what is held of a step that is done alone, are of the tensors
    that are there."""
    world.begin(())
    model = Averages("bound")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for step in steps({"model": model, "optimizer": optimizer}, until=2):
        with step:
            optimizer.zero_grad()
            model(torch.randn(4, 3)).square().mean().backward()
            data = world.engine.buffers()["model/mean"][2]
            found.append(data == model.mean.numpy().tobytes())
            held, was = world.engine.hold_buffers(), model.mean.clone()
            model(torch.randn(4, 3))
            world.engine.put_buffers(list(held))
            found.append(torch.equal(model.mean, was))
            optimizer.step()
    return found


# Gradients.


def two():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    return model, [torch.optim.SGD(part.parameters(), lr=0.1) for part in model]


def over_two_steps():
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in steps({"model": model, "optimizer": optimizer}):
        with step:
            if step.number % 2 == 0:
                optimizer.zero_grad()
            model(torch.randn(4, 3)).square().mean().backward()
            world.fails(step.number)
            if step.number % 2 == 1:
                optimizer.step()
    return bits(model)


def one_seldom():
    """Of two optimizers the second steps in every fourth step."""
    model, (first, second) = two()
    for step in steps({"model": model, "first": first, "second": second}, until=8):
        with step:
            first.zero_grad()
            model(torch.randn(4, 3)).square().mean().backward()
            world.fails(step.number)
            first.step()
            if step.number % 4 == 3:
                second.step()
                second.zero_grad()
    return bits(model)


def with_penalty():
    """Gradients are taken ahead of being zeroed, and added to none."""
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in steps({"model": model, "optimizer": optimizer}):
        with step:
            x = torch.randn(4, 3, requires_grad=True)
            (force,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
            optimizer.zero_grad()
            force.square().sum().backward()
            world.fails(step.number)
            optimizer.step()
    return bits(model)


def adversaries(zero, seldom=1):
    """The second is zeroed ahead of its own pass, which is the step's last, and trained in every so many steps."""

    def program():
        generator, judge = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
        by_judge, by_generator = (torch.optim.SGD(one.parameters(), lr=0.01) for one in (judge, generator))
        named = {"generator": generator, "judge": judge, "by_judge": by_judge, "by_generator": by_generator}
        for step in steps(named):
            with step:
                (by_judge if zero == "optimizer" else judge).zero_grad()
                made = generator(torch.randn(4, 3))
                (judge(made.detach()).mean() - judge(torch.randn(4, 3)).mean()).backward()
                world.fails(step.number)
                by_judge.step()
                if step.number % seldom == 0:
                    (by_generator if zero == "optimizer" else generator).zero_grad()
                    judge(made).mean().neg().backward()
                    by_generator.step()
        return bits(generator, judge)

    return program


def gradients():
    return {
        "alone": alone(),
        "two steps": compared(over_two_steps),
        "two steps, again": compared(over_two_steps, ((1, 2), (3, 2), (4, 1))),
        "one seldom": compared(one_seldom, ((5, 1), (6, 2))),
        "penalty": compared(with_penalty),
        "adversaries": compared(adversaries("optimizer")),
        "adversaries by modules": compared(adversaries("module")),
        "one adversary seldom": compared(adversaries("optimizer", 3)),
        "put in place": compared(put_in_place, ((1, 3),)),
    }


def alone():
    """Whether a rank that is behind the others may do a step by itself: of a program that carries gradients, and of one
    that does not."""
    found = {}
    for program in (over_two_steps, with_penalty):
        world.begin(())
        engine, answers = world.engine, []

        def ask(step):
            try:
                answers.append(engine.put_back(world.session.loop.snapshot.taken, True) if step == 3 else None)
            except Exception as error:
                answers.append(str(error))

        world.fails, fails = ask, world.fails
        program()
        world.fails = fails
        found[program.__name__] = answers[3]
    return found


def put_in_place():
    """A step that fails has taken away the gradient that it has begun with, and then adds to the one that is put in its
    place, and fails once more."""
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in steps({"model": model, "optimizer": optimizer}):
        with step:
            if world.left.get(step.number) == 3:
                model.weight.grad = None
                world.fails(step.number)
            model(torch.randn(4, 3)).square().mean().backward()
            world.fails(step.number)
            optimizer.step()
            if step.number != 0:
                optimizer.zero_grad()
    return bits(model)


# What a step changes ahead of its commit window besides.


def momentum(how):
    """The weights of a second module follow those of the first, ahead of the pass or behind the optimizer's step."""

    def follow(key, query):
        with torch.no_grad():
            for one, other in zip(key.parameters(), query.parameters()):
                if how == "data":
                    one.data = one.data * 0.9 + other.data * 0.1
                else:
                    one.mul_(0.9).add_(other, alpha=0.1)

    def program():
        query, key = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
        optimizer = torch.optim.SGD(query.parameters(), lr=0.1)
        for step in steps({"query": query, "key": key, "optimizer": optimizer}):
            with step:
                if how != "behind":
                    follow(key, query)
                optimizer.zero_grad()
                x = torch.randn(4, 3)
                (query(x) - key(x).detach()).square().mean().backward()
                world.fails(step.number)
                optimizer.step()
                if how == "behind":
                    follow(key, query)
                    world.fails_in_window(step.number)
        return bits(query, key)

    return program


def moving():
    """Parameters get another place and keep their values, as an LSTM's do when it is flattened."""
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in steps({"model": model, "optimizer": optimizer}):
        with step:
            for one in model.parameters():
                one.data = one.data.clone()
            optimizer.zero_grad()
            model(torch.randn(4, 3)).square().mean().backward()
            world.fails(step.number)
            optimizer.step()
    return bits(model)


def first():
    """The first step chooses a parameter by what comes, ahead of its pass."""
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in steps({"model": model, "optimizer": optimizer}):
        with step:
            x = torch.randn(4, 3)
            if step.number == 0:
                with torch.no_grad():
                    model.bias.sub_(model(x).mean(0))
            optimizer.zero_grad()
            model(x).square().mean().backward()
            world.fails(step.number)
            optimizer.step()
    return bits(model)


def by_hand():
    """Without an optimizer no commit window opens."""
    model = torch.nn.Linear(3, 3)
    for step in steps({"model": model}):
        with step:
            model.zero_grad()
            model(torch.randn(4, 3)).square().mean().backward()
            with torch.no_grad():
                for one in model.parameters():
                    one.sub_(one.grad, alpha=0.1)
            world.fails(step.number)
    return bits(model)


def rates(how):
    def program():
        model = torch.nn.Linear(3, 3)
        lr = torch.tensor(0.1) if how == "tensor" else 0.1
        optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        for step in steps({"model": model, "optimizer": optimizer}):
            with step:
                for group in optimizer.param_groups:
                    if how == "by step":
                        group["lr"] = 0.1 / (1 + step.number)
                    elif how == "tensor":
                        group["lr"].mul_(0.5)
                    else:
                        group["lr"] *= 0.5
                optimizer.zero_grad()
                model(torch.randn(4, 3)).square().mean().backward()
                world.fails(step.number)
                optimizer.step()
        return bits(model, [torch.tensor(float(optimizer.param_groups[0]["lr"]))])

    return program


def modes(how):
    """A step looks at what it has in another mode, in which it is lost: ahead of its window, or in it."""

    def program():
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5), torch.nn.Linear(3, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        fails = world.fails_in_window if how == "window" else world.fails
        for step in steps({"model": model, "optimizer": optimizer}):
            with step:
                optimizer.zero_grad()
                model(torch.randn(4, 3)).square().mean().backward()
                if how == "window":
                    optimizer.step()
                if how == "flags":
                    model[0].requires_grad_(False)
                else:
                    model.eval()
                model(torch.randn(4, 3))
                fails(step.number)
                model.train()
                model[0].requires_grad_(True)
                if how != "window":
                    optimizer.step()
        return bits(model)

    return program


def ahead():
    return {
        "momentum": compared(momentum("version"), ((0, 1),)),
        "momentum, later": compared(momentum("version"), ((3, 1),)),
        "momentum by data": compared(momentum("data"), ((0, 1),)),
        "momentum by data, later": compared(momentum("data"), ((3, 1),)),
        "momentum in the window": compared(momentum("behind"), ((2, 1), (3, 2))),
        "moving": compared(moving, ((0, 1), (3, 2))),
        "in the first step, which fails": compared(first, ((0, 1),)),
        "in the first step": compared(first),
        "by hand": compared(by_hand),
        "rate": compared(rates("number")),
        "rate by step": compared(rates("by step")),
        "rate in a tensor": compared(rates("tensor")),
        "mode": compared(modes("before"), ((3, 2),)),
        "mode in the window": compared(modes("window"), ((3, 2),)),
        "flags": compared(modes("flags"), ((3, 1),)),
    }


# Late buffers.


def late():
    """Of buffers that change without another version: which were seen to change behind the last backward pass, by what
    they are."""
    found = {}
    for where in ("forward", "behind"):
        world.begin(())
        model = torch.nn.Linear(3, 3)
        for name, size in (("small", 3), ("large", 1 << 18), ("bound", 3)):
            model.register_buffer(name, torch.zeros(size))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def change():
            model.small.data.add_(1)
            model.large.data.add_(1)
            model.bound = model.bound + 1

        for step in steps({"model": model, "optimizer": optimizer}):
            with step:
                change() if where == "forward" else None
                optimizer.zero_grad()
                model(torch.randn(4, 3)).square().mean().backward()
                optimizer.step()
                change() if where == "behind" else None
        found[where] = sorted(world.engine.late.reported)
    return found


# Buffers that are no plain tensors.


def unusual():
    kinds = {
        "plain": lambda: torch.ones(3),
        "conjugated": lambda: torch.ones(3, dtype=torch.complex64).conj(),
        "coordinates": lambda: torch.eye(3).to_sparse(),
        "rows": lambda: torch.eye(3).to_sparse_csr(),
        "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "inference": in_inference,
        "lazy": None,
    }
    return {kind: trains_on(make) for kind, make in kinds.items()}


def in_inference():
    with torch.inference_mode():
        return torch.ones(3)


def trains_on(make):
    """Whether a program comes to the same parameters in a step loop and without one, and what it cannot."""
    ends = []
    for of in (steps, lambda state: range(STEPS)):
        world.begin(())
        model = torch.nn.Sequential(
            torch.nn.Linear(3, 3), torch.nn.LazyBatchNorm1d() if make is None else torch.nn.Identity()
        )
        model[1].register_buffer("one", make()) if make is not None else None
        optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
        for _ in of({"model": model, "optimizer": optimizer}):
            optimizer.zero_grad()
            model(torch.randn(4, 3)).square().mean().backward()
            optimizer.step()
        ends.append((bits(model[0]), world.engine.cannot))
    return {"equal": ends[0][0] == ends[1][0], "cannot": ends[0][1]}


# With real ranks.


def of_ranks():
    """DDP with buffers of each rank's own, one in whose place another is put and one that changes without another
    version. With LACKS a rank fails ahead of its optimizer's step, and with TORN behind it."""
    import programs

    taskd, rank, size = programs.begin()
    torch.manual_seed(7)
    inner = programs.net()
    for name in ("bound", "unseen"):
        inner.register_buffer(name, torch.zeros(1))
    model = torch.nn.parallel.DistributedDataParallel(inner, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    torch.manual_seed(100 + rank)
    losses, die, tear = (
        programs.Losses(),
        programs.Once("DIE", rank, programs.dies),
        programs.Once("TORN", rank, programs.has_no_memory),
    )
    lack = programs.Once("LACKS", rank, programs.has_no_memory)
    for step in taskd.steps({"model": model, "optimizer": optimizer}, until=programs.steps()):
        with step:
            optimizer.zero_grad()
            y = model(programs.noise())
            new = y.detach().mean()
            inner.bound = inner.bound * 0.9 + new * 0.1
            inner.unseen.data.mul_(0.9).add_(new, alpha=0.1)
            loss = (y - inner.bound - inner.unseen).square().mean()
            loss.backward()
            lack(step.number)
            optimizer.step()
            tear(step.number)
            die(-1 if step.warming else step.number)
            losses.add(step, loss)
    return {"digest": programs.digest(model, optimizer), "losses": losses}


def torn(of):
    """A rank that is torn in a step takes the parameters of one that is not, and has buffers of its own."""
    with of.StandIn(2, of_ranks, STEPS="12") as there:
        reference = there.finish()
    with of.StandIn(2, of_ranks, STEPS="12", TORN="0:6", LACKS="1:6") as there:
        there.until_failed()
        phases = [there.recover()]
        assert phases[0]["step"] == 6, phases
        return of.verdict(reference, there.finish(), phases, there)


def with_ranks():
    """A rank is killed at any moment, or at the end of its step, or no rank dies."""
    import scenarios as of

    found = {
        "killed": of.compared(of_ranks, of.kill, steps=of.FEW_STEPS),
        "died": of.died_at(of_ranks, 2, 12),
        "again": of.compared(of_ranks, of.retry, steps=of.FEW_STEPS),
        "torn": torn(of),
    }
    return {name: all(one["digests"] + one["losses"]) for name, one in found.items()}


SCENARIOS = {
    "unseen": unseen,
    "bound": bound,
    "gradients": gradients,
    "ahead": ahead,
    "late": late,
    "unusual": unusual,
    "with_ranks": with_ranks,
}


def main():
    global world
    name, path = sys.argv[1:]
    warnings.simplefilter("ignore")
    world = World() if name != "with_ranks" else None
    value = SCENARIOS[name]()
    with open(path, "w") as file:
        json.dump(value, file)


if __name__ == "__main__":
    main()
