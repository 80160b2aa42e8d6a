"""DataLoader: how long the training loop waits for its next batch."""

from taskd import _hooks
from taskd._kinds import DATA_LOADER as KIND


def install(module, native):
    """`module` is torch.utils.data.dataloader. Every iterator that it has inherits its `__next__` from one class."""
    iterator = module._BaseDataLoaderIter
    iterator.__next__ = _hooks.outermost(_hooks.of(native, KIND), "dataloader", iterator.__next__)
