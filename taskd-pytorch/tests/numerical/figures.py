"""What taskd reports of trainings that report nothing themselves, over a stand-in for libtaskd: of each case the
figures by step, as reported and as the program itself computes them."""

import ctypes
import io
import json
import math
import os
import sys
from contextlib import redirect_stderr

STEPS = 6


class Native:
    """Stands in for libtaskd: keeps the figures in a list."""

    def __init__(self):
        self.names, self.figures, self.on = [""], [], True

    def name(self, text):
        self.names.append(text)
        return len(self.names) - 1

    def is_on(self, kind):
        return self.on

    def counter(self, code, value):
        self.figures.append((self.names[code >> 32], value))

    def begin(self, *_):
        return 0

    begin_step = end = hooked = except_ = mark = begin

    def by_step(self):
        """Returns `{step: {name: value}}`; not finite values as text."""
        steps, now = {}, None
        for name, value in self.figures:
            if name == "metric_step":
                now = steps.setdefault(int(value), {})
            else:
                now[name] = value if math.isfinite(value) else str(value)
        self.figures = []
        return steps


def install():
    """Installs the hooks as in a rank, where torch is not imported yet."""
    rank = sys.modules["_taskd_rank"]
    native, words = Native(), [ctypes.c_uint64() for _ in range(3)] + [ctypes.c_uint32()]
    steps, imports = rank.Steps(os.getpid(), *words), rank.AfterImport(None)
    import _taskd_framework
    from taskd import _step_recorder
    from taskd.torch import framework

    _taskd_framework.start(steps, imports.wait)
    framework.install(imports.wait, native)
    steps.then.append(_step_recorder.Steps(native).completed)
    native.steps = steps
    return native


def watch():
    from taskd.torch import numerical

    return numerical.current


def forget(native):
    """Begins to count steps from 1 again, as a new process does."""
    from taskd import _hooks
    from taskd._kinds import STEP

    now = watch()
    now.leader = now.reported = now.metric_step = None
    now.losses, now.clips, now.counts["skipped"] = [], [], 0
    now.figures.update(("loss", "grad_norm"))
    _hooks.hooks[STEP].newest = native.steps.step.value = 0


def data():
    import torch

    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.05), torch.randn(32, 8)


def norm_of(model):
    import torch

    return torch.nn.utils.get_total_norm([one.grad for one in model.parameters()]).item()


def plain(native):
    """Neither clips nor reports: all is found."""
    model, optimizer, x = data()
    expected = {}
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        expected[step] = {"loss": loss.item(), "grad_norm": norm_of(model)}
        optimizer.step()
    return expected


def accumulated(native):
    """Three backward passes for each step, and gradients that are clipped."""
    import torch

    model, optimizer, x = data()
    expected = {}
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        losses = []
        for part in range(3):
            loss = model(x[part * 8 : part * 8 + 8]).square().mean()
            loss.backward()
            losses.append(loss.item())
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        expected[step] = {"loss": sum(losses) / 3, "grad_norm": norm.item()}
        optimizer.step()
    return expected


def several(native):
    """Two optimizers that step in turn: the losses of both are one step's."""
    model, optimizer, x = data()
    other, other_optimizer, _ = data()
    expected = {}
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        first = model(x).square().mean()
        first.backward()
        norm = norm_of(model)
        optimizer.step()
        other_optimizer.zero_grad()
        second = other(x).abs().mean()
        second.backward()
        other_optimizer.step()
        before = expected.get(step - 1, {}).pop("second", None)
        losses = [first.item()] if before is None else [before, first.item()]
        expected[step] = {"loss": sum(losses) / len(losses), "grad_norm": norm, "second": second.item()}
    expected[STEPS].pop("second")
    return expected


def scaled(native):
    """A gradient scaler finds infinite gradients in the third step, which it skips."""
    import torch

    model, optimizer, x = data()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    expected = {}
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        if step == 3:
            model[0].weight.grad[0, 0] = math.inf
        scaler.unscale_(optimizer)
        norm = norm_of(model)
        expected[step] = {"loss": loss.item(), "grad_norm": norm if math.isfinite(norm) else str(norm)}
        if step == 3:
            expected[step]["skipped_steps"] = 1
        scaler.step(optimizer)
        scaler.update()
    return expected


def reported(native):
    """The program reports its loss itself from the third step on, and taskd no longer does."""
    import taskd

    model, optimizer, x = data()
    expected = {}
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        expected[step] = {"loss": loss.item(), "grad_norm": norm_of(model)}
        if step >= 3:
            taskd._code(taskd._moments, "loss", taskd.USER, "loss")  # what `taskd.counter` does outside of a job
            expected[step].pop("loss")
        optimizer.step()
    return expected


def compiled(native):
    """A compiled model: its backward pass and its optimizer are called by Python."""
    import torch

    model, optimizer, x = data()
    fast = torch.compile(model, backend="eager")
    expected = {}
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        loss = fast(x).square().mean()
        loss.backward()
        expected[step] = {"loss": loss.item(), "grad_norm": norm_of(model)}
        optimizer.step()
    return expected


def switched_off(native):
    """Nothing is computed while the kind of records is off."""
    native.on = False
    plain(native)
    native.on = True
    return {}


def explicit(native):
    """A program without an optimizer reports its steps."""
    import torch
    from taskd.torch import numerical

    model, _, x = data()
    expected = {}
    for step in range(1, STEPS + 1):
        loss = model(x).square().mean()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        norm = torch.nn.utils.get_total_norm(grads)
        numerical.report(step, loss=loss, grad_norm=norm)
        expected[step] = {"loss": loss.item(), "grad_norm": norm.item()}
        with torch.no_grad():
            for one, grad in zip(model.parameters(), grads):
                one -= 0.05 * grad
    return expected


def fails(native):
    """A recorder that raises: the training continues, and one line reports it."""

    def breaks(code, value):
        raise OSError("no recorder")

    native.counter, errors = breaks, io.StringIO()
    with redirect_stderr(errors):
        plain(native)
    return {"failed": watch().counts["failed"], "lines": errors.getvalue().splitlines()}


def main():
    native = install()
    import torch

    torch.set_num_threads(1)
    found = {}
    for case in (plain, accumulated, several, scaled, reported, compiled, switched_off, explicit):
        forget(native)
        expected = case(native)
        found[case.__name__] = {"expected": expected, "reported": native.by_step()}
    forget(native)
    found["fails"] = fails(native)
    with open(sys.argv[1], "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
