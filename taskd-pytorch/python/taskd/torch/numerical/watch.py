"""The hooks: they see the loss in a backward pass, the norm of the gradients where the program clips them or an
optimizer steps, and a step that a gradient scaler skips, and report them for each step.

A step's figures are reported when its optimizer begins to step. Of several optimizers, the one counts whose steps are
the training's (`Steps` in sitecustomize.py). Of several losses in one step, as with gradient accumulation, it is the
mean. The norm of gradients that the program does not clip is computed here, seldom enough to take about 0.1 ms per
step.

A step that a gradient scaler skips has an infinite norm, and is counted as skipped: neither is a fault unless it lasts.
"""

from __future__ import annotations

import math
import os
import time
import weakref
from _thread import get_ident

from taskd import _hooks, _link, _session
from taskd._kinds import STEP, USER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Sequence

    import torch

LOSSES_MAX = 1024  # of one step; more are counted, and not part of the mean
CLIPS_MAX = 256
OPTIMIZERS_MAX = 64  # whose modules have checksums
NORM_BYTES_PER_STEP = 1 << 20  # of gradients, on average: 0.1 ms on a processor
NORM_BYTES_PER_STEP_ON_DEVICE = 256 << 20  # not measured
METRIC_STEP, SKIPPED, LOSS, GRAD_NORM, CHECKSUM = "metric_step", "skipped_steps", "loss", "grad_norm", "checksum"


class Watch:
    def __init__(self, native: Any, figures: set[str]) -> None:
        self.native, self.figures = native, figures
        self.every = max(number(os.environ.get("TASKD_CHECKSUM_EVERY")), 0)
        self.thread, self.pid = get_ident(), os.getpid()
        self.codes: dict[str, int] = {}  # of the recorder, by name
        if hasattr(native, "then"):
            native.then.append(self.codes.clear)
        self.losses: list[Any] = []
        self.clips: list[Any] = []
        self.scaled: Any = None  # (weak reference to a scaled loss, the loss itself)
        self.leader: Any = None  # weak reference to the optimizer whose steps count
        self.optimizers: Any = weakref.WeakSet()
        self.norm_every: Any = weakref.WeakKeyDictionary()  # by optimizer
        self.modules: Any = None  # weak references to the modules with checksums, and the number of what was made then
        self.begun = 0  # optimizer steps that have begun
        self.begun_at = 0  # the step's number when the last of them did
        self.reported: int | None = None  # the step that was reported last
        self.metric_step: int | None = None  # the step of the latest recorded figures
        self.late: Any = None
        self.checksums: Any = None
        self.counts = {"skipped": 0, "unseen": 0, "sharded": 0, "failed": 0}
        self.spent_ns = 0  # of the program's time, in the hooks
        for name in (LOSS, GRAD_NORM):
            if name in figures:
                _hooks.hooks[name] = Stopper(figures, name)

    # Installation. Each hook is a wrapper that calls the program's function unchanged.

    def install(self, after_import: Callable[[str, Callable[[Any], object]], None]) -> None:
        from taskd.torch import registry

        if LOSS in self.figures:
            after_import("torch.autograd", self.of_backward)
        if GRAD_NORM in self.figures:
            after_import("torch.nn.utils.clip_grad", self.of_clipping)
            after_import("torch.distributed.fsdp.fully_sharded_data_parallel", self.of_fsdp)
        after_import("torch.amp.grad_scaler", self.of_scalers)
        after_import("torch.optim.optimizer", self.of_optimizers)
        after_import("torch.nn.parallel.distributed", lambda module: registry.note(module.DistributedDataParallel))

    def of_backward(self, module: Any) -> None:
        def before(*args, **kwargs):
            self.guarded(self.sees, args[0] if args else kwargs.get("tensors"))

        module.backward = self.around(module.backward, before=before)

    def of_clipping(self, module: Any) -> None:
        clip = self.around(module.clip_grad_norm_, after=lambda norm, *_, **__: self.guarded(self.clipped, norm))
        module.clip_grad_norm_ = clip

    def of_fsdp(self, module: Any) -> None:
        fsdp = module.FullyShardedDataParallel
        clip = self.around(fsdp.clip_grad_norm_, after=lambda norm, *_, **__: self.guarded(self.clipped, norm))
        fsdp.clip_grad_norm_ = clip

    def of_scalers(self, module: Any) -> None:
        scaler, begun = module.GradScaler, [0]

        def scaled(result, _, outputs, *__, **___):
            self.guarded(self.scales, result, outputs)

        def before(*_, **__):
            begun[0] = self.begun

        def after(_, scaler, optimizer, *__, **___):
            if self.begun == begun[0]:
                self.guarded(self.skips, scaler, optimizer)

        scaler.scale = self.around(scaler.scale, after=scaled)
        scaler.step = self.around(scaler.step, before=before, after=after)

    def of_optimizers(self, module: Any) -> None:
        def before_step(optimizer, *_):
            self.guarded(self.begins, optimizer)

        def after_step(optimizer, *_):
            self.guarded(self.ends, optimizer)

        # torch.compile leaves them out of its graphs without a warning
        before_step._torchdynamo_disable = after_step._torchdynamo_disable = True  # pyright: ignore[reportFunctionMemberAccess]
        module.register_optimizer_step_pre_hook(before_step)
        module.register_optimizer_step_post_hook(after_step)

    def around(self, function: Any, before: Any = None, after: Any = None) -> Any:
        def called(*args, **kwargs):
            if before is not None:
                before(*args, **kwargs)
            result = function(*args, **kwargs)
            if after is not None:
                after(result, *args, **kwargs)
            return result

        return _hooks.in_place_of(function, called)

    def guarded(self, hook: Callable[..., Any], *args: Any) -> None:
        """Calls a hook in the rank's main thread, if torch does not only trace. A failure switches all of them off."""
        if self.counts["failed"] or get_ident() != self.thread or os.getpid() != self.pid:
            return
        begun = time.perf_counter_ns()
        try:
            from taskd.torch import tracing

            if not tracing.is_tracing():
                hook(*args)
        except Exception as error:
            self.counts["failed"] += 1
            why = "%s: %s" % (type(error).__name__, error)
            _link.say("no loss, gradient norm and checksum is reported from here on, as a hook has failed: %s" % why)
        self.spent_ns += time.perf_counter_ns() - begun

    # What the hooks see.

    def sees(self, roots: Any) -> None:
        """Takes the root of a backward pass, if it is one number: a loss."""
        import torch

        if isinstance(roots, (list, tuple)) and len(roots) == 1:
            roots = roots[0]
        if not isinstance(roots, torch.Tensor) or roots.numel() != 1 or not roots.is_floating_point():
            return
        if hasattr(roots, "to_local") or torch._C._current_graph_task_id() != -1:  # a pass inside of another one
            return
        if len(self.losses) >= LOSSES_MAX:
            self.counts["unseen"] += 1
            return
        is_scaled = self.scaled is not None and self.scaled[0]() is roots
        loss = self.scaled[1] if is_scaled else roots
        self.losses.append(loss.item() if loss.device.type == "cpu" else loss.detach())

    def scales(self, scaled: Any, loss: Any) -> None:
        import torch

        if isinstance(scaled, torch.Tensor) and isinstance(loss, torch.Tensor) and loss.numel() == 1:
            self.scaled = weakref.ref(scaled), loss.detach()

    def clipped(self, norm: Any) -> None:
        if hasattr(norm, "to_local"):  # a partial one of this rank; the whole one takes a collective
            self.counts["sharded"] += 1
        elif len(self.clips) < CLIPS_MAX:
            self.clips.append(norm.detach() if hasattr(norm, "detach") else float(norm))

    def skips(self, scaler: Any, optimizer: Any) -> None:
        """Called after a scaler has not called its optimizer's step; torch itself has read the device for that."""
        found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values()
        if not any(one.item() for one in found):
            return
        step = self.number()
        self.counts["skipped"] += 1
        self.late_reads().add(step, SKIPPED, [self.counts["skipped"]])
        self.figures_of(step, [math.inf] if GRAD_NORM in self.figures else [])

    def begins(self, optimizer: Any) -> None:
        """Called before an optimizer's step, with the gradients that it applies."""
        self.begun += 1
        step = self.begun_at = self.number()
        if len(self.optimizers) < OPTIMIZERS_MAX and optimizer not in self.optimizers:
            self.optimizers.add(optimizer)
            self.modules = None
        leader = self.leader() if self.leader is not None else None
        if leader is not None and leader is not optimizer or step == self.reported:
            return
        self.reported = step
        if not self.figures or not self.native.is_on(USER):
            self.losses, self.clips = [], []
            return
        self.late_reads().look()
        if CHECKSUM in self.figures and in_loop() is None:  # in a loop of `taskd.steps` there are others
            self.sums_after(step - 1, self.modules_here())
        norms = self.norms(step, optimizer) if GRAD_NORM in self.figures else []
        self.figures_of(step, norms)

    def ends(self, optimizer: Any) -> None:
        """Called after an optimizer's step: if the training's count has risen in it, it is the one that counts."""
        if self.number() != self.begun_at:
            self.leader = weakref.ref(optimizer)

    def takes_report(self, step: int, loss: Any, grad_norm: Any, modules: Sequence[Any]) -> None:
        """Reports a step of a program that reports its steps itself."""
        self.figures.clear()
        self.guarded(self.take_figures, step, loss, grad_norm, modules)

    def take_figures(self, step: int, loss: Any, grad_norm: Any, modules: Sequence[Any]) -> None:
        self.late_reads().look()
        if modules:
            self.sums_after(step - 1, modules)
        for name, value in ((LOSS, loss), (GRAD_NORM, grad_norm)):
            if value is not None:
                self.late_reads().add(step, name, [value.detach() if hasattr(value, "detach") else value])

    # Figures.

    def figures_of(self, step: int, norms: Sequence[Any]) -> None:
        losses, self.losses, self.clips, self.scaled = self.losses, [], [], None
        if losses and LOSS in self.figures:
            self.late_reads().add(step, LOSS, losses)
        if norms:
            self.late_reads().add(step, GRAD_NORM, norms)

    def norms(self, step: int, optimizer: Any) -> Sequence[Any]:
        """Returns the norms of the gradients: those that the program has computed since the step before, else those
        that are computed here, one for each device, if they are due."""
        if self.clips:
            return self.clips
        if optimizer not in self.norm_every:
            self.norm_every[optimizer] = norm_every(optimizer)
        if step % self.norm_every[optimizer]:
            return []
        norms = norms_of(optimizer)
        scale = getattr(optimizer, "grad_scale", None)  # of a fused optimizer, which divides by it
        return norms if scale is None else [norm / scale.to(norm.device) for norm in norms]

    def modules_here(self) -> list[Any]:
        from taskd.torch import registry
        from taskd.torch.numerical import checksums

        if self.modules is None or self.modules[1] != len(registry.made):
            found = checksums.modules_of(self.optimizers)
            self.modules = [weakref.ref(one) for one in found], len(registry.made)
        found = [reference() for reference in self.modules[0]]
        return [one for one in found if one is not None]

    def sums_after(self, step: int, modules: Sequence[Any]) -> None:
        from taskd.torch.numerical import checksums

        if self.checksums is None:
            self.checksums = checksums.Checksums()
        for name, part, sums in self.checksums.due(step, self.every or checksums.EVERY_STEPS, modules):
            self.late_reads().add(step, name, [part, *sums])

    def late_reads(self) -> Any:
        if self.late is None:
            from taskd.torch.numerical.late import LateReads

            self.late = LateReads(self.record)
        return self.late

    def record(self, step: int, name: str, numbers: list[Any]) -> None:
        """Records a figure, after the step to which it belongs."""
        if name == LOSS:
            value = sum(numbers) / len(numbers)
        elif name == GRAD_NORM:
            value = math.hypot(*numbers)
        elif name == SKIPPED:
            value = float(numbers[0])
        else:
            from taskd.torch.numerical import checksums

            value = checksums.value_of(numbers[0], numbers[1:])
        if step != self.metric_step:
            self.metric_step = step
            self.counter(METRIC_STEP, float(step))
        self.counter(name, value)

    def counter(self, name: str, value: float) -> None:
        code = self.codes.get(name)
        if code is None:
            code = self.codes[name] = _hooks.code_of(self.native, USER, name)
        self.native.counter(code, value)

    def number(self) -> int:
        """Returns the number of the step in progress. A skipped step has a number, too."""
        steps = _hooks.hooks.get(STEP)
        completed = getattr(steps, "newest", 0)
        return completed + 1 + (self.counts["skipped"] if in_loop() is None else 0)


class Stopper:
    """Stops a figure that the program reports itself."""

    def __init__(self, figures: set[str], name: str) -> None:
        self.figures, self.name = figures, name

    def stop(self) -> None:
        self.figures.discard(self.name)


def in_loop() -> Any:
    """Returns the loop of `taskd.steps` in which the program is; None if there is none."""
    return _session.current.loop if _session.current is not None else None


def gradients_of(optimizer: Any) -> list[torch.Tensor]:
    """Returns the gradients of an optimizer; of a sharded one, this rank's part."""
    grads = [one.grad for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
    grads = [one.to_local() if hasattr(one, "to_local") else one for one in grads]
    return [one for one in grads if not one.is_sparse and one.numel()]


def norm_every(optimizer: Any) -> int:
    """Returns the number of steps between two norms, which is the same on all ranks of the same program."""
    grads = gradients_of(optimizer)
    size = sum(one.numel() * one.element_size() for one in grads)
    is_on_host = all(one.device.type == "cpu" for one in grads)
    return -(-size // (NORM_BYTES_PER_STEP if is_on_host else NORM_BYTES_PER_STEP_ON_DEVICE)) or 1


def norms_of(optimizer: Any) -> list[torch.Tensor]:
    import torch

    by_kind: dict[Any, list[torch.Tensor]] = {}
    for one in gradients_of(optimizer):
        by_kind.setdefault((one.device, one.dtype), []).append(one)
    with torch.no_grad():
        return [torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)).float()) for grads in by_kind.values()]


def number(text: str | None) -> int:
    try:
        return int(text or 0)
    except ValueError:
        return 0
