//! The queue of due events, in order of time; events of one time are in the order in which they were added.

use crate::job::JobTime;
use std::collections::BTreeMap;

/// A queue of events by (time, counter).
#[derive(Debug)]
pub(super) struct Queue<E> {
    due: BTreeMap<(JobTime, u64), E>,
    entered: u64,
}

impl<E> Queue<E> {
    pub(super) fn new() -> Queue<E> {
        Queue { due: BTreeMap::new(), entered: 0 }
    }

    pub(super) fn push(&mut self, at: JobTime, event: E) {
        self.entered += 1;
        self.due.insert((at, self.entered), event);
    }

    pub(super) fn next_at(&self) -> Option<JobTime> {
        self.due.keys().next().map(|(at, _)| *at)
    }

    pub(super) fn pop(&mut self) -> Option<(JobTime, E)> {
        self.due.pop_first().map(|((at, _), event)| (at, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_time_and_then_by_order_of_entry() {
        let mut queue = Queue::new();
        for (at, event) in [(5, 'c'), (3, 'a'), (5, 'd'), (4, 'b')] {
            queue.push(JobTime::from_nanos(at), event);
        }
        let order: String = std::iter::from_fn(|| queue.pop()).map(|(_, event)| event).collect();
        assert_eq!(order, "abcd");
    }
}
