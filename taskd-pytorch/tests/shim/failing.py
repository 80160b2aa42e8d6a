"""A recorder that fails: a double. The program trains as usual."""

from taskd import _hooks


def of_the_double(name):
    raise ZeroDivisionError("of the double")


_hooks.Hook._code_of = lambda hook, name: of_the_double(name)

import torch  # noqa: E402

net = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for (numbers,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(3, 2))):
    net(numbers).sum().backward()
    optimizer.step()
torch.save(net.state_dict(), "/dev/null")
print("trained; %d hooks have failed" % _hooks.failures)
