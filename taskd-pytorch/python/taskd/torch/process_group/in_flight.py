"""Operations of a step that may be in flight on threads of the backend, where they read and write the program's
tensors.

When their group is aborted, the module waits for their end, so that their writes can be corrected. It never ends an
operation itself.
"""

from __future__ import annotations

import os
import time

from taskd._session import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

POLL_SECONDS = 0.0002
KNOWN_MIN = 64  # number of operations after which completed ones are dropped
# Time limit for operations of aborted groups: they have ended when this is checked, or end soon after.
ENDS_SECONDS = 5


class OperationsInFlight:
    def __init__(self) -> None:
        self.works, self.works_max = [], KNOWN_MIN

    def add(self, work: Any) -> None:
        self.works.append(work)
        if len(self.works) >= self.works_max:
            self.works = [one for one in self.works if not one.is_completed()]
            self.works_max = max(KNOWN_MIN, 2 * len(self.works))

    def wait_for_ends(self, release: Any) -> None:
        """Waits until aborted operations write nothing any more. `release` shuts their connections down, which ends an
        operation, and returns their number; one operation in a hundred sleeps on, and no process is left to wake it."""
        limit = time.monotonic() + ENDS_SECONDS
        while not all(work.is_completed() for work in self.works):
            is_late = time.monotonic() > limit
            if release() == 0 and (is_late or others_sleep()):
                break
            if is_late:
                raise Refused("the connections of a group that was given up are not closed; restart this rank")
            time.sleep(POLL_SECONDS)
        self.works = []


def others_sleep() -> bool:
    """Returns true if all other threads of this process sleep right now."""
    for thread in os.listdir("/proc/self/task"):
        if int(thread) != os.getpid():
            try:
                with open("/proc/self/task/%s/stat" % thread) as stat:
                    if stat.read().rsplit(")", 1)[1].split()[0] != "S":
                        return False
            except OSError:
                pass  # the thread has ended
    return True
