//! Bounded queues between sources and the kernel, one a source, each with the policy that its source names.
//!
//! A full queue never loses a death or an exit: those do not pass here. What it loses it counts, and the count travels
//! as a fact of the same source.

use super::clock::JobClock;
use crate::job::{Domain, JobTime, Name};
use crate::trace::{Fact, Observation, Signal, WhenFull};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// All sources' queues.
#[derive(Debug)]
pub(super) struct FactQueues {
    clock: JobClock,
    queues: Mutex<Vec<Queue>>,
    /// Something came in; the shell waits for it.
    filled: Notify,
    /// Something was taken out; sources that wait for room are woken.
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
    /// What was lost since this was last told.
    fn take_loss(&mut self, now: JobTime) -> Option<Observation> {
        let count = std::mem::take(&mut self.lost);
        let told = || Fact::new(Domain::Plugin(self.source.clone()), Signal::Lost { count }).observed(now);
        (count > 0).then(told)
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

    /// Puts a batch into a source's queue, by that source's policy.
    ///
    /// Dropped while it waits for room, it has put nothing in.
    pub(super) async fn push(&self, queue: usize, facts: Vec<Fact>) {
        let mut facts = facts;
        loop {
            let mut room = std::pin::pin!(self.taken.notified());
            room.as_mut().enable(); // before looking, so that no wake-up is lost
            match self.try_push(queue, facts) {
                Ok(()) => return self.filled.notify_one(),
                Err(back) => facts = back,
            }
            room.await;
        }
    }

    /// Gives the facts back when the source has to wait.
    fn try_push(&self, queue: usize, facts: Vec<Fact>) -> Result<(), Vec<Fact>> {
        let mut queues = self.lock();
        let now = self.clock.now(); // under the lock: arrival times never go back
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
        let mut observed: Vec<Observation> = facts.into_iter().map(|fact| fact.observed(now)).collect();
        observed.extend(queue.take_loss(now));
        queue.batches.push_back((now, observed));
        Ok(())
    }

    /// The batch that arrived first; when none is left, what a source has lost since its last one.
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

    /// Waits until a batch may be there.
    pub(super) async fn filled(&self) {
        self.filled.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Queue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner) // no code that can panic runs under it
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
    async fn a_full_queue_drops_by_its_policy_and_the_count_travels_with_the_next_batch() {
        assert_eq!(after_three_into_two(WhenFull::DropNewest).await, [vec![1], vec![2], vec![4, 1001]]);
        assert_eq!(after_three_into_two(WhenFull::DropOldest).await, [vec![2], vec![3, 1001], vec![4]]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_loss_is_told_though_nothing_follows_it() {
        let queues = FactQueues::new(JobClock::from(JobTime::START));
        let queue = queues.add(Name::new("s"), 1, WhenFull::DropNewest);
        for n in 1..=3 {
            queues.push(queue, fact(n)).await; // and then the source has nothing more to say
        }
        let told: Vec<Vec<u64>> = std::iter::from_fn(|| queues.pop()).map(|(_, batch)| steps(&batch)).collect();
        assert_eq!(told, [vec![1], vec![1002]]);
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

    /// Polls once.
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
