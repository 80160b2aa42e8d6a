"""torch.compile with and without hooks: the same graphs. Prints what the compiler counted."""

import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))

    def forward(self, numbers):
        return self.layers(numbers) * 2


class Sub(Net):
    def __call__(self, numbers):
        return super().__call__(numbers) + 1


def compiled(what, **options):
    return torch.compile(what, backend="eager", **options)


def count(function):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for _ in range(3):
        function(numbers)
    counters = torch._dynamo.utils.counters
    print(counters["stats"], list(counters["graph_break"].values()))


net, sub, hooked, itself, numbers = Net(), Sub(), Net(), Net(), torch.ones(2, 4)
hooked.register_forward_hook(lambda _, __, out: out + 1)
itself.compile(backend="eager", fullgraph=True)
for module in (net, sub, hooked):
    count(compiled(module, fullgraph=True))
    count(compiled(lambda numbers: module(numbers) + 1, fullgraph=True))
count(compiled(lambda numbers: net.__call__(numbers) + 1, fullgraph=True))
count(itself)


def breaks(numbers):
    print("cannot be compiled")
    return net(numbers)


count(compiled(breaks))

# A training loop around a compiled function: no module is called where it could be seen; then one is.
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for forward in [compiled(lambda numbers: net(numbers))] * 6 + [net] * 2 + [compiled(net)] * 2:
    forward(numbers).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
