"""This process in the recovery of its job: its generation, the directives of its supervisor, and what it reports.

There is one session, `current`, if there is a supervisor (TASKD_CONTROL) and this process is the rank; else it is None.
It is independent of the framework, whose part an *engine* does, which `_recovery.install` brings:

    cannot                       the reason why no step can be aborted, in a sentence; None if it can
    reported_sharded             names of the state of which no other rank has a copy
    release()                    frees all threads that wait inside of a group, from any thread; may be called again
    join(order, cancelled)       rebuilds the groups; returns the answer
    prove(loop), digest(loop)    the checksum of the state: reported where a step begins, or returned; None without one
    state()                      the state's part of the answer to an abort
    give(loop, order)            the sending end of a copy
    take(loop, step, ranks, cancelled)   the receiving end; returns the bytes that were copied of each rank
    dump(loop, order)            saves this rank's part of an emergency checkpoint

Directives arrive on the link's thread. An abort takes effect there; all others wait for the main thread, which carries
them out between two steps (`_loop`). None is carried out twice: a new supervisor sends a directive again if it has not
received the answer, and gets the answer that was given before.
"""

import os
import time

from taskd import _frames, _link

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TRAIN, JOIN = "train", "join"
BEFORE_LOOP, IN_LOOP, PARKED = "before-loop", "in-loop", "parked"
ABORT, SYNC_STATE, COMMIT_IN_MEMORY = "abort", "sync-state", "commit-in-memory"
CAPABILITIES = [ABORT, "join", SYNC_STATE, "resume", "write-shard", "write-manifest", COMMIT_IN_MEMORY]
DIRECTIVES = (*CAPABILITIES, "exit")
WELCOME_SECONDS = 20  # after which a process continues as one without a supervisor
MESSAGE_CHARS_MAX = 2000
SAY_AFTER_SECONDS = 30  # of waiting for the supervisor

current = None


class Refused(Exception):
    """A directive cannot be carried out: what happened, to which object, and what to do, in one sentence."""


class Cancelled(Exception):
    """A newer abort has overtaken what is under way."""


class Session:
    def __init__(self, framework, page):
        import _queue
        import _thread

        self.proc, self.generation = "", 1  # the newest that was received
        # the generation whose groups are in use: the same for all ranks wherever they make a group together
        self.trains_in = 1
        self.framework, self.page = framework, page
        self.broken = None  # why this process can take part in no recovery, in a sentence; None where it can
        self.given_up = False  # the groups are aborted: nothing may be computed that needs another rank
        self.attention = False  # something waits for the main thread
        self.mode = None
        self.began = None  # when this process became a rank
        self.position = BEFORE_LOOP
        self.state_bytes = None  # what the state took when this process came there
        self.digest = None  # the checksum of the state that was reported last
        self.engine: Any = None
        self.loop: Any = None
        self.loops = 0  # step loops that the program has begun
        self.came = self.came_in = False  # a replacement that has been in its loop, and one that has joined
        self.inbox = _queue.SimpleQueue()
        self.reported = None  # (generation, step) of the failure that was reported last
        self.refused = 0  # directives that were refused
        self.taken = {}  # id of each directive of the newest generation: (generation, kind)
        self.answers = {}  # id: what was answered
        self.lock = _thread.allocate_lock()  # of generation and given_up
        self.welcome = _thread.allocate_lock()
        self.welcome.acquire()
        self.link = _link.Link(self.hello, self.on_message)

    def begin(self):
        """This process is a rank."""
        self.began = time.monotonic()
        self.proc = os.environ.get("TASKD_PROC", "")
        self.generation = self.trains_in = number(os.environ.get("TASKD_GENERATION"), 1)
        self.mode = JOIN if os.environ.get("TASKD_JOIN") else self.mode
        if self.engine is not None:
            self.engine.is_rank()
        self.link.start(os.environ["TASKD_CONTROL"])

    def hello(self):
        return {
            "hello": {
                "version": _frames.VERSION,
                "proc": self.proc,
                "pid": os.getpid(),
                "generation": self.generation,
                "framework": self.framework,
                "capabilities": [] if self.broken else [name for name in CAPABILITIES if name not in disabled()],
                "position": self.position,
                "state_bytes": self.state_bytes,
                "digest": self.digest,
                **self.limits(),
            }
        }

    def limits(self):
        """The parts of a recovery that this process cannot take part in, as far as its framework knows: so the
        supervisor need not try."""
        engine = self.engine
        return {"unsupported_reason": engine.cannot, "sharded": list(engine.reported_sharded)} if engine else {}

    # On the link's thread.

    def on_message(self, message):
        if "welcome" in message:
            self.on_welcome(message["welcome"])
        elif "do" in message:
            self.on_do(message["do"])
        else:
            raise _frames.NoFrame("neither a welcome nor a directive")

    def on_welcome(self, welcome):
        version = welcome.get("version") if isinstance(welcome, dict) else None
        if version != _frames.VERSION or welcome.get("mode") not in (TRAIN, JOIN):
            raise _frames.NoFrame("a welcome of version %s; this is version %d" % (version, _frames.VERSION))
        if self.mode is None:
            self.mode = welcome["mode"]
            self.welcome.release()

    def on_do(self, do):
        if not isinstance(do, dict) or not isinstance(do.get("id"), int) or not isinstance(do.get("generation"), int):
            raise _frames.NoFrame("a directive without id and generation")
        what = do.get("what")
        kind = next(iter(what), None) if isinstance(what, dict) and len(what) == 1 else None
        if kind not in DIRECTIVES or not isinstance(what[kind], dict):
            return self.refuse(
                do["id"], "this taskd knows no directive %s; use the same version on both sides" % (kind or what)
            )
        if kind == COMMIT_IN_MEMORY:
            return self.commits_in_memory(do["id"], what[kind])
        generation = do["generation"]
        if self.knows(do["id"], generation, kind):
            return None
        if generation < self.generation:
            return self.refuse(
                do["id"], "directive of generation %d, this process is in generation %d" % (generation, self.generation)
            )
        if self.broken is not None and kind != "exit":
            return self.refuse(do["id"], self.broken)
        if self.position == BEFORE_LOOP:
            return self.refuse(do["id"], "this process has not come to its step loop (taskd.steps) yet")
        if kind not in (ABORT, "exit") and not self.given_up and self.position != PARKED:
            return self.refuse(do["id"], "%s without an abort: this process trains" % kind)
        if kind == ABORT:
            if self.engine.cannot is not None:
                return self.refuse(do["id"], self.engine.cannot)
            with self.lock:
                self.generation, self.given_up = generation, True
                self.link.standing = None  # a supervisor that aborts knows of it
        elif generation > self.generation:
            self.generation = generation  # of a replacement, which has nothing to abort
        self.inbox.put((do["id"], generation, kind, what[kind]))
        self.attention = True
        if kind == ABORT:
            self.release()

    def release(self):
        """Frees all threads that wait inside of a group. A failure of that loses no directive: this one is queued by
        now, and the main thread releases once more when it carries it out."""
        try:
            self.engine.release()
        except Exception as error:
            self.link.complain(error)

    def commits_in_memory(self, id_, order):
        """It belongs to no recovery, and may be received twice."""
        loop = self.loop  # which the main thread may leave at any time
        memory = loop.memory if loop is not None else None
        if memory is None:
            return self.refuse(id_, "this process keeps no copies in memory")
        memory.on_commit(order)
        return self.answer(id_, {})

    def breaks(self, why):
        """From here on this process takes part in no recovery; only the first reason is reported."""
        if self.broken is None:
            self.broken = "this process cannot be recovered in place, restart all ranks: %s" % why
            _link.say(self.broken)

    def knows(self, id_, generation, kind):
        """Returns true if this directive was taken before. Its answer, if there is one by now, is sent again."""
        if self.taken.get(id_) == (generation, kind):
            if id_ in self.answers:
                self.link.send(self.answers[id_])
            return True
        if generation < self.generation:
            return False  # it is refused, and nothing of it is kept
        for earlier in [one for one, (of, _) in self.taken.items() if of < generation]:  # none is sent again
            del self.taken[earlier]
            self.answers.pop(earlier, None)
        self.taken[id_] = (generation, kind)
        return False

    def refuse(self, id_, why):
        self.refused += 1
        self.send_answer(id_, {"id": id_, "error": why})

    def send_answer(self, id_, answer):
        message = {"reply": answer}
        if id_ in self.taken:
            self.answers[id_] = message  # before it is sent: a directive that comes again from now on finds it
        self.link.send(message)

    # On any thread of the program.

    def wait_for_mode(self):
        """How this process is to start: `TRAIN`, or `JOIN` in place of another one. Waits for the supervisor's
        welcome."""
        if self.mode is None and self.welcome.acquire(True, WELCOME_SECONDS):
            self.welcome.release()
        if self.mode is None:
            _link.say("no supervisor has answered for %d s; the program starts as if there were none" % WELCOME_SECONDS)
            self.mode = TRAIN
        return self.mode

    def at(self, position):
        """On the main thread, as the program's own code computes the size of the state."""
        self.position, self.state_bytes = position, None
        try:
            self.state_bytes = self.engine.state_bytes() if position != BEFORE_LOOP else None
        except Exception as error:
            _link.say("the size of the state cannot be determined: %s: %s" % (type(error).__name__, error))
        self.page.stands_in_loop(position == IN_LOOP)
        self.link.send({"position": {"now": position, "state_bytes": self.state_bytes, **self.limits()}})

    def proved(self, digest, is_urgent):
        """Reports the checksum of the state where a step begins: ranks that report the same one are replicas. An urgent
        one is sent before anything is trained: the first one of a loop, without which no process could replace this
        rank, and one that may show that it is no replica any more. Returns true if it was sent, as far as that is
        known."""
        self.digest = digest
        self.link.send({"digest": digest})
        return not is_urgent or self.link.flush()

    def knows_limits(self):
        """The framework has found another limit. Before the loop, limits are reported with the position."""
        if self.position != BEFORE_LOOP:
            self.at(self.position)

    def failed(self, kind, op=None, group=None, in_backward=False, message="", peer=None):
        """Reports a failure, after which this process waits for directives: once per step and generation."""
        step = self.loop.number if self.loop else None
        if self.reported == (self.generation, step):
            return
        self.reported = (self.generation, step)
        failure = {
            "failed": {
                "kind": kind,
                "op": op,
                "group": group,
                "step": step,
                "in_backward": in_backward,
                "message": message[:MESSAGE_CHARS_MAX],
                "peer": peer,
            }
        }
        self.link.standing = failure
        self.link.send(failure)

    # On the main thread.

    def next_directive(self):
        """Waits for one: `(id, generation, kind, order)`; ends the process if a signal asks for that (`_shutdown`).
        Those that a newer abort has overtaken are refused here."""
        report_at = time.monotonic() + SAY_AFTER_SECONDS
        while True:
            try:
                id_, generation, kind, order = self.inbox.get(True, 1.0)
            except Exception:  # _queue.Empty
                if report_at and time.monotonic() > report_at:
                    report_at = None
                    _link.say("step %s waits for the supervisor's next directive" % self.loop.number)
                continue
            if id_ is None:
                self.loop.shutdown.exit_now()
            self.attention = False  # before the look: what comes after it sets it itself
            if not self.inbox.empty():
                self.attention = True
            if generation < self.generation:
                self.refuse(id_, "given up for generation %d" % self.generation)
                continue
            return id_, generation, kind, order

    def cancelled(self, generation):
        """Returns true if a newer abort has come, for what takes long."""
        return lambda: self.generation != generation

    def answer(self, id_, value):
        self.send_answer(id_, {"id": id_, "ok": value})

    def resumed(self, generation):
        """The groups of this generation are in use from now on, if it is still the newest."""
        with self.lock:
            if generation != self.generation:
                raise Cancelled
            self.given_up, self.trains_in = False, generation
        self.page.enters(generation)
        self.link.standing = None


def disabled():
    """Directives that this job's ranks are not sent, as tests and MindCluster's settings name them."""
    return os.environ.get("TASKD_DISABLED_DIRECTIVES", "").split(",")


def number(text, default):
    try:
        return int(text)
    except (TypeError, ValueError):
        return default
