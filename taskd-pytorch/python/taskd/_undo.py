"""What a commit window changes, copied when it opens where an operation in it may fail, and taken back where one does."""

import torch

from taskd import _link

BYTES_MAX = 256 << 20  # of state that is copied at the start of a commit window in which there are operations


class Undo:
    def __init__(self, state):
        self.state = state
        self.is_needed = True  # windows have operations in them; or nobody knows yet
        self.kept = None  # (tensors by path, the rest as bytes)
        self.said_why_not = False

    def keep(self):
        """Copies what the window is to change, where something in it may fail. What cannot be copied once is not tried again."""
        if not self.is_needed or self.said_why_not:
            return
        try:
            leaves = self.state.leaves()
            size = sum(leaf.numel() * leaf.element_size() for leaf in leaves.values())
            if size > BYTES_MAX:
                self.is_off(
                    "this rank's state (%d MiB) is larger than what is copied ahead of an optimizer's step with operations in it (%d MiB): "
                    "if one of these fails, the state is taken from a replica, or all start again" % (size >> 20, BYTES_MAX >> 20)
                )
            else:
                self.kept = {path: leaf.clone() for path, leaf in leaves.items()}, self.state.rest()
        except Exception as error:
            why = "this rank's state cannot be copied (%s: %s), so what an optimizer's step has changed is not taken back: if an operation in it "
            self.is_off((why + "fails, all start again") % (type(error).__name__, error))

    def is_off(self, why):
        """From now on, for every step."""
        self.said_why_not = True
        _link.say(why)

    def take_back(self):
        """Whether what the window has changed could be taken back."""
        if self.kept is None:
            return False
        (leaves, rest), self.kept = self.kept, None
        with torch.no_grad():
            for path, leaf in self.state.in_place().items():
                if path in leaves:
                    leaf.copy_(leaves[path])
        self.state.take_rest(rest, leaves)
        return True
