"""For a training program: steps that survive the loss of a rank, and marks beside what taskd records by itself.

    import taskd

    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    for step in taskd.steps(state, data=loader, until=10_000):
        with step:
            x, y = step.next()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if step.completed:
            print(step.number, loss.item())

When another rank is lost, this process stays, and so does all that it has in memory: it waits until a replacement has
joined, and the step that was under way is repeated, with the same batches and random numbers (see `steps`).

When all ranks restart from what the surviving ranks could save, or the program is started again by hand, it continues
there:

    start = taskd.load_checkpoint(state) or 0
    for step in taskd.steps(state, data=loader, start=start, until=10_000):

Marks:

    step = taskd.range_start("step 7")      # a training step
    with taskd.range("augment"):            # a range of the program's own
        ...
    taskd.counter("loss", loss)
    taskd.range_end(step)

The name of a range states its meaning: `step 7` is training step 7, `dataloader`, `save_checkpoint` and `forward` are
what they are called, and other names are the program's own. Once a program marks one of these four itself, what taskd
would have recorded of it without marks is left out. A kind of 16 to 63 puts ranges together that are switched on and
off together.

Outside of a taskd job marks do nothing, and none of them ever raises; `steps` is a plain loop there.
"""

import sys as _sys

_pending = getattr(_sys.modules.get("_taskd_claim"), "pending", None)
if _pending is not None:
    _pending()  # a program that imports this is the rank, whatever has started it

from taskd import _hooks
from taskd._aborted import StepAborted
from taskd._kinds import KINDS, LAST, STEP, USER, step_number
from taskd._native import Nothing, native

TYPE_CHECKING = False  # `typing` itself imports much that a rank has no need of
if TYPE_CHECKING:
    from typing import Any, Callable, Iterable, Iterator, Mapping, TypeVar

    from taskd._step import Step

    Function = TypeVar("Function", bound=Callable[..., Any])

__all__ = ["StepAborted", "counter", "load_checkpoint", "mark", "range", "range_end", "range_start", "steps"]

NAMES_MAX = 4096  # that are remembered here; for others the library is asked each time
_ranges = {}  # what to begin a range with, by its name, or its name and kind
_moments = {}  # what to record for a mark or a counter, by its name
_begin, _end = native.begin, native.end
_mark, _counter = native.mark, native.counter


def range_start(name: str, kind: "int | None" = None) -> int:
    """Begins a range. What it returns ends it, on any thread; 0 where it is not recorded."""
    try:
        return _begin(_ranges[name] if kind is None else _ranges[name, kind])
    except (KeyError, TypeError):
        return _begin_new(name, kind)


def range_end(range: int) -> None:
    """Ends a range."""
    try:
        if range:
            _end(range)
    except Exception:
        pass  # nothing that began a range


def mark(name: str) -> None:
    """Records a moment."""
    try:
        _mark(_moments[name])
    except (KeyError, TypeError):
        _mark(_code(_moments, name, USER, name))


def counter(name: str, value: float) -> None:
    """Records a figure. Those of the names `loss` and `grad_norm` are also reported to the supervisor's detectors:
    report them at the same steps on all ranks. With TASKD_NUMERICAL taskd reports them without this call, until the
    program does. A tensor is read at once, so one on a device is waited for."""
    try:
        _counter(_code(_moments, name, USER, name), float(value))
    except (TypeError, ValueError, OverflowError):
        pass  # not a number


class range:
    """A range around what runs inside: a context manager, for one `with` at a time, or a decorator."""

    __slots__ = ("_name", "_kind", "_range")

    def __init__(self, name: str, kind: "int | None" = None) -> None:
        self._name = name
        self._kind = kind

    def __enter__(self) -> "range":
        self._range = range_start(self._name, self._kind)
        return self

    def __exit__(self, *_: object) -> None:
        range_end(self._range)

    def __call__(self, function: "Function") -> "Function":
        import functools

        name, kind = self._name, self._kind

        @functools.wraps(function)
        def ranged(*args, **kwargs):
            with range(name, kind):
                return function(*args, **kwargs)

        return ranged  # type: ignore[return-value]  # it has the function's own signature


def steps(
    state: "Mapping[str, Any] | None" = None,
    data: "Iterable[Any] | None" = None,
    until: "int | None" = None,
    start: int = 0,
    retry_on: "Iterable[type[BaseException] | str]" = (),
    with_rank: "Callable[[], object] | None" = None,
    callbacks: "Mapping[str, Callable[..., Any]] | None" = None,
) -> "Iterator[Step]":
    """The steps of training, from `start` on, up to and not including `until`: to be iterated over once.

    `state` names what makes up the training's state: modules, optimizers, schedulers, gradient scalers, tensors, and
    whatever else has `state_dict` and `load_state_dict`. What is not named is found where it is used: modules in
    DistributedDataParallel, optimizers, torch's schedulers and scalers, whenever that is; they have to be made before
    the loop. What an object that is named has inside and gives as its own state (the schedulers of a SequentialLR) is
    found with it. Random numbers of Python, NumPy and torch belong to it always. What a program keeps beside (a list of
    losses, a best score) it has to register, or to set only after the `with step:`.

    What is registered is the same on all ranks: a replacement copies it from another rank. An object that gives its
    state by `state_dict` gets it back by `load_state_dict`, and may give copies; a module's extra state as well. It is
    copied when a step begins, and restored when that is repeated, so a program may change it anywhere in the step. An
    object of more than 16 MiB is not copied: it has to give its own tensors, not copies, and to change after the
    optimizer's step only; else no step is repeated.

    `data` is what `step.next()` without an argument takes batches from: a DataLoader, a sampler, anything that can be
    iterated over again and again. A program with several passes them: `step.next(loader)`, `step.batches(loader, n)`.
    Batches that are taken from a loader in any other way are not handed out again when a step is repeated.

    `retry_on` are exceptions after which a step is repeated instead of ending the program, beside those of memory that
    ran out, by their type or by their text.

    A step changes parameters in its *commit window*: from the first optimizer step on to the step's end. A step that
    fails before it is undone here. Where one rank has completed it and another has not, that one copies the state.

    `with step:` aborts a lost step at once, by `StepAborted`, which is raised by any operation of torch.distributed,
    by the forward pass of a DistributedDataParallel, by `backward` and by the step of an optimizer, a scheduler, a
    scaler. Without the `with` a lost step is computed to its end and counts for nothing; that is enough for a program
    whose only collective operations are DistributedDataParallel's.

    Code after the `with` also runs for such a step, with incomplete results: put it under `if step.completed:`, which
    is false for an aborted step and for a warm-up step.

    A process that replaces a lost one begins with a few warm-up steps, whose results do not count (`step.warming`): the
    program should neither log nor save anything in them. It may begin as a standby, before its rank is known. It then
    waits at the first step that counts, or where the program reads its rank before (`dist.get_rank()`, `RANK`): the
    later, the sooner the other ranks continue. So what needs the rank (a seed, a file of its own) best stands in
    `with_rank`, a function that is called once, before the first step that counts.

    When ranks are lost that no process can replace, the other ranks may continue without them, and the world is larger
    again later: `dist.get_world_size()` and `dist.get_rank()` return the current values. torch's samplers that divide
    the data among all ranks receive them, and continue where they were.

    `callbacks` are a framework's own part in a recovery, by name: `stop(step)`, `clean()`, `rebuild(rank, size)`,
    `repair(step, source, sinks)`, `rollback(step)`, `save(directory, step)` and `exit(code)`. Each is called on the
    main thread after taskd has done its own part of that name (see `taskd._callbacks`). If one raises, the recovery
    fails, and the next one in the order of cost is tried.

    Sharded state (FSDP, ZeroRedundancyOptimizer) has no copy on another rank, so a lost process cannot be replaced:
    that is logged when the loop begins. With ZeroRedundancyOptimizer a step that has failed while all processes live
    can be repeated. FSDP that shards nothing (NO_SHARD) is recovered as DDP is.

    Without a supervisor it is a plain loop with the same results.
    """
    from taskd import _loop, _session

    session = _session.current
    if session is not None and session.engine is None:
        from taskd import _framework

        session.engine = _framework.current().engine(session)
    return _loop.Loop(session, state, data, until, start, retry_on, with_rank, callbacks).run()


def load_checkpoint(
    state: "Mapping[str, Any]", directory: "str | None" = None, newer_than: "int | None" = None
) -> "int | None":
    """Loads the newest whole emergency checkpoint, and returns the step to go on with; None where there is none.

    Survivors write such a checkpoint when another rank is lost and cannot be replaced (the job's
    `policy.checkpoint_dir`), or when an operator asks for one. `state` has to name what `steps` was given then, and
    what it had found besides, by the same names. `directory` defaults to the job's (TASKD_CHECKPOINT_DIR).
    Only a checkpoint of a step after `newer_than` is loaded, for a program that has checkpoints of its own:

        start = load_own_checkpoint(...)
        start = taskd.load_checkpoint(state, newer_than=start) or start

    Length, check sum and layout of every part are verified before anything is changed; one that is not whole, or not of
    this program, is passed over for the one before it, which is logged on standard error. To be called once
    torch.distributed is initialized: then all ranks load the same one, or none does.

    Parameters, buffers, optimizers and all else in `state` are then what they were when the step began. Random numbers
    and the position in the data are restored where the loop begins, if that is at this step (`steps(start=...)`). A
    rank that survived has written its own, and what a lost one has left in its host's memory: they are exact if it had
    begun the step. If it was lost while the others completed the step before, it takes the random numbers of that one a
    second time; if its host was lost with it, and no other has them, those of another rank. Both are logged: that run
    is not the undisturbed one, to the bit.

    Files are unpickled: load what you trust.

    In a process that replaces a lost one it returns None: that process copies all from the other ranks.
    """
    from taskd import _framework

    framework = _framework.current()
    load = getattr(framework, "load_checkpoint", None)
    if load is None:
        name = getattr(framework, "NAME", "a program that has imported no framework")
        raise NotImplementedError(
            "taskd.load_checkpoint: there is none for %s yet; load a checkpoint of your own" % name
        )
    return load(state, directory, newer_than)


def _begin_new(name, kind):
    """A range that is not remembered."""
    if kind is not None:
        known = isinstance(kind, int) and USER <= kind <= LAST
        return _begin(_code(_ranges, name, kind if known else USER, (name, kind)))
    if not isinstance(name, str):
        return 0
    number = step_number(name)
    if number is not None:
        _hooks.marked(STEP)
        return native.begin_step(number)
    kind = KINDS.get(name, USER)
    _hooks.marked(kind)
    return _begin(_code(_ranges, name, kind, name))


def _code(codes, name, kind, key):
    """Kind and name as one number, which is remembered; the kind alone for what is no name."""
    if not isinstance(name, str):
        return kind
    code = codes.get(key)
    if code is None:
        if codes is _moments:
            _hooks.marked(name)
        code = _hooks.code_of(native, kind, name)
        if len(codes) < NAMES_MAX:
            codes[key] = code
    return code


def _begin_nothing(name, kind=None):
    return 0


def _nothing(name: "Any", value: "Any" = None) -> None:
    pass


if hasattr(native, "then"):
    native.then += (_ranges.clear, _moments.clear)
if isinstance(native, Nothing):
    range_start, range_end, mark, counter = _begin_nothing, _nothing, _nothing, _nothing  # pyright: ignore[reportAssignmentType]
