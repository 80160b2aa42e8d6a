"""Pieces of recovery, each alone in one process, with doubles around it that say so: `python pieces.py NAME FILE` has
one go as it usually does not, and writes to the file as JSON what came of it.
"""

import _thread
import fcntl
import functools
import gc
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import weakref

import torch
from taskd import _codec, _link
from taskd.torch import fsdp, step_signature, store_client
from taskd.torch.ddp import reducer
from taskd.torch.process_group import abortable, completion, rebuild, sockets

os.environ["TASKD_SECRET"] = "5a" * 32

SOON_SECONDS = 10


def until(is_so, seconds=SOON_SECONDS):
    """Whether it comes to be so."""
    limit = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > limit:
            return False
        time.sleep(0.002)
    return True


# The completer.


class DoubleOfWork:
    """An operation that is over, with this error or with none."""

    def __init__(self, error=None):
        self.error = error

    def is_completed(self):
        return True

    def wait(self, timeout=None):
        if self.error is not None:
            raise self.error


class DoubleOfGroup:
    """A group that cannot be left: what would be, raises."""

    def __init__(self, reported):
        session = types.SimpleNamespace(failed=lambda *what: reported.append(what))
        self.engine = types.SimpleNamespace(loop=types.SimpleNamespace(tainted=False), session=session)
        self.spec = types.SimpleNamespace(display_name="default")

    def is_lost(self):
        return False

    def fail(self, op, message, in_backward=False):
        raise OSError(24, "Too many open files")


def completer_goes_on():
    """The report of an operation's failure fails: the program is not left waiting, for that operation or a later
    one."""
    logged, reported = [], []
    _link.say = logged.append
    completer, group = completion.Completer(), DoubleOfGroup(reported)
    failed = completer.future(group, "allreduce", DoubleOfWork(RuntimeError("gone")), ([],), in_backward=True)
    found = {"failed completes": until(failed.done, 2)}
    later = completer.future(DoubleOfGroup([]), "allreduce", DoubleOfWork(), ([],))
    found["a later one completes"] = until(later.done, 2)
    found["tainted"] = group.engine.loop.tainted
    return {**found, "reported": reported, "logged": logged}


class HeldWork(DoubleOfWork):
    """An operation that is over when it may be."""

    def __init__(self):
        super().__init__()
        self.may_end = threading.Event()

    def is_completed(self):
        return self.may_end.is_set()

    def wait(self, timeout=None):
        if not self.may_end.wait(0.01):
            raise RuntimeError("it is under way")


def callback_that_waits():
    """On the thread that completes an operation, for another one, which it has called for: as PowerSGD's hook does; and
    once more in that."""
    completer, group, held = completion.Completer(), DoubleOfGroup([]), HeldWork()

    def calls_for(value):
        return completer.future(group, "allreduce", DoubleOfWork(), ([value],))

    first = completer.future(group, "allreduce", held, ([1],))
    last = first.then(lambda one: one.value() + calls_for(2).then(lambda two: two.value() + calls_for(3).wait()).wait())
    held.may_end.set()
    return {"value": last.value() if until(last.done, 5) else None}


# The kinds of steps.


class DoubleOfModel:
    pass


STEPS = {  # calls, elements of each, whether DDP reduces
    "the first": (3, 100, True),
    "again": (3, 100, True),
    "one less": (2, 100, True),
    "others": (3, 1, True),
    "a few more elements": (3, 110, True),
    "a search": (20, 60, True),
    "one that is a little longer": (21, 60, True),
    "without a reduction": (3, 100, False),
    "once more": (3, 100, False),
    "none": (0, 0, False),
}


def kinds_of_steps():
    """Which of these steps are the first of their kind; what an other process knows of it; and how many are known."""
    kinds, model, found = step_signature.StepSignatures(), DoubleOfModel(), {"ahead of all": False}
    kinds.calls_for("broadcast", "0,1", 7)  # what comes ahead of the first step is of none
    found["ahead of all"] = kinds.is_new(0)
    for number, (name, (times, elements, reduces)) in enumerate(STEPS.items()):
        for _ in range(times):
            kinds.calls_for("allreduce", "0,1", elements)
        kinds.passes_through(model, reduces)
        found[name] = kinds.is_new(number + 1)
    step = len(STEPS) + 1
    kinds.calls_for("allreduce", "0,1", 3)
    kinds.forget()
    found["one that was given up, and does nothing"] = kinds.is_new(step)
    found["a step that was looked at"] = kinds.is_new(step)
    kinds.calls_for("allreduce", "0,1", 3)
    found["one that is done elsewhere"] = kinds.is_new(step + 2)
    later, other = step_signature.StepSignatures(), DoubleOfModel()
    later.calls_for("gather", "0,1", 3)  # as it warms up
    later.take(kinds.seen)
    found["a replacement's first"] = later.is_new(50)
    for number, (calls, reduces) in enumerate(((3, True), (5, True)), 51):
        for _ in range(calls):
            later.calls_for("allreduce", "0,1", 100)
        later.passes_through(other, reduces)
        found["a replacement's with %d calls" % calls] = later.is_new(number)
    later.is_not_known()
    for _ in range(5):
        later.calls_for("allreduce", "0,1", 100)
    later.passes_through(other, True)
    found["what was not reported"] = later.is_new(53)
    while not kinds.are_too_many():
        step += 1
        kinds.calls_for("broadcast", "group %d" % step, 1)
        kinds.is_new(step)
    kinds.calls_for("broadcast", "yet another", 1)
    return {
        "new": [name for name, is_new in found.items() if is_new],
        "known": len(kinds.seen),
        "one more": kinds.is_new(step + 1),
    }


# Communication hooks.


class DoubleOfErrors:
    def hook(self, state, bucket):
        pass


def hooks_of_models():
    """Which of these hooks may keep a state: of DDP, by name, and of FSDP that shards nothing, which has none until it
    is given one."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    errors, size = [], 2

    def closure(state, bucket):
        errors.append(bucket)

    def divides(state, bucket):
        return bucket.buffer() / size

    hooks = {
        "torch's": (default_hooks.allreduce_hook, None),
        "half": (default_hooks.fp16_compress_hook, None),
        "wrapped": (default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook), None),
        "divides": (divides, None),
        "power": (powerSGD_hook.powerSGD_hook, powerSGD_hook.PowerSGDState(None)),
        "wrapped power": (
            default_hooks.bf16_compress_wrapper(powerSGD_hook.powerSGD_hook),
            powerSGD_hook.PowerSGDState(None),
        ),
        "closure": (closure, None),
        "wrapped closure": (default_hooks.bf16_compress_wrapper(closure), None),
        "method": (DoubleOfErrors().hook, None),
        "partial": (functools.partial(divides, bucket=None), None),
    }
    found = [name for name, hook in hooks.items() if reducer.hook_with_state(types.SimpleNamespace(_comm_hooks=[hook]))]
    with tempfile.NamedTemporaryFile() as file:
        torch.distributed.init_process_group("gloo", init_method="file://" + file.name, rank=0, world_size=1)
        cpu = torch.device("cpu")
        model = FullyShardedDataParallel(
            torch.nn.Linear(2, 2), device_id=cpu, sharding_strategy=ShardingStrategy.NO_SHARD
        )
        before = fsdp.hook_of(model)
        model.register_comm_hook(None, divides)
        after = fsdp.hook_of(model)
        torch.distributed.destroy_process_group()
    return {"keep a state": found, "before": before, "after": list(after)}


# The end of a process whose operation is under way.

EXITS = """
import ctypes, sys, threading, types
import torch
import torch.distributed as dist
from taskd.torch.process_group import completion
from datetime import timedelta

store, made = dist.HashStore(), {}
def make(rank):
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout, options._threads = timedelta(seconds=60), 2
    made[rank] = dist.ProcessGroupGloo(store, rank, 2, options)
threads = [threading.Thread(target=make, args=(rank,)) for rank in range(2)]
[one.start() for one in threads], [one.join() for one in threads]
for one in made.values():  # not taken down at the end: that would wait for the operation
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))
tensors = [torch.zeros(4)]
work = made[0].allreduce(tensors)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(work))
group = types.SimpleNamespace(is_lost=lambda: False, engine=types.SimpleNamespace(loop=None))
# Of a process there is one; with more of them it shows every time.
completers = [completion.Completer() for _ in range(8)]
for one in completers:
    one.future(group, "allreduce", work, (tensors,), in_backward=True)
import time
time.sleep(0.1)
if sys.argv[1] == "exit":
    sys.exit(7)
raise ValueError("in a gradient hook")
"""


def ends_with_a_bucket_under_way():
    """The exit codes of processes that end, of themselves or by an error, while an operation is waited for."""
    found = {}
    for how in ("exit", "raise"):
        one = subprocess.run([sys.executable, "-c", EXITS, how], capture_output=True, text=True, timeout=60)
        found[how] = {"code": one.returncode, "stderr": one.stderr}
    return found


# The groups.


class DoubleOfFront:
    _inner = types.SimpleNamespace(in_use=True, release=lambda: 1)


def groups_made_while_they_are_released():
    """The link's thread looks at the groups as the main thread makes others, over and over."""
    groups, over, made = rebuild.Groups(None), threading.Event(), []
    sys.setswitchinterval(1e-6)

    def releases():
        while not over.is_set():
            groups.release()

    thread = threading.Thread(target=releases)
    thread.start()
    for _ in range(2000):
        made.append(DoubleOfFront())
        groups.add(made[-1])
        if len(made) > 8:
            del made[0]
    over.set()
    thread.join()
    known = groups.fronts()
    lost = sum(not any(one is other for other in known) for one in made)
    return {"lost": lost, "kept of those that are gone": len(groups.all) - len(made)}


class DoubleOfClient:
    """Connects when it is let."""

    def __init__(self, let):
        self.let, self.closed, self.connects = let, False, threading.Event()

    def __call__(self, *_):
        self.connects.set()
        self.let.wait(SOON_SECONDS)
        return self

    def close(self):
        self.closed = True


class Made:
    """A group, whose destructor records the thread on which it runs."""

    def __init__(self, ended):
        self.ended = ended

    def __del__(self):
        self.ended.append(_thread.get_ident())


ORDER = {"store": {"host": "127.0.0.1", "port": 1}, "prefix": "taskd/2", "size": 1, "rank": 0, "members": []}


def doubles_of_groups(met, plans=1):
    engine = types.SimpleNamespace(
        store=None, client=None, meet=lambda store, order: met.append(order), signed=lambda store, part: store
    )
    groups = rebuild.Groups(engine)
    spec = types.SimpleNamespace(display_name="default")
    groups.fronts = lambda: [types.SimpleNamespace(_inner=types.SimpleNamespace(spec=spec)) for _ in range(plans)]
    groups.next_spec = lambda spec, order: spec
    return groups


def join_is_left_as_it_connects():
    """An abort that comes between the connection and its being known."""
    let, met = threading.Event(), []
    client = store_client.Client = DoubleOfClient(let)
    rebuild.dist = types.SimpleNamespace(PrefixStore=lambda *_: None)
    joining = rebuild.Joining(doubles_of_groups(met), ORDER, [])
    client.connects.wait(SOON_SECONDS)
    joining.leave()
    let.set()
    until(lambda: not joining.done.locked())
    return {"closed": client.closed, "met": len(met)}


def joins_that_come_to_nothing():
    """One that is done as it is cancelled, and one whose second group fails: where the first group ends, and whether it
    counts."""
    found = {}
    for how in ("cancelled", "fails"):
        let, ended, joinings = threading.Event(), [], []
        store_client.Client = lambda *_: DoubleOfClient(let)
        rebuild.dist = types.SimpleNamespace(PrefixStore=lambda *_: None)

        def make(joining, inside, spec):
            joinings.append(joining)
            if len(joinings) == 2:
                raise RuntimeError("no second group")
            if how == "cancelled":
                let.wait(SOON_SECONDS)
            return Made(ended), None, None

        def cancelled():
            let.set()
            return until(lambda: joinings and not joinings[0].done.locked())

        rebuild.Joining.make = make
        groups = doubles_of_groups([], plans=1 if how == "cancelled" else 2)
        counted, count_one = [], groups.count_one
        groups.count_one = lambda done: (counted.append(done), count_one(done))
        try:
            groups.join(ORDER, cancelled if how == "cancelled" else lambda: False)
            raised = None
        except Exception as error:
            raised = type(error).__name__
        joinings.clear()
        until(lambda: ended)
        found[how] = {
            "raised": raised,
            "on main": ended == [_thread.get_ident()],
            "counted": len(counted),
            "gone": until(lambda: groups.abandoned == 0),
        }
    return found


# The store.


def store_answers_late():
    """A server whose answer comes when no caller waits for it any more: it is not taken for the next answer."""
    listener = socket.create_server(("127.0.0.1", 0))
    asked = threading.Event()

    def serves():
        peer, _ = listener.accept()
        with peer:
            asked.wait(SOON_SECONDS)
            for number in (7, 8):
                try:
                    peer.sendall(number.to_bytes(8, "little"))
                except OSError:
                    return
            while peer.recv(4096):
                pass

    threading.Thread(target=serves, daemon=True).start()
    client, found = store_client.Client("127.0.0.1", listener.getsockname()[1], 0.2), []
    for amount in ("nothing", 1, 1):  # the first is the caller's mistake, and not even sent
        try:
            found.append(client.add("n", amount))
        except Exception as error:
            found.append(str(error).replace(":%d" % client.address[1], ""))
        if amount == 1:
            asked.set()
            time.sleep(0.1)
    return found


# The sockets.

LOCKS = """
import fcntl, sys
with open(sys.argv[1], "r+") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.exit(3)
"""


def locks_of_the_programs_own():
    """Whether another process is refused a lock that this one has on a file: at first, and once sockets were looked
    through."""
    with tempfile.NamedTemporaryFile() as file, socket.create_server(("127.0.0.1", 0)) as server:
        fcntl.lockf(file, fcntl.LOCK_EX)

        def is_refused():
            return subprocess.run([sys.executable, "-c", LOCKS, file.name], timeout=60).returncode == 3

        found = {"at first": is_refused()}
        found["listens"] = server.getsockname() in sockets.listening()
        found["listening"] = is_refused()
        found["shut"] = sockets.shut({("127.0.0.1", 1)}, frozenset())
        found["afterwards"] = is_refused()
    return found


# A work.


def future_of_a_work():
    """A caller that looks repeatedly at an operation that is under way has one future followed."""
    followed = []

    def future(*what):
        followed.append(what)
        return object()

    group = types.SimpleNamespace(engine=types.SimpleNamespace(completer=types.SimpleNamespace(future=future)))
    work = abortable.Work(group, "allreduce", None, None, ([],))
    return {"same": work.get_future() is work.get_future(), "followed": len(followed)}


def engine_behind_a_with():
    """The main thread is behind the `with` of a step that was given up."""
    main, session = _thread.get_ident(), types.SimpleNamespace(given_up=False)
    attempt = types.SimpleNamespace(body_completed=False, is_guarded=True)
    loop = types.SimpleNamespace(attempt=attempt, in_step=True, number=3, tainted=False)
    engine = types.SimpleNamespace(main_thread=main, session=session, loop=loop, alone=False)
    engine.is_main = lambda: _thread.get_ident() == main
    engine.issued, engine.fails_quietly = lambda args: None, lambda: None
    engine.copier, engine.under_way = types.SimpleNamespace(replays=None, tape=None), set()
    engine.kinds = step_signature.StepSignatures()
    return engine


def threads_behind_a_with():
    """What the main thread calls for there is answered, and what another one calls for is done; what becomes of that
    where the group is given up, and of a wait that is left when the loop is over."""
    engine, done, found = engine_behind_a_with(), [], {}
    real = types.SimpleNamespace(allreduce=lambda tensors: done.append(_thread.get_ident()) or DoubleOfWork())
    group = abortable.AbortableGroup(
        engine, real, None, [], types.SimpleNamespace(display_name="default", display_members="0,1")
    )

    def calls(name):
        try:
            found[name] = type(group.allreduce([torch.zeros(1)])).__module__
        except abortable.StepAborted as error:
            found[name] = str(error)

    def on_another_thread(name):
        thread = threading.Thread(target=calls, args=(name,))
        thread.start()
        thread.join()

    calls("main")
    found["done for main"] = len(done)
    on_another_thread("other")
    found["done for other"] = len(done)
    engine.session.given_up = True
    on_another_thread("other, given up")
    work, engine.loop = abortable.Work(group, "allreduce", None, None, ([],)), None
    try:
        found["wait"] = work.give_up()
    except abortable.StepAborted as error:
        found["wait"] = str(error)
    return found


# Loaders.


class Rounds(torch.utils.data.DataLoader):
    """Counts its epochs."""

    def __init__(self):
        torch.utils.data.DataLoader.__init__(self, list(range(4)), num_workers=1, persistent_workers=True)
        self.rounds = 0

    def __iter__(self):
        self.rounds += 1
        return torch.utils.data.DataLoader.__iter__(self)


def loaders_of_loops_that_are_over():
    """Whether they are gone, workers included; what is kept of other loaders' messages; and how a loader that the next
    loop continues with is reported to have changed since it was first used."""
    from taskd import _batches
    from taskd.torch.data import loader as _loader, workers as _workers

    copier = _loader.Copier()

    def goes_through(loader):
        stream = _batches.Streams(_loader.open_at, copier).of(loader)
        for _ in range(9):  # two epochs, and the first batch of another
            stream.next()
        copier.leave_loop()
        return stream.opening

    loader = Rounds()
    gone = weakref.ref(loader)
    found = {"opening": [goes_through(loader)["plain"] for _ in range(2)]}
    workers = list(loader._iterator._workers)
    for _ in range(2):
        list(loader)
    found["kept"] = _workers.came
    del loader
    gc.collect()
    found["gone"] = gone() is None and until(lambda: not any(one.is_alive() for one in workers))
    goes_through(Rounds())
    gc.collect()
    copier.leave_loop()
    found["left"] = [len(copier.parts), len(copier.first)]
    return found


# What a program uses.


class Counts(torch.nn.Linear):
    """How often it was asked for all its parameters."""

    asked = 0

    def parameters(self, recurse=True):
        self.asked += 1
        return torch.nn.Linear.parameters(self, recurse)


class Unhashable(torch.optim.SGD):
    __hash__ = None


def looked_through_once():
    """What is used in every step; what no set takes; and what has no numbers at first."""
    from taskd.torch import abort_points

    found = []
    loop = types.SimpleNamespace(engine=types.SimpleNamespace(find=lambda name, what: found.append(what)))
    model = Counts(2, 2)
    always = [abort_points.find(loop, "model", model) for _ in range(5)]
    asked = model.asked
    other = Unhashable(model.parameters(), lr=0.1)
    always += [abort_points.find(loop, "optimizer", other) for _ in range(5)]
    late = Counts(2, 2, device="meta")
    found_late = [abort_points.find(loop, "model", late)]
    late.to_empty(device="cpu")
    found_late.append(abort_points.find(loop, "model", late))
    return {"always": all(always), "asked": asked, "late": found_late, "found": len(found)}


def tensors():
    """Every kind of tensor comes out as it went in; what of it does not."""
    plain = [
        torch.randn(3, 4),
        torch.tensor(5),
        torch.zeros(0, 3),
        torch.arange(6).reshape(2, 3).t(),
        torch.tensor([True, False]),
    ]
    plain += [torch.randn(4).to(torch.bfloat16), torch.randn(3, requires_grad=True), torch._neg_view(torch.ones(3))]
    plain += [torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2), requires_grad=False)]
    others = [torch.randn(2, dtype=torch.complex64), torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr()]

    def is_equal(one):
        out = _codec.decode(_codec.encode(one))
        has = [(type(each), each.dtype, each.shape, each.layout, each.requires_grad) for each in (one, out)]
        values = [
            each.detach().to_dense() if each.layout is not torch.strided else each.detach() for each in (one, out)
        ]
        return has[0] == has[1] and torch.equal(*values)

    def is_refused(given):
        header = json.dumps([{"tensor": given}, [4]]).encode()
        try:
            _codec.decode(_codec.LENGTH.pack(len(header)) + header + b"abcd")
        except _codec.Malformed:
            return True
        return False

    data = {"b": 0}
    wrong = [
        ["torch.float32", [2], False, data],
        ["torch.float32", [-1], False, data],
        ["nope", [1], False, data],
        ["torch.float32", "x", False, data],
    ]
    wrong += [["torch.float32", [1], False, "abcd"], ["torch.float32", [2**62, 4], False, data], [data], []]
    return {
        "differ": [str(one) for one in plain + others if not is_equal(one)],
        "pickled": sum(b"PK" in _codec.encode(one) for one in plain),
        "taken": [str(given) for given in wrong if not is_refused(given)],
    }


SCENARIOS = {
    "tensors": tensors,
    "completer_goes_on": completer_goes_on,
    "callback_that_waits": callback_that_waits,
    "kinds_of_steps": kinds_of_steps,
    "hooks_of_models": hooks_of_models,
    "ends_with_a_bucket_under_way": ends_with_a_bucket_under_way,
    "groups_made_while_they_are_released": groups_made_while_they_are_released,
    "join_is_left_as_it_connects": join_is_left_as_it_connects,
    "joins_that_come_to_nothing": joins_that_come_to_nothing,
    "store_answers_late": store_answers_late,
    "locks_of_the_programs_own": locks_of_the_programs_own,
    "future_of_a_work": future_of_a_work,
    "threads_behind_a_with": threads_behind_a_with,
    "loaders_of_loops_that_are_over": loaders_of_loops_that_are_over,
    "looked_through_once": looked_through_once,
}


def main():
    name, path = sys.argv[1:]
    value = SCENARIOS[name]()
    with open(path, "w") as file:
        json.dump(value, file)


if __name__ == "__main__":
    main()
