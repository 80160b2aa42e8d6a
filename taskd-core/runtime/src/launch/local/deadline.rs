//! The deadline that the launcher's caller sets for its processes, on its way to the guard.
//!
//! At most one request is in transit; the latest deadline wins. Callers never wait: the link's task sends it.

use crate::launch::fence::Fence;
use crate::launch::guard::wire::Call;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Time within which the guard must take a deadline. After it, the delay is logged and counted, once for each delay.
const TAKEN_WITHIN: Duration = Duration::from_millis(500);

/// A deadline since the machine's start; `None`: the processes are kept.
type Deadline = Option<Duration>;

/// The deadline of the processes, shared by the callers and the link's task.
#[derive(Debug, Default)]
pub(super) struct SharedDeadline {
    state: Mutex<State>,
    /// Notified when another deadline was set.
    pub(super) changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The deadline that was set last; `None` if none was set.
    wanted: Option<Deadline>,
    /// The deadline that the guard has confirmed.
    taken: Option<Deadline>,
    /// The request in transit: its number and its deadline.
    sent: Option<(u64, Deadline)>,
    /// Time since which the guard has not confirmed a deadline that was set.
    open_since: Option<Instant>,
    /// True if the present delay was counted.
    is_late: bool,
    late: u64,
}

impl State {
    fn count_if_late(&mut self, now: Instant) {
        let since = self.open_since.filter(|since| now.saturating_duration_since(*since) >= TAKEN_WITHIN);
        if since.is_some() && !self.is_late {
            self.is_late = true;
            self.late += 1;
            tracing::warn!(
                "the guard has not taken the latest deadline of its processes within {TAKEN_WITHIN:?}: it will kill \
                 them at the deadline before, if there was one"
            );
        }
    }
}

impl SharedDeadline {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner) // no foreign code runs while it is locked
    }

    /// Returns the call that brings the guard up to date, if one is due and none is in transit. `id`: its number.
    pub(super) fn next_call(&self, id: u64) -> Option<Call> {
        let mut state = self.state();
        let wanted = state.wanted.filter(|_| state.sent.is_none() && state.wanted != state.taken)?;
        state.sent = Some((id, wanted));
        Some(Call::Fence { at: wanted })
    }

    /// Records the answer to a call, of whatever kind.
    pub(super) fn answered(&self, id: u64) {
        let mut state = self.state();
        let Some((_, deadline)) = state.sent.take_if(|(sent, _)| *sent == id) else { return };
        state.taken = Some(deadline);
        state.is_late = false;
        state.open_since = (state.wanted != state.taken).then(Instant::now);
    }

    /// Begins again for a new connection: its guard may be a new one.
    pub(super) fn begin_again(&self) {
        let mut state = self.state();
        (state.sent, state.taken) = (None, None);
        if state.wanted.is_some() {
            state.open_since.get_or_insert_with(Instant::now);
        }
    }

    /// Logs and counts a delay.
    pub(super) fn look(&self, now: Instant) {
        self.state().count_if_late(now);
    }

    /// Returns the number of delays.
    pub(super) fn late(&self) -> u64 {
        self.state().late
    }
}

impl Fence for SharedDeadline {
    fn set_deadline(&self, deadline: Deadline) {
        let now = Instant::now();
        let mut state = self.state();
        state.count_if_late(now);
        state.wanted = Some(deadline);
        if state.wanted != state.taken {
            state.open_since.get_or_insert(now);
        }
        drop(state);
        self.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Deadline {
        Some(Duration::from_secs(seconds))
    }

    fn sent(call: Option<Call>) -> Option<Deadline> {
        call.map(|call| match call {
            Call::Fence { at } => at,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn one_request_is_in_transit_and_the_latest_deadline_wins() {
        let deadline = SharedDeadline::default();
        assert_eq!(sent(deadline.next_call(0)), None, "none was set");
        deadline.set_deadline(at(1));
        assert_eq!(sent(deadline.next_call(1)), Some(at(1)));
        (2..100).for_each(|seconds| deadline.set_deadline(at(seconds)));
        assert_eq!(sent(deadline.next_call(2)), None, "the first was not answered");
        deadline.answered(7);
        assert_eq!(sent(deadline.next_call(2)), None, "another call was answered");
        deadline.answered(1);
        assert_eq!(sent(deadline.next_call(2)), Some(at(99)));
        deadline.answered(2);
        deadline.set_deadline(at(99));
        assert_eq!(sent(deadline.next_call(3)), None, "the guard has it");
        deadline.begin_again();
        assert_eq!(sent(deadline.next_call(4)), Some(at(99)), "another guard has not");
        deadline.set_deadline(None);
        deadline.answered(4);
        assert_eq!(sent(deadline.next_call(5)), Some(None));
    }

    #[test]
    fn each_delay_is_counted_once() {
        let (deadline, now) = (SharedDeadline::default(), Instant::now());
        let later = |times: u32| now + TAKEN_WITHIN * times + TAKEN_WITHIN;
        deadline.look(later(1));
        assert_eq!(deadline.late(), 0, "there is nothing to take");
        deadline.set_deadline(at(1));
        deadline.look(now);
        assert_eq!(deadline.late(), 0);
        (1..4).for_each(|times| deadline.look(later(times)));
        assert_eq!(deadline.late(), 1);
        assert!(deadline.next_call(1).is_some());
        deadline.answered(1);
        deadline.look(later(5));
        assert_eq!(deadline.late(), 1);
        deadline.set_deadline(at(2));
        deadline.look(later(9));
        assert_eq!(deadline.late(), 2);
    }
}
