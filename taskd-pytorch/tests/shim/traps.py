"""What hooks could break: everything here is as it would be without them. Prints what it sees, for comparison."""

import copy
import gc
import inspect
import io
import pickle
import threading
import traceback
import weakref

import torch
import torch.distributed.checkpoint
from torch.utils.data import DataLoader, TensorDataset


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, numbers, fail=False):
        if fail:
            raise KeyError("of the program")
        return self.layer(numbers)


def raised(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if "/python/taskd/" in frame.filename or frame.name == "_wrapped_call_impl"]
        names = [frame.name for frame in frames if frame not in ours]
        return type(error).__name__, str(error), error.__cause__, error.__context__, names


net, numbers = Net(), torch.ones(4, 2)
loader = DataLoader(TensorDataset(numbers), batch_size=2)

# Functions look as they are.
checkpoint = torch.distributed.checkpoint.save_state_dict
for function in (torch.nn.Module.__call__, torch.save, checkpoint, type(iter(loader)).__next__):
    print(function.__module__, function.__qualname__, inspect.signature(function))
print(pickle.loads(pickle.dumps(torch.save)) is torch.save, torch.save is torch.serialization.save)

# Exceptions pass, and the next call is recorded as ever.
print(raised(net, numbers, fail=True))
print(raised(torch.save, threading.Lock(), io.BytesIO()))
print(raised(next, iter(DataLoader(TensorDataset(torch.ones(0, 2))))))
print(raised(next, iter(DataLoader([1, 2], collate_fn=lambda batch: 1 // 0))))
print(raised(net, numbers, fail=True))

# Copies and pickles hold nothing of ours.
for thing in (net, loader, torch.optim.SGD(net.parameters(), lr=0.1)):
    print(type(pickle.loads(pickle.dumps(thing))).__name__, type(copy.deepcopy(thing)).__name__)
    print(b"taskd" in pickle.dumps(thing))
print(raised(pickle.dumps, iter(loader)))

# Hooks of the program come in their order, and see what they would.
seen = []
net.register_forward_pre_hook(lambda *_: seen.append("pre"))
net.register_forward_hook(lambda *_: seen.append("post"))
net.register_full_backward_hook(lambda *_: seen.append("backward"))
net(numbers).sum().backward()
print(seen)

# Other ways to look at a module.
plain = Net()
print(torch.fx.symbolic_trace(plain, {"fail": False}).code)
print(torch.jit.trace(plain, numbers)(numbers).shape, torch.jit.script(torch.nn.Linear(2, 1)).code)

# Nothing is kept alive.
thing, batches, optimizer = Net(), iter(loader), torch.optim.SGD(net.parameters(), lr=0.1)
thing(numbers).sum().backward()
next(batches)
optimizer.step()
known = [weakref.ref(thing), weakref.ref(batches), weakref.ref(optimizer)]
del thing, batches, optimizer
gc.collect()
print([ref() for ref in known])
