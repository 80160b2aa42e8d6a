"""Training programs, as a user would write them with taskd."""

import hashlib
import json
import os
import pickle
import random

import numpy
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def begin():
    import taskd

    if "DEFAULT_TIMEOUT" in os.environ:  # of what the program itself fetches
        import socket

        socket.setdefaulttimeout(float(os.environ["DEFAULT_TIMEOUT"]))
    dist.init_process_group("gloo")
    return taskd, dist.get_rank(), dist.get_world_size()


def digest(*objects):
    """SHA-256 over all state, and over the random numbers."""
    found = hashlib.sha256()

    def add(value):
        if isinstance(value, torch.Tensor):
            found.update(
                str((tuple(value.shape), value.dtype)).encode() + value.detach().contiguous().numpy().tobytes()
            )
        elif isinstance(value, dict):
            for key in sorted(value, key=repr):
                found.update(repr(key).encode())
                add(value[key])
        elif isinstance(value, (list, tuple)):
            for one in value:
                add(one)
        else:
            found.update(repr(value).encode())

    for one in objects:
        add(one.state_dict() if hasattr(one, "state_dict") else one)
    add(random.getstate())
    add(pickle.dumps(numpy.random.get_state()))
    add(torch.get_rng_state())
    return found.hexdigest()


class Losses(dict):
    """By step; what a rank computes anew must be what it was."""

    def add(self, step, loss):
        if step.warming:
            return
        value = float(loss.detach()).hex()
        known = self.setdefault(str(step.number), value)
        if known != value:
            raise AssertionError("step %d: the loss was %s and is %s" % (step.number, known, value))


def step_of(variable, rank):
    """In which step something befalls the rank, if anything does: the variable is `rank:step`."""
    wanted, _, step = os.environ.get(variable, "").partition(":")
    return int(step) if wanted == str(rank) else None


class Cut:
    """Shuts the connections of this process's groups down, once, at a step: INJECT is `rank:step`."""

    def __init__(self, rank):
        self.step = step_of("INJECT", rank)

    def is_due(self, number):
        return self.step is not None and number >= self.step and not os.path.exists(os.environ["RESULT"] + ".cut")

    def __call__(self, number):
        if self.is_due(number):
            open(os.environ["RESULT"] + ".cut", "w").close()
            import socket
            import stat

            for fd in os.listdir("/proc/self/fd"):
                try:
                    if not stat.S_ISSOCK(os.fstat(int(fd)).st_mode):
                        continue  # no process would close its copy
                    one = socket.socket(fileno=os.dup(int(fd)))
                except OSError:
                    continue
                with one:
                    try:
                        if one.family == socket.AF_INET and one.getpeername()[1] != int(os.environ["MASTER_PORT"]):
                            one.shutdown(socket.SHUT_RDWR)
                    except OSError:
                        pass


class Once:
    """Does something to this rank, once, at a step: the variable is `rank:step`."""

    def __init__(self, variable, rank, what):
        self.step, self.what = step_of(variable, rank), what

    def __call__(self, number):
        if number == self.step:
            self.step = None
            self.what()


def dies():
    os.kill(os.getpid(), 9)


def has_no_memory():
    raise MemoryError("there is no memory for these gradients")


class Refused:
    """An allocator refuses, once: REFUSED is `rank:step:place:which`. As real ones say it, not by a stand-in."""

    PLACES = "forward", "hook", "before", "after"

    def __init__(self, rank):
        wanted, _, rest = os.environ.get("REFUSED", "").partition(":")
        self.step, self.place, self.which = rest.split(":") if wanted == str(rank) else (None, None, None)

    def __call__(self, number, place):
        if self.step == str(number) and self.place == place:
            self.step = None
            getattr(self, self.which)()

    def torch(self):
        torch.empty(1 << 50)

    def numpy(self):
        numpy.empty(1 << 50)

    def map(self):
        import mmap

        mmap.mmap(-1, 1 << 52)

    def library(self):
        """What libraries say that are not here."""
        raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")


class Late:
    """Comes to nothing in a step until it is given up: LATE is `rank:step`."""

    def __init__(self, rank):
        self.step = step_of("LATE", rank)

    def __call__(self, number):
        import time

        from taskd import _session

        if number == self.step:
            self.step = None
            open(os.environ["RESULT"] + ".late", "w").close()
            while not _session.current.given_up:
                time.sleep(0.001)


class LateWriter:
    """A stand-in for a thread of gloo's that gets little time on a busy machine: when its group has long been given up,
    it still writes what had come before."""

    def __init__(self, tensor):
        import threading

        from taskd import _session

        self.session, self.tensor, self.ended = _session.current, tensor, False
        self.session.engine.under_way.add(self)
        threading.Thread(target=self.write).start()

    def write(self):
        import time

        until = None
        while until is None or time.monotonic() < until:  # it has something to do all the time
            if self.session.given_up and until is None:
                until = time.monotonic() + 0.1
        with torch.no_grad():
            self.tensor.fill_(7.0)
        self.ended = True

    def is_completed(self):
        return self.ended


def steps():
    return int(os.environ["STEPS"])


def net(wide=64, out=16):
    return torch.nn.Sequential(
        torch.nn.Linear(32, wide),
        torch.nn.BatchNorm1d(wide),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(wide, out),
    )


def noise():
    return torch.randn(16, 32) + random.random() + numpy.random.rand()


def ddp():
    """DDP with dropout, BatchNorm and a scheduler; every rank has other data and other random numbers. With several
    buckets, the connections can be cut when the first is under way."""
    taskd, rank, size = begin()
    torch.manual_seed(7)
    settings = json.loads(os.environ.get("SETTINGS", "{}"))
    model = DistributedDataParallel(net(int(os.environ.get("WIDE", "256"))), bucket_cap_mb=0.02, **settings)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
    torch.manual_seed(100 + rank)
    losses, cut, die, late, now = Losses(), Cut(rank), Once("DIE", rank, dies), Late(rank), [-1]
    next(model.parameters()).register_hook(lambda grad: cut(now[0]))  # of the last bucket
    short, refused = Once("SHORT", rank, has_no_memory), Refused(rank)
    list(model.parameters())[2].register_hook(lambda grad: short(now[0]))  # when the first bucket is under way
    list(model.parameters())[2].register_hook(lambda grad: refused(now[0], "hook"))
    for step in taskd.steps({"model": model, "optimizer": optimizer, "scheduler": scheduler}, until=steps()):
        with step:
            now[0] = -1 if step.warming else step.number
            late(now[0])
            optimizer.zero_grad()
            refused(now[0], "forward")
            loss = model(noise()).square().mean()
            die(now[0])
            loss.backward()
            refused(now[0], "before")
            optimizer.step()
            refused(now[0], "after")
            scheduler.step()
            losses.add(step, loss)
    return {"digest": digest(model, optimizer, scheduler), "losses": losses}


def left():
    """A loop that the program leaves in step 5, in the way that HOW names."""
    taskd, rank, size = begin()
    model = DistributedDataParallel(net(16))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def train(how):
        for step in taskd.steps({"model": model, "optimizer": optimizer}, until=20):
            with step:
                optimizer.zero_grad()
                model(noise()).square().mean().backward()
                if step.number == 5 and how == "break ahead of the optimizer":
                    break
                optimizer.step()
                if step.number == 5 and how == "break inside":
                    break
                if step.number == 5 and how == "raise":
                    raise KeyError("of the program")
            if step.number == 5 and how == "break":
                break
            if step.number == 5 and how == "return":
                return

    try:
        train(os.environ["HOW"])
    except KeyError:
        pass
    return {}


def timed():
    """How long steps take, in microseconds: on the clock, and of the processors' time."""
    import time

    taskd, rank, size = begin()
    torch.manual_seed(7)
    model = DistributedDataParallel(net(512), bucket_cap_mb=0.05)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(100 + rank)
    micros, began = [], 0
    for step in taskd.steps({"model": model, "optimizer": optimizer}, until=steps()):
        began = time.process_time_ns() if step.number == 20 else began
        before = time.perf_counter_ns()
        with step:
            optimizer.zero_grad()
            model(torch.randn(64, 32)).square().mean().backward()
            optimizer.step()
        micros.append((time.perf_counter_ns() - before) / 1000)
    used = (time.process_time_ns() - began) / 1000 / (steps() - 20)
    return {"digest": digest(model, optimizer), "micros": micros[20:], "used": used}


def unguarded():
    """Without `with`, and without naming any state."""
    taskd, rank, size = begin()
    torch.manual_seed(7)
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    torch.manual_seed(100 + rank)
    losses, late = {}, Late(rank)
    for step in taskd.steps(until=steps()):
        late(-1 if step.warming else step.number)
        loss = model(noise()).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses[str(step.number)] = float(loss.detach()).hex()  # the last one counts
    return {"digest": digest(model, optimizer, scheduler), "losses": {}, "last": losses[str(steps() - 1)]}


def behind():
    """Has code behind the `with` of a step: operations of all ranks, and what only works where the step was completed.
    With SHORT a step's body raises once."""
    taskd, rank, size = begin()
    torch.manual_seed(7)
    model = DistributedDataParallel(net())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
    torch.manual_seed(100 + rank)
    losses, short, numbers, given_up = Losses(), Once("SHORT", rank, has_no_memory), [], 0
    for step in taskd.steps({"model": model, "optimizer": optimizer, "scheduler": scheduler}, until=steps()):
        of_step = []
        with step:
            if step.completed:
                raise AssertionError("step %d has only begun" % step.number)
            optimizer.zero_grad()
            loss = model(noise()).square().mean()
            short(-1 if step.warming else step.number)
            loss.backward()
            optimizer.step()
            of_step.append(loss)
        scheduler.step()
        mean, ranks = torch.ones(1), [None] * size
        dist.all_reduce(mean)
        dist.all_gather_object(ranks, rank)
        if step.completed:
            losses.add(step, sum(of_step) / len(of_step))
            numbers.append(step.number)
        elif not step.warming:
            given_up += 1
    if numbers != sorted(set(numbers)) or step.completed is not (numbers[-1] == steps() - 1):
        raise AssertionError("steps were completed in this order: %s" % numbers)
    return {"digest": digest(model, optimizer, scheduler), "losses": losses, "given_up": given_up}


def two_loops():
    """Another model after some steps, and a loop of its own for it."""
    taskd, rank, size = begin()
    models, losses, done = [], Losses(), 0
    for until in (5, steps()):
        torch.manual_seed(7)
        models.append(DistributedDataParallel(net(128), bucket_cap_mb=0.01))
        optimizer = torch.optim.Adam(models[-1].parameters(), lr=1e-3)
        torch.manual_seed(100 + rank + len(models))
        for step in taskd.steps({"model": models[-1], "optimizer": optimizer}, start=done, until=until):
            with step:
                optimizer.zero_grad()
                loss = models[-1](noise()).square().mean()
                loss.backward()
                optimizer.step()
                losses.add(step, loss)
        done = until
    return {"digest": digest(models[-1]), "losses": losses}


class Branches(torch.nn.Module):
    """Two of the same shape, of which the last one to be used has its gradients first."""

    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ModuleList([torch.nn.Linear(32, 32, bias=False), torch.nn.Linear(32, 32, bias=False)])

    def forward(self, x):
        for part in reversed(self.parts) if os.environ.get("REVERSED") else self.parts:
            x = part(x)
        return x


def branches():
    taskd, rank, size = begin()
    torch.manual_seed(7)
    model = DistributedDataParallel(Branches(), bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for step in taskd.steps({"model": model, "optimizer": optimizer}, until=steps()):
        with step:
            optimizer.zero_grad()
            model(noise()).square().mean().backward()
            optimizer.step()
    return {"digest": digest(model, optimizer)}


def beside():
    """With state beside DDP's: WIDE is its shape, NAME its name, and without BIAS it has a part less. With AMSGRAD the
    optimizer has more."""
    taskd, rank, size = begin()
    torch.manual_seed(7)
    model = DistributedDataParallel(net())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, amsgrad=bool(os.environ.get("AMSGRAD")))
    average = torch.nn.Linear(16, int(os.environ.get("WIDE", "8")), bias=bool(os.environ.get("BIAS", "1")))
    state = {"model": model, "optimizer": optimizer, os.environ.get("NAME", "average"): average}
    torch.manual_seed(100 + rank)
    losses = Losses()
    for step in taskd.steps(state, until=steps()):
        with step:
            optimizer.zero_grad()
            loss = model(noise()).square().mean()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                average.weight.mul_(0.9).add_(next(model.parameters()).mean())
            losses.add(step, loss)
    return {"digest": digest(model, optimizer, average), "losses": losses}


def plain():
    """all_reduce by hand, in the default group and in two smaller ones, and an object from rank 0."""
    taskd, rank, size = begin()
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    torch.manual_seed(7)
    model = torch.nn.Linear(32, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    torch.manual_seed(100 + rank)
    losses, die, raised = Losses(), Once("DIE", rank, dies), []
    for step in taskd.steps({"model": model, "optimizer": optimizer}, until=steps()):
        with step:
            loss = model(noise()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            die(-1 if step.warming else step.number)
            try:
                sent = [step.number if rank == 0 else None]
                dist.broadcast_object_list(sent, src=0)
                gathered = [None] * size
                dist.all_gather_object(gathered, rank)
                flat = torch.cat([one.grad.view(-1) for one in model.parameters()])
                dist.all_reduce(flat, group=halves[rank // 2])
                work = dist.all_reduce(flat, async_op=True)
                work.wait()
            except BaseException as error:
                raised.append(type(error).__name__)
                raise
            if not step.warming and (sent != [step.number] or gathered != list(range(size))):
                raise AssertionError("step %d: sent %s, gathered %s" % (step.number, sent, gathered))
            for one, grad in zip(model.parameters(), flat.split([one.numel() for one in model.parameters()])):
                one.grad.copy_(grad.view_as(one) / size)
            optimizer.step()
            losses.add(step, loss)
    return {"digest": digest(model, optimizer), "losses": losses, "raised": raised}


class Digits(torch.utils.data.Dataset):
    def __init__(self):
        made = torch.Generator().manual_seed(3)
        self.x, self.y = torch.randn(403, 32, generator=made), torch.randint(0, 16, (403,), generator=made)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, at):
        return self.x[at] + 0.1 * torch.randn(32), self.y[at]


def accumulated():
    """Gradients of three batches a step, from a DataLoader that shuffles; with WORKERS it loads ahead in processes of
    its own. With LOGGED the last loss is averaged ahead of its backward pass, with IN_PLACE batches are changed where
    they are, and KEPT is how many of a step are kept."""
    taskd, rank, size = begin()
    if os.environ.get("KEPT"):
        from taskd import _batches

        _batches.KEPT_MAX = int(os.environ["KEPT"])
    torch.manual_seed(7)
    model = DistributedDataParallel(net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(100 + rank)
    data = Digits()
    sampler = torch.utils.data.DistributedSampler(data, size, rank, seed=5)
    loader = torch.utils.data.DataLoader(
        data, batch_size=8, sampler=sampler, num_workers=int(os.environ.get("WORKERS", "0"))
    )
    losses, die, late = Losses(), Once("DIE", rank, dies), Late(rank)
    for step in taskd.steps({"model": model, "optimizer": optimizer}, data=loader, until=steps()):
        with step:
            late(-1 if step.warming else step.number)
            for at, (x, y) in enumerate(step.batches(n=3)):
                x.mul_(0.5) if os.environ.get("IN_PLACE") else None
                if at < 2:
                    with model.no_sync():
                        torch.nn.functional.cross_entropy(model(x), y).backward()
                else:
                    loss = torch.nn.functional.cross_entropy(model(x), y)
                    if os.environ.get("LOGGED"):
                        die(-1 if step.warming else step.number)
                        dist.all_reduce(loss.detach().clone())
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.add(step, loss)
    return {"digest": digest(model, optimizer), "losses": losses, "epoch": step.epoch()}


def dumping():
    """Goes on from an emergency checkpoint: with DDP whose order does not depend on how long it lives, and a loader
    that shuffles by the program's random numbers, which loading takes some of as well. With OWN there is state of the
    program's own, and the loader has random numbers of its own. With ACCELERATED an Accelerator counts its batches."""
    import owns

    taskd, rank, size = begin()
    has_own = bool(os.environ.get("OWN"))
    torch.manual_seed(7)
    inner = net(int(os.environ.get("WIDE", "64")))
    model = DistributedDataParallel(
        torch.nn.Sequential(owns.Calls(), inner) if has_own else inner, find_unused_parameters=True
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
    torch.manual_seed(100 + rank)
    generator = torch.Generator().manual_seed(200 + rank) if has_own else None
    loader = torch.utils.data.DataLoader(Digits(), batch_size=24 if has_own else 8, shuffle=True, generator=generator)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    if has_own:
        state["own"] = owns.Own()
    accelerator = owns.accelerator() if os.environ.get("ACCELERATED") else None
    losses, die, start = Losses(), Once("DIE", rank, dies), taskd.load_checkpoint(state) or 0
    die_late = Once("DIE_LATE", rank, dies)
    torch.randn(rank + 1)  # whatever a program does before its loop
    for step in taskd.steps(state, data=loader, start=start, until=steps()):
        with step:
            optimizer.zero_grad()
            x, y = step.next()
            x = x * state["own"].sees() if has_own else x
            loss = torch.nn.functional.cross_entropy(model(x + random.random()), y)
            loss = loss * accelerator.accumulates() if accelerator is not None else loss
            die(-1 if step.warming else step.number)
            loss.backward()
            optimizer.step()
            scheduler.step()
            die_late(-1 if step.warming else step.number)
            losses.add(step, loss)
    return {"digest": digest(*state.values(), owns.state_of(generator)), "losses": losses, "start": start}


def gan():
    """Two models, two optimizers, so that operations come when the first one has stepped."""
    taskd, rank, size = begin()
    torch.manual_seed(7)
    maker = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32))
    )
    judge = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    )
    of_maker = torch.optim.Adam(maker.parameters(), lr=1e-3)
    of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3)
    torch.manual_seed(100 + rank)
    losses, cut = Losses(), Cut(rank)
    bce = torch.nn.functional.binary_cross_entropy_with_logits
    for step in taskd.steps({"g": maker, "d": judge, "og": of_maker, "od": of_judge}, until=steps()):
        with step:
            real, made = noise(), maker(torch.randn(16, 8))
            of_judge.zero_grad()
            both = judge(torch.cat([real, made.detach()]))
            bce(both, torch.cat([torch.ones(16, 1), torch.zeros(16, 1)])).backward()
            of_judge.step()
            if not step.warming and cut.is_due(step.number):
                LateWriter(next(judge.parameters()))
            cut(-1 if step.warming else step.number)
            of_maker.zero_grad()
            loss = bce(judge(made), torch.ones(16, 1))
            loss.backward()
            of_maker.step()
            losses.add(step, loss)
    return {"digest": digest(maker, judge, of_maker, of_judge), "losses": losses}


def scaled():
    """Mixed precision with a GradScaler whose scale grows, and falls in steps whose gradients are not finite: those it
    leaves out."""
    taskd, rank, size = begin()
    torch.manual_seed(7)
    model = DistributedDataParallel(net())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    torch.manual_seed(100 + rank)
    losses = Losses()
    for step in taskd.steps({"model": model, "optimizer": optimizer, "scaler": scaler}, until=steps()):
        with step:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(noise()).float().square().mean()
            scaler.scale(loss * (float("inf") if step.number % 8 == 7 else 1)).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.add(step, loss)
    return {"digest": digest(model, optimizer, scaler), "losses": losses}


def other_backend():
    """A second group over torch's backend for tests, which communicates with no rank: a stand-in for one that cannot be
    left, as NCCL's."""
    import torch.testing._internal.distributed.fake_pg  # noqa: F401  (registers it)

    taskd, rank, size = begin()
    dist.new_group(backend="fake")
    torch.manual_seed(7)
    model = DistributedDataParallel(net())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in taskd.steps({"model": model, "optimizer": optimizer}, until=steps()):
        with step:
            optimizer.zero_grad()
            model(noise()).square().mean().backward()
            optimizer.step()
    return {}


def zero():
    """An optimizer of which each rank has a part."""
    taskd, rank, size = begin()
    from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.manual_seed(7)
    model = DistributedDataParallel(net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
    torch.manual_seed(100 + rank)
    losses, cut = Losses(), Cut(rank)
    for step in taskd.steps({"model": model, "optimizer": optimizer}, until=steps()):
        with step:
            optimizer.zero_grad()
            loss = model(noise()).square().mean()
            loss.backward()
            cut(-1 if step.warming else step.number)
            optimizer.step()
            losses.add(step, loss)
    return {"digest": digest(model, optimizer.optim), "losses": losses}
