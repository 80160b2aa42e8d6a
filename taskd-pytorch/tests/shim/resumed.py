"""Optimizers whose step is called more or less often than a training step is done. The argument names one; each does
three steps."""

import sys
import tempfile

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

STEPS, BEFORE = 3, 20


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))


def train(net, optimizer, step=None, steps=STEPS):
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.ones(2, 4)).sum().backward()
        (step or optimizer.step)()


def adam(net):
    return torch.optim.Adam(net.parameters(), lr=0.01)


def saved(directory):
    """A distributed checkpoint after so many steps, as another process has left it: its steps are none of this
    one's."""
    net = model()
    optimizer = adam(net)
    for parameter in net.parameters():
        ones = torch.ones_like(parameter)
        optimizer.state[parameter] = {"step": torch.tensor(float(BEFORE)), "exp_avg": ones, "exp_avg_sq": ones.clone()}
    weights, state = get_state_dict(net, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=directory)


def resumed():
    """From a distributed checkpoint, for which torch steps the fresh optimizer once."""
    with tempfile.TemporaryDirectory() as directory:
        saved(directory)
        net = model()
        optimizer = adam(net)
        weights, state = get_state_dict(net, optimizer)
        dcp.load({"model": weights, "optimizer": state}, checkpoint_id=directory)
        set_state_dict(net, optimizer, model_state_dict=weights, optim_state_dict=state)
    train(net, optimizer)


def loaded_late():
    """A checkpoint is loaded when steps were done."""
    net, other = model(), model()
    optimizer, ahead = adam(net), adam(other)
    state = ahead.state_dict()
    state["state"] = {
        at: {"step": torch.tensor(float(BEFORE)), "exp_avg": torch.ones_like(one), "exp_avg_sq": torch.ones_like(one)}
        for at, one in enumerate(other.parameters())
    }
    train(net, optimizer)
    optimizer.load_state_dict(state)
    train(net, optimizer)


def saved_often():
    """Of an optimizer without state, which torch steps whenever it is saved."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step():
        optimizer.step()
        optimizer.zero_grad()
        get_state_dict(net, optimizer)

    train(net, optimizer, step)


def by_groups():
    """One call for each group of parameters, as ZeRO has it."""
    net = model()
    groups = [{"params": list(net[0].parameters())}, {"params": list(net[1].parameters())}]
    optimizer = torch.optim.SGD(groups, lr=0.1)

    def step():
        whole = optimizer.param_groups
        for group in whole:
            optimizer.param_groups = [group]
            optimizer.step()
        optimizer.param_groups = whole

    def initialize_optimizer_states():
        step()

    initialize_optimizer_states()
    train(net, optimizer, step)


def with_closure():
    """Several passes in one step."""
    net = model()
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = net(torch.ones(2, 4)).square().sum()
        loss.backward()
        return loss

    train(net, optimizer, lambda: optimizer.step(closure))


def around_another():
    """An optimizer inside of one, as torch's ZeRO has it."""

    class Outer(torch.optim.Optimizer):
        def __init__(self, inner):
            super().__init__(inner.param_groups, {})
            self.inner = inner

        def step(self, closure=None):
            return self.inner.step(closure)

    net = model()
    train(net, Outer(adam(net)))


def several():
    """Of which one steps twice as often."""
    net = model()
    one, other = torch.optim.SGD(net[0].parameters(), lr=0.1), torch.optim.SGD(net[1].parameters(), lr=0.1)

    def step():
        one.step()
        other.step()
        other.step()

    train(net, one, step)


def scaled():
    """A scaler leaves a step out, of which it alone knows."""
    net = model()
    optimizer, scaler, at = adam(net), torch.amp.GradScaler("cpu", init_scale=4.0), []

    def step():
        at.append(1)
        if len(at) == 2:
            net[0].weight.grad.fill_(float("inf"))
        scaler.step(optimizer)
        scaler.update()

    scaler.scale(torch.ones(1))
    train(net, optimizer, step, steps=STEPS + 1)


globals()[sys.argv[1]]()
