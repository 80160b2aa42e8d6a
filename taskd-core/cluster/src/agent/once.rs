//! The relayed calls of one session: each is carried out once, whether it comes through a relay, from the manager, or
//! both.
//!
//! Pure: it runs and sends nothing.

use crate::wire::proto::Answer;
use std::collections::BTreeMap;

/// Maximum number of relayed calls whose answers are kept for a repetition. A manager waits for fewer. A call that is
/// older than all of them is answered with an error: whether it was carried out is not known any more.
pub(super) const RELAYED_MAX: usize = 4096;

/// The relayed calls of a session, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Once {
    calls: BTreeMap<u64, State>,
    /// Greatest number of a call that was forgotten.
    forgotten: u64,
}

#[derive(Debug)]
enum State {
    Running {
        /// True if the manager itself has made the call too, and so waits for its answer over the session.
        by_manager: bool,
    },
    Done(Answer),
}

/// What becomes of a relayed call.
#[derive(Debug, PartialEq)]
pub(super) enum Begun {
    /// It is new: it has to be carried out.
    New,
    /// It is carried out now.
    Running,
    /// It was carried out.
    Done(Answer),
    /// It may have been carried out.
    Forgotten,
}

impl Once {
    /// Takes a call that came from the manager itself or through a relay.
    pub(super) fn begin(&mut self, call: u64, from_manager: bool) -> Begun {
        match self.calls.get_mut(&call) {
            Some(State::Running { by_manager }) => {
                *by_manager |= from_manager;
                Begun::Running
            }
            Some(State::Done(answer)) => Begun::Done(answer.clone()),
            None if call <= self.forgotten => Begun::Forgotten,
            None => {
                self.calls.insert(call, State::Running { by_manager: from_manager });
                Begun::New
            }
        }
    }

    /// Records the answer of a call. Returns true if the manager waits for it over the session.
    pub(super) fn end(&mut self, answer: &Answer) -> bool {
        let before = self.calls.insert(answer.call, State::Done(answer.clone()));
        if self.calls.len() > RELAYED_MAX
            && let Some((oldest, _)) = self.calls.pop_first()
        {
            self.forgotten = self.forgotten.max(oldest);
        }
        !matches!(before, Some(State::Running { by_manager: false }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(call: u64) -> Answer {
        Answer { call, result: None }
    }

    #[test]
    fn a_call_is_carried_out_once_whichever_way_it_comes() {
        let mut once = Once::default();
        assert_eq!(once.begin(1, false), Begun::New);
        assert_eq!(once.begin(1, true), Begun::Running, "the relay was slow");
        assert!(once.end(&answer(1)), "the manager waits for it");
        assert_eq!(once.begin(2, false), Begun::New);
        assert!(!once.end(&answer(2)), "only the relay waits for it");
        assert_eq!(once.begin(2, true), Begun::Done(answer(2)), "the relay is lost with the answer");
        assert_eq!(once.begin(2, false), Begun::Done(answer(2)));
    }

    #[test]
    fn a_call_older_than_all_that_are_known_is_not_carried_out() {
        let mut once = Once::default();
        for call in 1..=RELAYED_MAX as u64 + 1 {
            assert_eq!(once.begin(call, false), Begun::New);
            once.end(&answer(call));
        }
        assert_eq!(once.begin(1, true), Begun::Forgotten);
        assert_eq!(once.begin(2, true), Begun::Done(answer(2)));
    }
}
