"""Operations of a step that may be under way on threads of the backend, which read and write the program's tensors there.

When their group is given up it waits for their end, so that what they have written can be put right. It never ends one itself.
"""

import os
import time

from taskd._session import Refused

POLL_SECONDS = 0.0002
KNOWN_MIN = 64  # operations after which those that are completed are let go of
ENDS_SECONDS = 5  # within which operations of groups that were given up end: they have, when this is asked, or soon after


class UnderWay:
    def __init__(self):
        self.works, self.works_max = [], KNOWN_MIN

    def add(self, work):
        self.works.append(work)
        if len(self.works) >= self.works_max:
            self.works = [one for one in self.works if not one.is_completed()]
            self.works_max = max(KNOWN_MIN, 2 * len(self.works))

    def wait_for_ends(self, release):
        """What was given up writes nothing any more. `release` shuts its connections down, which ends an operation, and says how many
        there were; one in a hundred sleeps on, and nobody is left who could wake it."""
        limit = time.monotonic() + ENDS_SECONDS
        while not all(work.is_completed() for work in self.works):
            is_late = time.monotonic() > limit
            if release() == 0 and (is_late or others_sleep()):
                break
            if is_late:
                raise Refused("the connections of a group that was given up are not closed; restart this rank")
            time.sleep(POLL_SECONDS)
        self.works = []


def others_sleep():
    """Whether no other thread of this process has anything to do right now."""
    for thread in os.listdir("/proc/self/task"):
        if int(thread) != os.getpid():
            try:
                with open("/proc/self/task/%s/stat" % thread) as stat:
                    if stat.read().rsplit(")", 1)[1].split()[0] != "S":
                        return False
            except OSError:
                pass  # it has ended
    return True
