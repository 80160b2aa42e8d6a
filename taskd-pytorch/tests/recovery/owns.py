"""Training programs with state of their own: objects that have `state_dict` and `load_state_dict`, and a loader's
random numbers."""

import os
import types

import torch
import torch.distributed as dist
from programs import Cut, Digits, Losses, Once, begin, dies, digest, net, noise, steps
from torch.nn.parallel import DistributedDataParallel


def state_of(generator):
    return None if generator is None else generator.get_state()


class Own:
    """State of a program's own, the same on all ranks, that is changed ahead of the optimizer's step: a counter, an
    average, all that was seen, and random numbers. `state_dict` gives copies."""

    def __init__(self, size=4):
        self.seen, self.average, self.all, self.names = 0, torch.zeros(size), torch.zeros(0), []
        self.generator = torch.Generator().manual_seed(11)

    def sees(self):
        """Something that depends on all that there was."""
        self.seen += 1
        drawn = torch.randn(1, generator=self.generator)
        self.average.mul_(0.9).add_(drawn)
        self.all = torch.cat([self.all, drawn])
        self.names.append("seen %d" % self.seen)
        return 1 + 0.01 * float(self.average[0] + self.all.sum()) + 0.001 * self.seen

    def state_dict(self):
        tensors = {"average": self.average.clone(), "all": self.all.clone(), "random": self.generator.get_state()}
        return dict(tensors, seen=self.seen, names=self.names)

    def load_state_dict(self, state):
        self.seen, self.average, self.all, self.names = (state[name] for name in ("seen", "average", "all", "names"))
        self.generator.set_state(state["random"])


class Calls(torch.nn.Module):
    """Counts how often it was called, in what torch calls the extra state of a module."""

    def __init__(self):
        super().__init__()
        self.calls, self.sum = 0, torch.zeros(1)

    def forward(self, x):
        if self.training:
            self.calls += 1
            self.sum = self.sum + 0.5
        return x * (1 + 0.001 * self.calls + 0.001 * float(self.sum))

    def get_extra_state(self):
        return {"calls": self.calls, "sum": self.sum}

    def set_extra_state(self, state):
        self.calls, self.sum = state["calls"], state["sum"]


class Accelerator:
    """Stands for accelerate's: it has a counter of its own that no program registers, by which a step's loss goes."""

    is_a_stand_in = True

    def __init__(self):
        self.step, self.gradient_state = 0, types.SimpleNamespace(sync_gradients=True)

    @property
    def sync_gradients(self):
        return self.gradient_state.sync_gradients

    def accumulates(self):
        self.step += 1
        self.gradient_state.sync_gradients = self.step % 3 == 0
        return 1 + 0.001 * self.step + 0.1 * self.sync_gradients


def accelerator():
    """One that taskd knows as those of accelerate."""
    from taskd.torch import accelerate

    accelerate.install(types.SimpleNamespace(Accelerator=Accelerator))
    return Accelerator()


def keeping():
    """State of the program's own, a module with extra state, and an unnamed gradient scaler. With LOGGED ranks
    meet once more between gradients and the optimizer's step."""
    taskd, rank, size = begin()
    torch.manual_seed(7)
    model = DistributedDataParallel(torch.nn.Sequential(Calls(), net()))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler, own = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3), Own()
    torch.manual_seed(100 + rank)
    losses, die = Losses(), Once("DIE", rank, dies)
    for step in taskd.steps({"model": model, "optimizer": optimizer, "own": own}, until=steps()):
        with step:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(noise() * own.sees()).float().square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if os.environ.get("LOGGED"):
                die(-1 if step.warming else step.number)
                dist.all_reduce(norm)
            scaler.step(optimizer)
            scaler.update()
            losses.add(step, loss)
    return {"digest": digest(model, optimizer, own, scaler), "losses": losses}


class Large(Own):
    """More of it than is copied at every step. With GIVES=copies a change by a step cannot be detected; otherwise the
    tensors themselves are given."""

    def __init__(self):
        Own.__init__(self, size=5 << 20)

    def state_dict(self):
        state = Own.state_dict(self)
        return state if os.environ["GIVES"] == "copies" else dict(state, average=self.average)


def large():
    """With CHANGES=early a large object is changed ahead of the optimizer's step, else after it."""
    taskd, rank, size = begin()
    torch.manual_seed(7)
    model = DistributedDataParallel(net())
    optimizer, own = torch.optim.Adam(model.parameters(), lr=1e-3), Large()
    torch.manual_seed(100 + rank)
    losses, is_early = Losses(), os.environ["CHANGES"] == "early"
    cut = Cut(rank)
    for step in taskd.steps({"model": model, "optimizer": optimizer, "own": own}, until=steps()):
        with step:
            optimizer.zero_grad()
            own.sees() if is_early else None
            loss = model(noise()).square().mean()
            cut(-1 if step.warming else step.number)
            loss.backward()
            optimizer.step()
            own.sees() if not is_early else None
            losses.add(step, loss)
    return {"digest": digest(model, optimizer, own), "losses": losses}


class Container:
    """Holds others, as a framework's trainer does, and gives their state as its own."""

    def __init__(self, **held):
        self.held = held

    def state_dict(self):
        return {name: one.state_dict() for name, one in self.held.items()}

    def load_state_dict(self, state):
        for name, one in self.held.items():
            one.load_state_dict(state[name])


def late():
    """Something is used from step 6 on: a scheduler that another one goes through, or an unnamed one, an
    optimizer, a scaler. HOW names it; with made_late it is only made then."""
    taskd, rank, size = begin()
    how = os.environ["HOW"]
    torch.manual_seed(7)
    model = DistributedDataParallel(net())
    *most, last = list(model.parameters())
    optimizer, other = torch.optim.Adam(most, lr=1e-3), torch.optim.Adam([last], lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    one = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
    two = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    state = {"model": model, "optimizer": optimizer}
    if how == "sequential":
        state["scheduler"] = torch.optim.lr_scheduler.SequentialLR(optimizer, [one, two], [6])
    elif how == "chained":
        state["scheduler"] = torch.optim.lr_scheduler.ChainedScheduler([one, two])
    elif how == "container":
        state["trainer"] = Container(first=one, second=two, optimizer=optimizer)
    torch.manual_seed(100 + rank)
    losses, die = Losses(), Once("DIE", rank, dies)
    for step in taskd.steps(state, until=steps()):
        with step:
            is_late = step.number >= 6 and not step.warming
            optimizer.zero_grad()
            other.zero_grad()
            loss = model(noise()).square().mean()
            die(-1 if step.warming else step.number)
            if how == "made_late" and step.number == 6:
                two = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
            (scaler.scale(loss) if how == "scaler" and is_late else loss).backward()
            if how == "scaler" and is_late:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            if how == "optimizer" and is_late:
                other.step()
            if how in ("sequential", "chained"):
                state["scheduler"].step()
            else:
                (two if is_late else one).step()
            losses.add(step, loss)
    return {"digest": digest(model, optimizer, other, one, two, scaler), "losses": losses}


class Loss(torch.nn.Module):
    """Keeps a mean of what it has seen, which is each rank's own."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(1))


class Shadow(torch.nn.Module):
    """A mean of parameters, in buffers."""

    def __init__(self, model):
        super().__init__()
        for at, one in enumerate(model.parameters()):
            self.register_buffer("of_%d" % at, one.detach().clone())

    def update(self, model):
        with torch.no_grad():
            for mine, one in zip(self.buffers(), model.parameters()):
                mine.mul_(0.9).add_(one, alpha=0.1)


class Noisy(torch.optim.SGD):
    """Takes random numbers in its step."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for one in group["params"]:
                one.add_(torch.randn(1), alpha=1e-6)
        return super().step(closure)


def changes_late():
    """Changes state after its backward pass: averages of the weights (with BatchNorm's buffers, for SWA), as modules
    and as buffers; each rank's own mean of its loss (OWN); and an optimizer that calls for several passes with dropout
    (LBFGS), or takes random numbers itself (NOISY). The victim dies at the end of its step, or ahead of what changes
    late (EARLY)."""
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    taskd, rank, size = begin()
    how = os.environ["HOW"]
    torch.manual_seed(7)
    model = DistributedDataParallel(net(), broadcast_buffers=how != "own_buffers")
    if how == "lbfgs":
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3, history_size=4)
    else:
        optimizer = (Noisy if how == "noisy" else torch.optim.SGD)(model.parameters(), lr=1e-2, momentum=0.9)
    average = AveragedModel(model.module, multi_avg_fn=get_ema_multi_avg_fn(0.9) if how == "ema" else None)
    shadow, own = Shadow(model), Loss()
    state = {"model": model, "optimizer": optimizer, "average": average, "shadow": shadow, "own": own}
    torch.manual_seed((300 if how == "noisy" else 100 + rank))
    losses, early, die = Losses(), Once("EARLY", rank, dies), Once("DIE", rank, dies)
    for step in taskd.steps(state, until=steps()):
        with step:
            x = noise()

            def closure():
                optimizer.zero_grad()
                loss = model(x + 0.1 * torch.randn(1)).square().mean()
                loss.backward()
                return loss

            if how == "lbfgs":
                loss = optimizer.step(closure)
            else:
                loss = closure()
                optimizer.step()
            number = -1 if step.warming else step.number
            early(number)
            average.update_parameters(model.module)
            shadow.update(model)
            if how == "own":
                own.mean.mul_(0.9).add_(loss.detach())
            die(number)
            late_noise = torch.rand(1)
            losses.add(step, loss.detach() + late_noise[0])
    return {"digest": digest(model, optimizer, average, shadow, own), "losses": losses}


class Still(torch.nn.Module):
    """Has a parameter whose gradient is always zero, as a part of an adapter has at first."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x + 0 * self.scale


def carrying():
    """Every second step leaves its gradients to the next one (CARRIES), of which the first may be zero, or all zero
    them, in one of the ways that there are."""
    taskd, rank, size = begin()
    torch.manual_seed(7)
    how = os.environ["CARRIES"]
    model = DistributedDataParallel(torch.nn.Sequential(Still(), net()) if how == "others" else net())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in taskd.steps({"model": model, "optimizer": optimizer}, until=steps()):
        with step:
            if how in ("first", "model"):
                (optimizer if how == "first" else model).zero_grad(set_to_none=False)
            if how in ("yes", "others") and step.number % 2 == 0:
                with model.no_sync():
                    model(noise()).square().mean().backward()
                continue
            model(noise()).square().mean().backward()
            optimizer.step()
            if how not in ("first", "model"):
                optimizer.zero_grad(set_to_none=how != "zeros")
    return {}


def shuffled():
    """A loader with random numbers of its own, as torch's notes on reproducibility have it, some of which the program
    takes as well. With REPLACED the sampler draws some of them in the middle of an epoch, and the program takes
    none."""
    taskd, rank, size = begin()
    torch.manual_seed(7)
    model = DistributedDataParallel(net())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(100 + rank)
    generator, data = torch.Generator().manual_seed(200 + rank), Digits()
    order = {"shuffle": True}
    if os.environ.get("REPLACED"):
        order = {
            "sampler": torch.utils.data.RandomSampler(data, replacement=True, num_samples=200, generator=generator)
        }
    workers = int(os.environ.get("WORKERS", "0"))
    loader = torch.utils.data.DataLoader(data, batch_size=24, generator=generator, num_workers=workers, **order)
    losses = Losses()
    for step in taskd.steps({"model": model, "optimizer": optimizer}, data=loader, until=steps()):
        with step:
            optimizer.zero_grad()
            for x, y in step.batches(n=2):
                if "sampler" not in order:
                    x = x + 0.1 * torch.randn(x.shape, generator=generator)
                loss = torch.nn.functional.cross_entropy(model(x), y)
                loss.backward()
            optimizer.step()
            losses.add(step, loss)
    return {"digest": digest(model, optimizer, state_of(generator)), "losses": losses}


def over_an_epochs_end():
    """A program that saves in the middle of a step across an epoch's end saves where that step began. Returns the
    batches there, and those of another program that continues there; with random numbers of the loader's own, and with
    the program's."""
    from taskd import _batches
    from taskd.torch.data import loader as _loader

    def streams(generator):
        loader = torch.utils.data.DataLoader(list(range(10)), batch_size=2, shuffle=True, generator=generator)
        return _batches.Streams(_loader.open_at, _loader.Copier()), loader

    def batches(stream, count):
        return [stream.next().tolist() for _ in range(count)]

    found = {}
    for name, generator in (("own", torch.Generator().manual_seed(3)), ("program", None)):
        torch.manual_seed(1)
        one, loader = streams(generator)
        stream = one.of(loader)
        batches(stream, 3)
        one.begin_step()
        random = torch.get_rng_state()
        here = batches(stream, 3)  # two of this epoch, and one of the next
        other, there = streams(generator and torch.Generator().manual_seed(4))
        torch.manual_seed(2)
        other.seek(one.positions())
        torch.set_rng_state(random)
        found[name] = [here, batches(other.of(there), 3)]
    return found
