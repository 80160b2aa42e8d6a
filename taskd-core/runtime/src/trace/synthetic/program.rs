//! Actions of a rank in a step.
//!
//! Only durations are defined here: the beginning of an action depends on the other ranks.

use super::{Cause, Injection, SyntheticJob};
use crate::trace::recorder::Kind;
use std::collections::VecDeque;

/// Number of microbatches in a pipeline's step.
const MICROBATCHES: u32 = 4;
/// Number of elements in the first bucket; each further bucket has as many more, so that no two calls of a step are
/// alike.
pub(super) const BUCKET_ELEMENTS: u64 = 1 << 20;
/// Duration of a communication once all members have called it, in nanoseconds.
const COMMUNICATION_NS: u64 = 400_000;

/// Parts of a step's own work, in permille.
const LOADING: u64 = 30;
const FORWARD: u64 = 300;
const BACKWARD: u64 = 600;
const OPTIMIZER: u64 = 70;

/// The group of all ranks.
pub(super) const WORLD: u32 = 0;

/// One action of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Works for `nanos`, of which `on_cpu` on the CPU, and records a range of `kind`, if set.
    Work { kind: Option<Kind>, nanos: u64, on_cpu: u64 },
    /// Begins a collective and continues.
    Call { group: u32, elements: u64 },
    /// Waits until all its collectives have ended.
    Wait,
    /// Sends to another rank.
    Send { to: u32 },
    /// Waits for data from another rank.
    Receive { from: u32 },
    /// Stops and never continues.
    Freeze,
}

/// Purpose of a random number.
#[derive(Clone, Copy)]
enum Purpose {
    Jitter = 1,
    Length,
    WarmUp,
    Pause,
    PauseAt,
    Which,
}

impl SyntheticJob {
    /// Returns the actions of a rank in a step.
    pub(super) fn acts(&self, rank: u32, step: u64) -> VecDeque<Act> {
        let mut acts = Vec::new();
        let own = u64::try_from(self.own.as_nanos()).unwrap_or(u64::MAX);
        acts.push(self.work(rank, step, 0, Some(Kind::DataLoader), own * LOADING / 1000));
        if let Some(late) = self.late_data(rank, step, own) {
            acts.push(late);
        }
        self.compute(rank, step, own, &mut acts);
        acts.push(Act::Wait);
        acts.push(Act::Call { group: WORLD, elements: 1 });
        acts.push(Act::Wait);
        acts.push(self.work(rank, step, 1, None, own * OPTIMIZER / 1000));
        self.disturb(rank, step, &mut acts);
        acts.into()
    }

    fn compute(&self, rank: u32, step: u64, own: u64, acts: &mut Vec<Act>) {
        let (stage, last) = (self.stage_of(rank), self.stages - 1);
        let (before, after) = (rank.checked_sub(self.width()), rank + self.width());
        let batches = if self.stages > 1 { MICROBATCHES } else { 1 };
        for batch in 0..batches {
            acts.extend(before.map(|from| Act::Receive { from }));
            let nanos = own * FORWARD / 1000 / u64::from(batches);
            acts.push(self.work(rank, step, 100 + u64::from(batch), Some(Kind::Forward), nanos));
            acts.extend((stage < last).then_some(Act::Send { to: after }));
        }
        for batch in 1..batches {
            acts.extend((stage < last).then_some(Act::Receive { from: after }));
            let nanos = own * BACKWARD / 1000 / u64::from(batches);
            acts.push(self.work(rank, step, 200 + u64::from(batch), None, nanos));
            acts.extend(before.map(|to| Act::Send { to }));
        }
        acts.extend((stage < last).then_some(Act::Receive { from: after }));
        let group = if self.stages > 1 { 1 + stage } else { WORLD };
        for bucket in 0..self.buckets {
            let nanos = own * BACKWARD / 1000 / u64::from(batches) / u64::from(self.buckets);
            acts.push(self.work(rank, step, 300 + u64::from(bucket), None, nanos));
            acts.push(Act::Call { group, elements: BUCKET_ELEMENTS * u64::from(bucket + 1) });
        }
        acts.extend(before.map(|to| Act::Send { to }));
    }

    /// Creates a piece of work, lengthened by all applicable injections.
    fn work(&self, rank: u32, step: u64, piece: u64, kind: Option<Kind>, nanos: u64) -> Act {
        let jitter = f64::from(self.jitter_permille) / 1000.0;
        let draw = |purpose: Purpose, piece| self.draw(rank, step, piece * 16 + purpose as u64);
        let mut on_cpu = 1.0 + jitter * (2.0 * draw(Purpose::Jitter, piece) - 1.0);
        let mut wall = 1.0;
        for injection in &self.injections {
            match *injection {
                Injection::Slow { rank: slow, from_step, percent, cause } if slow.0 == rank && step >= from_step => {
                    match cause {
                        Cause::OnCpu => on_cpu *= factor(percent),
                        Cause::OffCpu => wall *= factor(percent),
                        Cause::DataLoader => (),
                    }
                }
                Injection::UnevenStages { percent } if self.stage_of(rank) + 1 == self.stages => {
                    on_cpu *= factor(percent)
                }
                Injection::UnevenLengths { percent } => {
                    on_cpu *= 1.0 + f64::from(percent) / 100.0 * draw(Purpose::Length, 0);
                }
                Injection::WarmUp { steps, percent } if step <= steps => {
                    let left = (steps + 1 - step) as f64 / steps as f64;
                    on_cpu *= 1.0 + f64::from(percent) / 100.0 * left * (0.5 + draw(Purpose::WarmUp, 0) / 2.0);
                }
                _ => (),
            }
        }
        let on_cpu = scale(nanos, on_cpu);
        Act::Work { kind, nanos: scale(on_cpu, wall), on_cpu }
    }

    fn late_data(&self, rank: u32, step: u64, own: u64) -> Option<Act> {
        let nanos = self.injections.iter().filter_map(|injection| match *injection {
            Injection::Slow { rank: slow, from_step, percent, cause: Cause::DataLoader }
                if slow.0 == rank && step >= from_step =>
            {
                Some(own * u64::from(percent) / 100)
            }
            _ => None,
        });
        Some(nanos.sum()).filter(|nanos| *nanos > 0).map(|nanos| Act::Work {
            kind: Some(Kind::DataLoader),
            nanos,
            on_cpu: 0,
        })
    }

    /// Applies the injections that happen at one point of a step.
    fn disturb(&self, rank: u32, step: u64, acts: &mut Vec<Act>) {
        for injection in &self.injections {
            match *injection {
                Injection::Frozen { rank: frozen, at_step } if (frozen.0, at_step) == (rank, step) => {
                    let at = self.pick(rank, step, Purpose::Which, acts.len());
                    acts.truncate(at);
                    acts.push(Act::Freeze);
                }
                Injection::Skips { rank: skips, at_step } if (skips.0, at_step) == (rank, step) => {
                    if let Some(at) = self.some_call(rank, step, acts) {
                        acts.remove(at);
                    }
                }
                Injection::Mismatch { rank: other, at_step } if (other.0, at_step) == (rank, step) => {
                    let at = self.some_call(rank, step, acts);
                    if let Some(Act::Call { elements, .. }) = at.and_then(|at| acts.get_mut(at)) {
                        *elements += 1;
                    }
                }
                Injection::Pauses { every, ms }
                    if self.draw(rank, step, Purpose::Pause as u64) * (every as f64) < 1.0 =>
                {
                    let at = self.pick(rank, step, Purpose::PauseAt, acts.len());
                    let nanos = u64::from(ms) * 1_000_000;
                    acts.insert(at, Act::Work { kind: None, nanos, on_cpu: nanos });
                }
                Injection::Checkpoints { every, ms } if rank == 0 && step.is_multiple_of(every.max(1)) => {
                    let nanos = u64::from(ms) * 1_000_000;
                    acts.push(Act::Work { kind: Some(Kind::SaveCheckpoint), nanos, on_cpu: nanos / 4 });
                }
                _ => (),
            }
        }
    }

    /// Returns the index of one of the step's collectives.
    fn some_call(&self, rank: u32, step: u64, acts: &[Act]) -> Option<usize> {
        let calls = acts.iter().enumerate().filter(|(_, act)| matches!(act, Act::Call { .. })).map(|(at, _)| at);
        let calls: Vec<usize> = calls.collect();
        calls.get(self.pick(rank, step, Purpose::Which, calls.len())).copied()
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // the result is below `of`
    fn pick(&self, rank: u32, step: u64, purpose: Purpose, of: usize) -> usize {
        (self.draw(rank, step, purpose as u64) * of as f64) as usize
    }

    /// Returns the duration of a communication in a step, once all members have called it.
    pub(super) fn communication_ns(&self, step: u64) -> u64 {
        let slower = self.injections.iter().map(|injection| match *injection {
            Injection::SlowNetwork { from_step, percent } if step >= from_step => factor(percent),
            _ => 1.0,
        });
        scale(COMMUNICATION_NS, slower.product())
    }
}

fn factor(percent: u32) -> f64 {
    1.0 + f64::from(percent) / 100.0
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // not negative, and a step is shorter than a century
fn scale(nanos: u64, factor: f64) -> u64 {
    (nanos as f64 * factor) as u64
}
