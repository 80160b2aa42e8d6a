"""Undo of a commit window: the state that it changes is copied when it opens, if an operation in it may fail, and
restored if one does.
"""

from __future__ import annotations

import torch

from taskd import _link

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BYTES_MAX = 256 << 20  # of state that is copied at the start of a commit window with operations in it


class Undo:
    def __init__(self, state: Any) -> None:
        self.state = state
        self.is_needed = True  # True if windows have operations in them, or if this is not known yet
        self.kept = None  # (tensors by path, the rest as bytes)
        self.has_reported_why_not = False

    def keep(self) -> None:
        """Copies what the window is to change, if an operation in it may fail. After one failure no copy is tried
        again."""
        if not self.is_needed or self.has_reported_why_not:
            return
        try:
            leaves = self.state.leaves()
            size = sum(leaf.numel() * leaf.element_size() for leaf in leaves.values())
            if size > BYTES_MAX:
                self.is_off(
                    "this rank's state (%d MiB) is larger than what is copied ahead of an "
                    "optimizer's step with operations in it (%d MiB): "
                    "if one of these fails, the state is taken from a replica, or "
                    "all start again" % (size >> 20, BYTES_MAX >> 20)
                )
            else:
                self.kept = {path: leaf.clone() for path, leaf in leaves.items()}, self.state.rest()
        except Exception as error:
            why = (
                "this rank's state cannot be copied (%s: %s), so what an optimizer's step has "
                "changed is not taken back: if an operation in it "
            )
            self.is_off((why + "fails, all start again") % (type(error).__name__, error))

    def is_off(self, why: str) -> None:
        """Disables copies for all later steps, and logs the reason."""
        self.has_reported_why_not = True
        _link.say(why)

    def take_back(self) -> bool:
        """Restores what the window has changed. Returns True if there was a copy."""
        if self.kept is None:
            return False
        (leaves, rest), self.kept = self.kept, None
        with torch.no_grad():
            for path, leaf in self.state.in_place().items():
                if path in leaves:
                    leaf.copy_(leaves[path])
        self.state.take_rest(rest, leaves)
        return True
