"""Figures of a training that its program need not report: the loss and the norm of the gradients of each step, and
checksums of the parameters that DDP keeps equal on its ranks. The supervisor's detector of numerical faults reads them.

`TASKD_NUMERICAL` in the environment chooses them: `on`, or some of `loss`, `grad_norm` and `checksum` with commas
between them. A program whose steps are not those of torch's optimizers calls `report` itself.

  * `watch`: the hooks, and what they report of each step;
  * `checksums`: checksums of parameters, one part at a time;
  * `late`: values of a device that are read without a wait for it.

Nothing here issues a collective, waits for a device or raises. A hook that fails is switched off, and that is reported.
Of gradients that are sharded tensors (FSDP2, tensor parallelism) the norm is that of this rank's part. Sharded
parameters have no replica, so they have no checksum. An optimizer or a backward pass inside of a compiled function is
seen only if torch's compiler calls it as Python does.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterable

    import torch

    from taskd.torch.numerical.watch import Watch

VARIABLE = "TASKD_NUMERICAL"
FIGURES = ("loss", "grad_norm", "checksum")

current: Watch | None = None


def chosen(text: str) -> set[str]:
    """Returns the figures that a value of the variable chooses; unknown words are logged."""
    words = {word.strip() for word in text.split(",")} - {"", "0", "off", "none"}
    if words & {"on", "1", "all"}:
        return set(FIGURES)
    for unknown in sorted(words - set(FIGURES)):
        from taskd import _link

        _link.say("%s: %r is unknown; it takes `on`, or some of %s" % (VARIABLE, unknown, ", ".join(FIGURES)))
    return words & set(FIGURES)


def install(after_import: Callable[[str, Callable[[Any], object]], None], native: Any) -> None:
    """Installs the hooks, if the variable chooses any figure. Called once, in the rank."""
    global current
    figures = chosen(os.environ.get(VARIABLE, ""))
    if not figures or current is not None:
        return
    from taskd.torch.numerical.watch import Watch

    current = Watch(native, figures)
    current.install(after_import)


def report(
    step: int,
    loss: torch.Tensor | float | None = None,
    grad_norm: torch.Tensor | float | None = None,
    modules: Iterable[torch.nn.Module] = (),
) -> None:
    """Reports the figures of training step `step`, from 1, of a program with its own loop: to be called with the same
    steps on all ranks, before the parameters change in this step. `modules` are DistributedDataParallel modules; the
    checksum is that of their parameters after the step before. From the first call on, the hooks report nothing."""
    global current
    from taskd._native import Nothing, native

    if current is None:
        if isinstance(getattr(native, "real", native), Nothing):
            return
        from taskd.torch.numerical.watch import Watch

        current = Watch(native, set())
    current.takes_report(step, loss, grad_norm, list(modules))
