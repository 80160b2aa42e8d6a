//! Bounded queues between sources and the kernel: one per source, with the overflow policy that the source chose.
//!
//! Deaths and exits of processes do not pass through these queues, so a full queue never loses them. Lost facts are
//! counted, and the count is delivered as a fact of the same source.

use super::clock::JobClock;
use crate::job::{Domain, JobTime, Name};
use crate::trace::{Fact, Observation, Signal, WhenFull};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The queues of all sources.
#[derive(Debug)]
pub(super) struct FactQueues {
    clock: JobClock,
    queues: Mutex<Vec<Queue>>,
    /// Notified when a batch was added; the shell waits for this.
    filled: Notify,
    /// Notified when a batch was removed; sources that wait for room wait for this.
    taken: Notify,
}

#[derive(Debug)]
struct Queue {
    source: Name,
    batches: VecDeque<(JobTime, Vec<Observation>)>,
    batches_max: usize,
    when_full: WhenFull,
    lost: u64,
}

impl Queue {
    /// Returns the number of facts lost since the last report, as an observation, and resets the number. `None` if it
    /// is zero.
    fn take_loss(&mut self, now: JobTime) -> Option<Observation> {
        let count = std::mem::take(&mut self.lost);
        let lost_fact = || Fact::new(Domain::Plugin(self.source.clone()), Signal::Lost { count }).into_observation(now);
        (count > 0).then(lost_fact)
    }
}

impl FactQueues {
    pub(super) fn new(clock: JobClock) -> FactQueues {
        FactQueues { clock, queues: Mutex::default(), filled: Notify::new(), taken: Notify::new() }
    }

    /// Adds a queue and returns its number.
    pub(super) fn add(&self, source: Name, batches_max: u32, when_full: WhenFull) -> usize {
        let batches_max = usize::try_from(batches_max).unwrap_or(usize::MAX).max(1);
        let mut queues = self.lock();
        queues.push(Queue { source, batches: VecDeque::new(), batches_max, when_full, lost: 0 });
        queues.len() - 1
    }

    /// Adds a batch to a source's queue, according to the source's overflow policy.
    ///
    /// Cancel-safe: dropping the future while it waits for room adds nothing.
    pub(super) async fn push(&self, queue: usize, facts: Vec<Fact>) {
        let mut facts = facts;
        loop {
            let mut room = std::pin::pin!(self.taken.notified());
            room.as_mut().enable(); // before the attempt, so that no wake-up is lost
            match self.try_push(queue, facts) {
                Ok(()) => return self.filled.notify_one(),
                Err(back) => facts = back,
            }
            room.await;
        }
    }

    /// Tries to add a batch. Returns the facts if the source has to wait.
    fn try_push(&self, queue: usize, facts: Vec<Fact>) -> Result<(), Vec<Fact>> {
        let mut queues = self.lock();
        let now = self.clock.now(); // under the lock, so that arrival times never go backwards
        let Some(queue) = queues.get_mut(queue) else { return Ok(()) };
        if queue.batches.len() >= queue.batches_max {
            match queue.when_full {
                WhenFull::Wait => return Err(facts),
                WhenFull::DropNewest => {
                    queue.lost += facts.len() as u64;
                    return Ok(());
                }
                WhenFull::DropOldest => {
                    queue.lost += queue.batches.pop_front().map_or(0, |(_, lost)| lost.len() as u64);
                }
            }
        }
        let mut observed: Vec<Observation> = facts.into_iter().map(|fact| fact.into_observation(now)).collect();
        observed.extend(queue.take_loss(now));
        queue.batches.push_back((now, observed));
        Ok(())
    }

    /// Removes the batch that arrived first. If there is none, returns a loss count that has not been reported yet.
    pub(super) fn pop(&self) -> Option<(JobTime, Vec<Observation>)> {
        let mut queues = self.lock();
        let first = queues.iter_mut().filter(|q| !q.batches.is_empty()).min_by_key(|q| q.batches[0].0);
        let Some(first) = first else {
            let now = self.clock.now();
            return queues.iter_mut().find_map(|q| q.take_loss(now)).map(|loss| (now, vec![loss]));
        };
        let batch = first.batches.pop_front();
        drop(queues);
        self.taken.notify_waiters();
        batch
    }

    /// Waits until there may be a batch.
    pub(super) async fn filled(&self) {
        self.filled.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Queue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner) // no code under this lock can panic
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fact(n: u64) -> Vec<Fact> {
        vec![Fact::new(Domain::Job, Signal::Progress { step: n })]
    }

    fn steps(batch: &[Observation]) -> Vec<u64> {
        let step = |o: &Observation| match o.signal {
            Signal::Progress { step } => step,
            Signal::Lost { count } => 1000 + count,
            _ => 0,
        };
        batch.iter().map(step).collect()
    }

    async fn after_three_into_two(when_full: WhenFull) -> Vec<Vec<u64>> {
        let queues = FactQueues::new(JobClock::from(JobTime::START));
        let queue = queues.add(Name::new("s"), 2, when_full);
        for n in 1..=3 {
            queues.push(queue, fact(n)).await;
        }
        let mut seen = vec![steps(&queues.pop().unwrap().1)];
        queues.push(queue, fact(4)).await;
        while let Some((_, batch)) = queues.pop() {
            seen.push(steps(&batch));
        }
        seen
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_drops_by_its_policy_and_counts_in_the_next_batch() {
        assert_eq!(after_three_into_two(WhenFull::DropNewest).await, [vec![1], vec![2], vec![4, 1001]]);
        assert_eq!(after_three_into_two(WhenFull::DropOldest).await, [vec![2], vec![3, 1001], vec![4]]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_loss_is_reported_without_a_following_fact() {
        let queues = FactQueues::new(JobClock::from(JobTime::START));
        let queue = queues.add(Name::new("s"), 1, WhenFull::DropNewest);
        for n in 1..=3 {
            queues.push(queue, fact(n)).await; // and then the source sends nothing more
        }
        let batches: Vec<Vec<u64>> = std::iter::from_fn(|| queues.pop()).map(|(_, batch)| steps(&batch)).collect();
        assert_eq!(batches, [vec![1], vec![1002]]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_waits_loses_nothing() {
        let queues = FactQueues::new(JobClock::from(JobTime::START));
        let queue = queues.add(Name::new("s"), 1, WhenFull::Wait);
        queues.push(queue, fact(1)).await;
        let mut third = std::pin::pin!(queues.push(queue, fact(2)));
        assert!(futures_poll(third.as_mut()).await.is_none(), "no room yet");
        assert_eq!(steps(&queues.pop().unwrap().1), [1]);
        third.await;
        assert_eq!(steps(&queues.pop().unwrap().1), [2]);
    }

    /// Polls a future once; `None` if it is pending.
    async fn futures_poll<F: Future>(mut f: std::pin::Pin<&mut F>) -> Option<F::Output> {
        std::future::poll_fn(|cx| {
            std::task::Poll::Ready(match f.as_mut().poll(cx) {
                std::task::Poll::Ready(out) => Some(out),
                std::task::Poll::Pending => None,
            })
        })
        .await
    }
}
