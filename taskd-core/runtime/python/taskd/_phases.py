"""The phases of the step loop (`_loop.Loop`), and the transitions between them. All of them are on the main thread.

              +------------------------- a step ends --------------------------+
              v                                                                |
    NEW ---> READY --- a step begins -----------------> TRAINING, WARMING_UP --+
              |                                             ^                  |
              |  a step has failed, a directive is there,   |                  |
              |  or this process replaces a lost rank       |                  |
              v                                             |                  |
            WAITING --- all ranks resume -------------------+                  |
            |  ^  |                                                            |
            |  |  +---- this rank is one step behind ---------> CATCHING_UP ---+
            |  |
            |  +------- carried out, or refused --------+
            v                                           |
            ABORTING, JOINING, SYNCING, RESUMING, SAVING

    every other phase ---> FINISHED    the generator has ended

Which directive follows another one is the supervisor's decision, so all of them begin and end in WAITING: a recovery is
ABORTING, JOINING, SYNCING, RESUMING; a newer abort, or a checkpoint (SAVING), may come between any two. A step under
way is ended before a directive is carried out, and a directive is ended before the next one.
"""

from enum import IntEnum


class Phase(IntEnum):
    """An IntEnum, as an Enum computes its hash in Python, which every step would pay for."""

    NEW = 0
    READY = 1  # between two steps
    TRAINING = 2  # in a step of the job
    WARMING_UP = 3  # in a step of a replacement that is not yet parked: nothing that it computes counts
    CATCHING_UP = 4  # in a step that this rank does alone, as the other ranks have completed it
    WAITING = 5  # for a directive
    ABORTING = 6
    JOINING = 7
    SYNCING = 8
    RESUMING = 9
    SAVING = 10  # its part of an emergency checkpoint, or the manifest of one
    FINISHED = 11


NEW, READY, FINISHED = Phase.NEW, Phase.READY, Phase.FINISHED
TRAINING, WARMING_UP, CATCHING_UP = STEPS = (Phase.TRAINING, Phase.WARMING_UP, Phase.CATCHING_UP)
WAITING = Phase.WAITING
ABORTING, JOINING, SYNCING, RESUMING, SAVING = DIRECTIVES = (
    Phase.ABORTING,
    Phase.JOINING,
    Phase.SYNCING,
    Phase.RESUMING,
    Phase.SAVING,
)

TRANSITIONS = {
    NEW: (READY, FINISHED),
    READY: (TRAINING, WARMING_UP, WAITING, FINISHED),
    WAITING: (TRAINING, CATCHING_UP, *DIRECTIVES, FINISHED),
    FINISHED: (),
}
TRANSITIONS.update((step, (READY, FINISHED)) for step in STEPS)
TRANSITIONS.update((directive, (WAITING, FINISHED)) for directive in DIRECTIVES)


def wrong(now, then):
    """The error of a transition that is not in the table."""
    names = now.name, then.name
    return RuntimeError("the step loop cannot go from phase %s to phase %s; this is an error in taskd" % names)
