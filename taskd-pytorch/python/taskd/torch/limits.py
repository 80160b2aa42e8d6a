"""Reports, once each, the state that no recovery can put back, and the reason why a rank takes part in no recovery."""

from __future__ import annotations

from taskd import _link
from taskd.torch import registry
from taskd.torch import state as _state
from taskd.torch.standby import warm_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CARRIED = "what gradients have from one step to the next"


class Limits:
    """Part of the engine, whose attributes it uses."""

    session: Any
    loop: Any
    state_: Any
    noter: Any
    warm: Any
    reported_sharded: Any
    cannot: Any

    def refuses(self, why: str) -> None:
        """No step can be aborted from here on; only the first reason is reported."""
        if self.cannot is None:
            self.cannot = why
            self.session.knows_limits()

    def report_sharded(self) -> None:
        new = [name for name in self.state_.not_replicated() if name not in self.reported_sharded]
        if not new:
            return
        self.reported_sharded += new
        _link.say("no other rank has a copy of what a rank holds of what is sharded: %s" % ", ".join(new))
        lost = [name for name in self.reported_sharded if not _state.is_zero(self.state_.named[name])]
        if lost:
            why = (
                "%s is sharded (FSDP), and does not come back from a pass that was given up in its "
                "middle: restart all ranks"
            )
            self.cannot = why % lost[0]
        self.session.knows_limits()

    def say_what_is_not_given(self) -> None:
        """Reports named state with values of types that cannot be sent to another process."""
        for name, why in sorted(self.state_.not_encodable(self.reported_sharded).items()):
            self.reported_sharded.append(name)
            _link.say(
                "%s cannot be given to a rank that takes the place of a lost one (%s): where a "
                "rank is lost all start again" % (name, why)
            )
            self.session.knows_limits()

    def carries_gradients(self) -> None:
        """Reports gradients that are carried between steps: a replacement of a lost rank has none of them."""
        if CARRIED not in self.reported_sharded:
            self.reported_sharded.append(CARRIED)
            why = (
                "step %d goes on with gradients of the step before it, which are each rank's own: "
                "where a rank is lost all start again; have "
            )
            _link.say((why + "a step of taskd's hold all passes up to the optimizer's step") % self.loop.number)
            self.session.knows_limits()

    def say_what_came_late(self) -> None:
        """Reports an object that the program made in its loop, after the steps with which a replacement warms up: a
        replacement may not have it."""
        name = self.state_.found[-1]
        began = self.loop.program.first
        if (
            self.warm is None
            and self.loop.number - began >= warm_up.WARM_MIN
            and registry.place_of(self.state_.named[name]) is None
        ):
            self.reported_sharded.append(name)
            why = (
                "%s was made inside of the step loop, at step %d: a rank that takes the place of a "
                "lost one does not have it; restart all"
            )
            _link.say((why + " ranks then, or make it before the loop") % (name, self.loop.number))
            self.session.knows_limits()

    def draws_with_operations(self, kind: Any) -> None:
        """Reports data whose batches call for operations of all ranks: no step can be repeated."""
        why = (
            "%s calls for operations of all ranks with every batch, which a step that is done "
            "again does not: restart all ranks"
        )
        self.finds_limit(why % kind)

    def has_unknown_workers(self, kind: Any) -> None:
        self.finds_limit("the random numbers of the persistent workers of %s are not known: restart all ranks" % kind)

    def finds_limit(self, why: str) -> None:
        """No step can be aborted from here on. The first reason is logged and reported."""
        if self.cannot is None:
            self.cannot = why
            _link.say(why)
            self.session.knows_limits()

    def say_what_is_unusual(self) -> None:
        if self.noter.unusual is not None:
            self.finds_limit(self.why_unusual())

    def why_unusual(self) -> str:
        return "no step puts back the buffer %s: restart all ranks" % self.noter.unusual
