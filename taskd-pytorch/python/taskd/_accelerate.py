"""accelerate's own counters: at which of several batches to a step its Accelerators are, and whether gradients are to be synchronized.

A program does not register them, and a step that is done again, or a process that takes the place of another, would go by others.
"""

import weakref

NAME = "accelerate"
made = []  # weak references to a program's Accelerators, in the order in which they were made


def install(module):
    """`module` is accelerate.accelerator."""
    init = module.Accelerator.__init__

    def noted(self, *args, **kwargs):
        init(self, *args, **kwargs)
        made.append(weakref.ref(self))

    noted.__wrapped__, noted.__doc__ = init, init.__doc__
    module.Accelerator.__init__ = noted


def state():
    """What a loop keeps of them; None where there are none."""
    return Counters() if any(one() is not None for one in made) else None


class Counters:
    def all(self):
        return [one for one in (one() for one in made) if one is not None]

    def state_dict(self):
        return {"steps": [one.step for one in self.all()], "sync_gradients": [bool(one.sync_gradients) for one in self.all()]}

    def load_state_dict(self, state):
        for one, step, sync in zip(self.all(), state["steps"], state["sync_gradients"]):
            one.step, one.gradient_state.sync_gradients = step, sync
