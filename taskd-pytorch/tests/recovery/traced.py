"""Training steps in which torch compiles, exports or traces, and those under functional transforms: with taskd and
without, to the bit."""

import contextlib
import hashlib
import io
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import programs

STEPS = 3
# than what is run by default
IS_OLDER = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) < (2, 15)
PATIENCE_SECONDS = 400  # torch compiles for a minute, on a busy machine for several


class Net(torch.nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.first = torch.nn.Linear(width, 16)
        self.block = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU())
        self.norm = torch.nn.BatchNorm1d(16)
        self.last = torch.nn.Linear(16, 1)

    def forward(self, batch):
        return self.last(self.norm(self.block(torch.relu(self.first(batch)))))


def compiled(what, **options):
    return torch.compile(what, backend=os.environ.get("COMPILER", "aot_eager"), **options)


def mean_square(outputs):
    return outputs.square().mean()


class Training:
    """A model, its optimizer, and a step, of which a way of training changes what it compiles."""

    def __init__(self, wrap=DistributedDataParallel, change=lambda net: net):
        torch.manual_seed(5)
        self.model = wrap(change(Net()))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.loss_of, self.apply, self.around = mean_square, self.optimizer.step, contextlib.nullcontext
        self.applied = lambda number: None  # what is called then, ahead of the scheduler

    def state(self):
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def batch(self, number):
        data = torch.Generator().manual_seed(97 * number + dist.get_rank())
        return torch.randn(16, 8, generator=data)

    def step(self, number):
        with self.around():
            self.optimizer.zero_grad()
            loss = self.loss_of(self.model(self.batch(number)))
            loss.backward()
            self.apply()
        self.applied(number)
        self.scheduler.step()
        return loss

    def digest(self):
        found = hashlib.sha256()
        for one in [*self.model.state_dict().values(), *leaves(self.optimizer.state_dict()), torch.get_rng_state()]:
            found.update(one.detach().contiguous().numpy().tobytes())
        return found.hexdigest()


def leaves(state):
    return [one for of in state["state"].values() for one in of.values() if isinstance(one, torch.Tensor)]


# The ways. Each makes a training, or none where its torch has no such thing.


def plain():
    return Training()


def inside():
    return Training(change=compiled)


def outside():
    return Training(wrap=lambda net: compiled(DistributedDataParallel(net)))


def in_place():
    def change(net):
        net.compile(backend="aot_eager")
        return net

    return Training(change=change)


def block():
    def change(net):
        net.block.compile(backend="aot_eager")
        return net

    return Training(change=change)


def loss():
    training = Training()
    training.loss_of = compiled(mean_square, fullgraph=True)
    return training


def optimizer():
    training = Training()
    training.apply = compiled(lambda: training.optimizer.step())
    return training


def optimizers_step():
    training = Training()
    training.apply = training.optimizer.step = compiled(training.optimizer.step)
    return training


def whole_step():
    training = Training()

    @compiled
    def step(batch):
        training.optimizer.zero_grad()
        loss = mean_square(training.model(batch))
        loss.backward()
        training.optimizer.step()
        return loss

    training.step = lambda number: step(training.batch(number))
    return training


def compiled_backward():
    """The backward pass is compiled, at its first call."""
    training = whole_step()

    @contextlib.contextmanager
    def around():
        before, torch._dynamo.config.compiled_autograd = torch._dynamo.config.compiled_autograd, True
        try:
            yield
        finally:
            torch._dynamo.config.compiled_autograd = before

    inner = training.step

    def step(number):
        with around():
            return inner(number)

    training.step = step
    return training


def recompiled():
    """Compiled anew in every step, for another shape."""
    training = Training(change=lambda net: compiled(net, dynamic=False))
    batch = training.batch
    training.batch = lambda number: batch(number)[: 8 + number]
    return training


def penalty():
    """Gradients of gradients, as a loss has them, and inside of what is compiled."""
    training = Training(wrap=lambda net: net)

    def loss_of(outputs):
        weight = training.model.last.weight
        (gradient,) = torch.autograd.grad(mean_square(outputs), weight, create_graph=True)
        return mean_square(outputs) + gradient.square().sum()

    @compiled
    def inside(weight):
        weight = weight.detach().requires_grad_()
        return torch.autograd.grad((weight * 3).square().sum(), weight)[0].sum()

    def loss_and(outputs):
        return loss_of(outputs) + 1e-3 * inside(training.model.first.weight)

    if hasattr(torch._dynamo.config, "trace_autograd_ops"):
        with torch._dynamo.config.patch(trace_autograd_ops=True):
            whole = compiled(
                lambda value: torch.autograd.grad((value * 3).square().sum(), value)[0].sum(), fullgraph=True
            )
            assert whole(torch.ones(3, requires_grad=True)) == 54
    training.loss_of, inner = loss_and, training.apply
    training.apply = lambda: (average(training.model), inner())
    return training


def average(model):
    """What DDP does, by hand."""
    for one in model.parameters():
        if one.grad is not None:
            dist.all_reduce(one.grad)
            one.grad /= dist.get_world_size()


def functional():
    """Gradients by torch.func, of each sample and of the batch."""
    training = Training(wrap=lambda net: net)
    model = training.model.eval()

    def loss_of(parameters, batch):
        return mean_square(torch.func.functional_call(model, parameters, (batch,)))

    def step(number):
        batch, parameters = training.batch(number), {name: one.detach() for name, one in model.named_parameters()}
        grads, loss = torch.func.grad_and_value(loss_of)(parameters, batch)
        each = torch.func.vmap(torch.func.grad(loss_of), (None, 0))(parameters, batch[:, None])
        _, along = torch.func.jvp(lambda batch: loss_of(parameters, batch), (batch,), (batch,))
        hessian = torch.func.hessian(lambda bias: bias.square().sum() * along)(parameters["last.bias"])
        for name, one in model.named_parameters():
            one.grad = grads[name] + 1e-3 * each[name].mean(0)
        model.last.bias.grad += 1e-3 * hessian.sum()
        average(model)
        training.optimizer.step()
        return loss

    training.step = step
    return training


def transformed_inside():
    """Modules and optimizers of the program's own inside of a transform."""
    training = functional()
    inner = training.step

    def step(number):
        def with_a_pass(values):
            net = Net().eval()
            other = torch.optim.SGD(net.parameters(), lr=0.1)
            other.step()
            other.zero_grad()
            return values.sum() + net(torch.ones(2, 8)).sum()

        torch.func.vmap(with_a_pass, randomness="same")(torch.ones(3, 4))
        return inner(number)

    training.step = step
    return training


def exported():
    training = Training()
    inner = training.step

    def step(number):
        model = Net().eval()
        for strict in (False, True):
            program = torch.export.export(model, (torch.ones(4, 8),), strict=strict)
            assert torch.equal(program.module()(torch.ones(4, 8)), model(torch.ones(4, 8)))
        return inner(number)

    training.step = step
    return training


def fake():
    """What a program estimates its memory with: a step of fake tensors ahead of the real one, also through DDP's
    collectives."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    training = Training()
    inner = training.step

    def step(number):
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = Net()
            other = torch.optim.SGD(model.parameters(), lr=0.1)
            torch.optim.lr_scheduler.StepLR(other, 1)
            model(torch.ones(4, 8)).sum().backward()
            average(model)
            other.step()
            other.zero_grad()
            dist.barrier()
            torch.save({"a": 1}, io.BytesIO())
        outside = FakeTensorMode().from_tensor(torch.ones(4, requires_grad=True))
        outside = torch.nn.Parameter(outside)
        (outside * 2).sum().backward()
        torch.optim.SGD([outside], lr=0.1).step()
        return inner(number)

    training.step = step
    return training


def traced():
    """torch.fx and torch.jit."""
    from torch.fx.experimental.proxy_tensor import make_fx

    training = Training()
    inner = training.step

    def gradient(weight):
        return torch.autograd.grad((weight * 3).square().sum(), weight)[0]

    def step(number):
        model = Net().eval()
        for mode in ("real", "fake", "symbolic"):
            graph = make_fx(gradient, tracing_mode=mode)(torch.ones(4, requires_grad=True))
            assert graph(torch.ones(4, requires_grad=True)).sum() == 72
        torch.fx.symbolic_trace(model)(torch.ones(4, 8))
        torch.jit.trace(model, (torch.ones(4, 8),))(torch.ones(4, 8))
        with torch.device("meta"):
            meta = Net()
            meta(torch.ones(4, 8)).sum().backward()
            torch.optim.SGD(meta.parameters(), lr=0.1).step()
        return inner(number)

    training.step = step
    return training


class Asks(torch.nn.Module):
    """Whether its passes are taken for those of a step."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, batch):
        from taskd.torch.tracing import is_tracing

        self.seen.append(is_tracing())
        return batch * 2


def traces_seen():
    """Returns what a module sees of tracing when it is called, and when torch.fx and torch.jit trace it."""
    asks, batch = Asks(), torch.ones(4)
    asks(batch)
    torch.fx.symbolic_trace(asks)
    torch.jit.trace(asks, (batch,), check_trace=False)
    asks(batch)
    return asks.seen


def counted():
    """Modes in which a real step is looked at."""
    from torch.utils.flop_counter import FlopCounterMode

    training = Training()
    training.around = lambda: FlopCounterMode(display=False)
    return training


def deterministic():
    training = Training(change=compiled)

    @contextlib.contextmanager
    def around():
        torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(False)

    training.around = around
    return training


def scaled():
    training = Training(change=compiled)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    training.state = lambda: {"model": training.model, "optimizer": training.optimizer, "scaler": scaler}

    def step(number):
        training.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = training.loss_of(training.model(training.batch(number)))
        scaler.scale(loss).backward()
        scaler.step(training.optimizer)
        scaler.update()
        return loss

    training.step = step
    return training


def collectives():
    """Operations of the program's own in what is compiled, by both names that torch has for them."""
    import torch.distributed._functional_collectives as functional

    training = Training(wrap=lambda net: net)
    group = dist.group.WORLD

    @compiled
    def reduced(tensor):
        dist.all_reduce(tensor, group=group)
        return functional.all_reduce(tensor, "sum", group) / dist.get_world_size() ** 2

    inner = training.apply

    def apply():
        for one in training.model.parameters():
            one.grad = reduced(one.grad)
        inner()

    training.apply = apply
    return training


def loaded():
    """A loader and a file inside of what is compiled."""
    training = Training()
    inner = training.step
    data = torch.utils.data.DataLoader(torch.arange(12.0).reshape(6, 2), batch_size=2)

    @compiled
    def summed():
        total = torch.zeros(2)
        for batch in data:
            total = total + batch.sum(0)
        torch.save(total, io.BytesIO())
        return total

    def step(number):
        assert summed().tolist() == [30.0, 36.0]
        return inner(number)

    training.step = step
    return training


WAYS = [
    plain,
    inside,
    outside,
    in_place,
    block,
    loss,
    optimizer,
    optimizers_step,
    whole_step,
    compiled_backward,
    recompiled,
    penalty,
    functional,
    transformed_inside,
    exported,
    fake,
    traced,
    counted,
    deterministic,
    scaled,
    collectives,
    loaded,
]


def every_way():
    """All ways one after the other: by name what is left, or what was raised."""
    import traceback

    import taskd

    dist.init_process_group("gloo")
    found, names = {}, os.environ["WAYS"].split(",")
    for way in [one for one in WAYS if one.__name__ in names]:
        torch._dynamo.reset()
        stats = torch._dynamo.utils.counters["stats"]
        stats.clear()
        try:
            training = way()
            if os.environ.get("LOOP") == "1":
                for step in taskd.steps(training.state(), until=STEPS):
                    with step:
                        loss = training.step(step.number)
            else:
                for number in range(STEPS):
                    loss = training.step(number)
            found[way.__name__] = {"digest": training.digest(), "loss": loss.item().hex(), "graphs": dict(stats)}
        except Exception as error:
            found[way.__name__] = {"raised": "".join(traceback.format_exception(error))[-3000:]}
    return found


def recovered():
    """The way that WAYS names, in a step loop. With TORN, `rank:step`, the step fails once, behind what was
    compiled."""
    taskd, rank, size = programs.begin()
    training = {one.__name__: one for one in WAYS}[os.environ["WAYS"]]()
    torn, losses, now = programs.Once("TORN", rank, programs.has_no_memory), programs.Losses(), [-1]
    training.applied = lambda number: torn(now[0])
    torch.manual_seed(100 + rank)
    for step in taskd.steps(training.state(), until=programs.steps()):
        with step:
            now[0] = -1 if step.warming else step.number
            loss = training.step(step.number)
            torn(now[0])  # of a step that has no scheduler
            losses.add(step, loss)
    return {"digest": training.digest(), "losses": losses}


# What becomes of them. `run` makes a world of this program, with these variables, and gives what all ranks return.


def ways(run, names, settings):
    """By way: whether what is left is the same as without taskd, `{setting: ...}`."""
    names = ",".join(one.__name__ for one in WAYS) if names is None else names
    without = run(every_way, HOOKS="0", TASKD_CONTROL=None, WAYS=names)
    found = {}
    for name, variables in settings.items():
        with_ = run(every_way, WAYS=names, **variables)
        for way in without[0]:
            if "raised" in without[0][way] and IS_OLDER:
                continue  # this torch cannot do it itself
            assert "raised" not in without[0][way], (way, without[0][way]["raised"])
            same = [one[way] == other[way] for one, other in zip(with_, without)]
            found.setdefault(way, {})[name] = all(same) or [one[way] for one in (*with_, *without)]
        found.setdefault("reasons", []).extend(sum((one.get("reasons", []) for one in with_), []))
    return found
