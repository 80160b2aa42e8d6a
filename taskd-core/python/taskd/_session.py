"""This process in the recovery of its job: which generation it is in, what its supervisor wants, what it has to tell.

There is one, `current`, where a supervisor is there (TASKD_CONTROL) and this process is the rank; else it is None. It knows
no framework: what is the framework's an *engine* does, which `_recovery.install` brings:

    cannot                       why no step can be given up, in a sentence; None where it can
    told_sharded                 names of what no other rank has a copy of
    release()                    frees whoever waits inside of a group, from any thread; may be called again
    join(order, cancelled)       makes the groups anew; what is answered
    prove(loop), digest(loop)    the checksum of the state: reported where a step begins, or given; None where there is none
    state()                      what the answer to give-up says of the state
    give(loop, order), take(loop, step, ranks, cancelled)   the two ends of a copy; the latter says how many bytes are of which rank
    dump(loop, order)            saves this rank's part of a dying checkpoint

Directives come on the link's thread. A give-up takes effect there; everything else waits for the main thread, which comes
for it between two steps (`_loop`). None is carried out twice: another supervisor gives those again whose answers it has not
seen, and is given the answer that there is.
"""

import os
import time

from taskd import _frames, _link

TRAIN, JOIN = "train", "join"
SCRIPT, LOOP, PARKED = "script", "loop", "parked"
CAN = ["give-up", "join", "repair", "resume", "dump", "seal", "declare"]
KINDS = ("give-up", "join", "repair", "resume", "dump", "seal", "declare", "exit")
WELCOME_SECONDS = 20  # after which a process goes on as one that nobody wants anything of
MESSAGE_CHARS_MAX = 2000
SAY_AFTER_SECONDS = 30  # of waiting for the supervisor

current = None


class Refused(Exception):
    """A directive cannot be carried out: what, to what, what to do, in one sentence."""


class Cancelled(Exception):
    """A newer give-up has overtaken what is under way."""


class Session:
    def __init__(self, framework, page):
        import _queue
        import _thread

        self.proc, self.generation = "", 1  # the newest that was heard of
        self.framework, self.page = framework, page
        self.broken = None  # why this process can take part in no recovery, in a sentence; None where it can
        self.given_up = False  # the groups are given up: nothing may be computed that needs another rank
        self.attention = False  # something waits for the main thread
        self.mode = None
        self.began = None  # when this process became a rank
        self.place = SCRIPT
        self.state_bytes = None  # what the state took when this process came there
        self.digest = None  # the checksum of the state that was reported last
        self.engine = self.loop = None
        self.loops = 0  # step loops that the program has begun
        self.came = self.came_in = False  # a newcomer that has been in its loop, and one that has joined the others
        self.inbox = _queue.SimpleQueue()
        self.reported = None  # (generation, step) of the failure that was told last
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
        self.generation = number(os.environ.get("TASKD_GENERATION"), 1)
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
                "can": [name for name in CAN if not self.broken and name not in os.environ.get("TASKD_CANNOT", "").split(",")],
                "at": self.place,
                "state_bytes": self.state_bytes,
                "digest": self.digest,
                **self.limits(),
            }
        }

    def limits(self):
        """What of recoveries this process cannot take part in, as far as its framework knows: so nobody finds out by asking."""
        engine = self.engine
        return {"cannot": engine.cannot, "sharded": list(engine.told_sharded)} if engine else {}

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
        if kind not in KINDS or not isinstance(what[kind], dict):
            return self.refuse(do["id"], "this taskd knows no directive %s; use the same version on both sides" % (kind or what))
        if kind == "declare":
            return self.declared(do["id"], what[kind])
        generation = do["generation"]
        if self.knows(do["id"], generation, kind):
            return None
        if generation < self.generation:
            return self.refuse(
                do["id"], "directive of generation %d, this process is in generation %d" % (generation, self.generation)
            )
        if self.broken is not None and kind != "exit":
            return self.refuse(do["id"], self.broken)
        if self.place == SCRIPT:
            return self.refuse(do["id"], "this process has not come to its step loop (taskd.steps) yet")
        if kind in ("join", "repair", "resume", "dump", "seal") and not self.given_up and self.place != PARKED:
            return self.refuse(do["id"], "%s without a give-up: this process trains" % kind)
        if kind == "give-up":
            if self.engine.cannot is not None:
                return self.refuse(do["id"], self.engine.cannot)
            with self.lock:
                self.generation, self.given_up = generation, True
                self.link.standing = None  # whoever gives up knows of it
        elif generation > self.generation:
            self.generation = generation  # of a newcomer, which has nothing to give up
        self.inbox.put((do["id"], generation, kind, what[kind]))
        self.attention = True
        if kind == "give-up":
            self.release()

    def release(self):
        """Frees whoever waits inside of a group. What goes wrong there costs no directive: this one is queued by now, and the main
        thread does the same once more when it comes for it."""
        try:
            self.engine.release()
        except Exception as error:
            self.link.complain(error)

    def declared(self, id_, order):
        """It belongs to no recovery, and may be heard twice."""
        loop = self.loop  # which the main thread may leave at any time
        memory = loop.memory if loop is not None else None
        if memory is None:
            return self.refuse(id_, "this process keeps no copies in memory")
        memory.on_declare(order)
        return self.answer(id_, {})

    def breaks(self, why):
        """From here on this process takes part in no recovery; only the first reason is told."""
        if self.broken is None:
            self.broken = "this process cannot be recovered in place, restart all ranks: %s" % why
            _link.say(self.broken)

    def knows(self, id_, generation, kind):
        """Whether this directive was taken before. Its answer, if there is one by now, goes out again."""
        if self.taken.get(id_) == (generation, kind):
            if id_ in self.answers:
                self.link.send(self.answers[id_])
            return True
        if generation < self.generation:
            return False  # it is refused, and nothing of it is kept
        for earlier in [one for one, (of, _) in self.taken.items() if of < generation]:  # nobody asks for those again
            del self.taken[earlier]
            self.answers.pop(earlier, None)
        self.taken[id_] = (generation, kind)
        return False

    def refuse(self, id_, why):
        self.refused += 1
        self.send_answer(id_, {"id": id_, "error": why})

    def send_answer(self, id_, answer):
        message = {"answer": answer}
        if id_ in self.taken:
            self.answers[id_] = message  # ahead of the link: who asks again from now on is told
        self.link.send(message)

    # On any thread of the program.

    def wait_for_mode(self):
        """How this process is to start: `TRAIN`, or `JOIN` in the place of another. Waits for the supervisor to say so."""
        if self.mode is None and self.welcome.acquire(True, WELCOME_SECONDS):
            self.welcome.release()
        if self.mode is None:
            _link.say("no supervisor has answered for %d s; the program starts as if there were none" % WELCOME_SECONDS)
            self.mode = TRAIN
        return self.mode

    def at(self, place):
        """On the main thread: the program's own code is asked how large the state is."""
        self.place, self.state_bytes = place, None
        try:
            self.state_bytes = self.engine.state_bytes() if place != SCRIPT else None
        except Exception as error:
            _link.say("how large the state is cannot be told: %s: %s" % (type(error).__name__, error))
        self.page.stands_in_loop(place == LOOP)
        self.link.send({"at": {"point": place, "state_bytes": self.state_bytes, **self.limits()}})

    def proved(self, digest, is_urgent):
        """The checksum of the state where a step begins: ranks that report the same one are replicas. An urgent one is with the
        supervisor before anything is trained: the first one of a loop, without which nobody could take this rank's place, and one
        that may tell that it is no replica any more. Whether it is there, as far as that is known."""
        self.digest = digest
        self.link.send({"digest": digest})
        return not is_urgent or self.link.flush()

    def knows_limits(self):
        """The framework has found out more of what it cannot do. Before the loop it is told on coming there."""
        if self.place != SCRIPT:
            self.at(self.place)

    def failed(self, kind, op=None, group=None, in_backward=False, message="", peer=None):
        """Something has failed here, and this process waits to be told what to do: told once a step and generation."""
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
        """Waits for one: `(id, generation, kind, order)`; ends the process if it is told to meanwhile (`_leaving`). Those that a newer
        give-up has overtaken are refused here."""
        said = time.monotonic() + SAY_AFTER_SECONDS
        while True:
            try:
                id_, generation, kind, order = self.inbox.get(True, 1.0)
            except Exception:  # _queue.Empty
                if said and time.monotonic() > said:
                    said = None
                    _link.say("step %s waits for the supervisor to say how to go on" % self.loop.number)
                continue
            if id_ is None:
                self.loop.leaving.leave()
            self.attention = False  # ahead of the look: what comes after it says so itself
            if not self.inbox.empty():
                self.attention = True
            if generation < self.generation:
                self.refuse(id_, "given up for generation %d" % self.generation)
                continue
            return id_, generation, kind, order

    def cancelled(self, generation):
        """Whether a newer give-up has come, for what takes long."""
        return lambda: self.generation != generation

    def answer(self, id_, value):
        self.send_answer(id_, {"id": id_, "ok": value})

    def resumed(self, generation):
        """The groups of this generation are in use from now on, if it is still the newest."""
        with self.lock:
            if generation != self.generation:
                raise Cancelled
            self.given_up = False
        self.page.enters(generation)
        self.link.standing = None


def number(text, default):
    try:
        return int(text)
    except (TypeError, ValueError):
        return default
