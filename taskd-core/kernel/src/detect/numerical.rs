//! Numerical faults: a loss or gradient norm that is not finite, loss spikes, and replicas with different states.
//!
//! It computes no checksum and reads no tensor: ranks report figures, and the kernel compares their checksums.

mod checksums;
mod divergence;
mod rounds;
mod runs;
mod series;

use super::{FaultClass, FaultDetector, Findings, saved};
use crate::job::{Domain, Generation, Incarnation, JobTime, Name, Rank, Role};
use crate::state::View;
use crate::trace::{
    DecodeError, GRAD_NORM, LOSS, METRIC_STEP, Observation, SKIPPED_STEPS, Signal, is_replica_checksum,
};
use bytes::Bytes;
use checksums::Checksums;
use divergence::Divergence;
use rounds::Rounds;
use runs::{Kind, Metric, Run};
use serde::{Deserialize, Serialize};
use series::Limits;
use std::collections::BTreeMap;

const NAME: Name = Name::new("numerical");
const SNAPSHOT_VERSION: u8 = 2;

/// Number of loss values with which a loss is compared.
const WINDOW_REPORTS: usize = 32;

/// Number of gradient norms in a row that are a fault if they are NaN or infinite. `torch.amp.GradScaler` begins with a
/// scale of 2^16 and halves it after each overflow, so sixteen infinite norms in a row belong to a healthy start.
const GRAD_NORM_REPORTS: u32 = 20;

/// Number of losses in a row that are a fault if they are NaN or infinite: the first, because the reduced gradients
/// spread it to all ranks.
const LOSS_REPORTS: u32 = 1;

/// Name of the evidence that states what to do.
const ADVICE: Name = Name::new("numerical_advice");

/// Upper bound of a whole number in a metric, exclusive: above it a 64-bit floating-point number has gaps.
const WHOLE_END: f64 = (1_u64 << 53) as f64;

/// Reports numerical faults of the training.
///
/// Ranks report their figures as [`Signal::Metric`] of the names [`LOSS`](crate::trace::LOSS) and
/// [`GRAD_NORM`](crate::trace::GRAD_NORM), either by themselves (`TASKD_NUMERICAL` in the environment of a PyTorch job) or
/// with `taskd.counter("loss", loss)` in Python. Reports of one [step](crate::trace::METRIC_STEP) are compared with each
/// other; without a step, the n-th reports of all ranks since the start of the generation. If those are more than half of a
/// step apart in time, they belong to different steps: then no rank is blamed.
///
/// | finding | when | class |
/// |---|---|---|
/// | fault of the job, without a culprit | the loss is NaN or infinite on several ranks, or 20 gradient norms in a row are | [`NUMERICAL`](Self::NUMERICAL) |
/// | fault of a rank, 700 permille | the same on only one of at least three ranks | [`NUMERICAL`](Self::NUMERICAL) |
/// | note | a loss is a spike, or a gradient norm is infinite, for a few reports | |
/// | fault of the job, without a culprit | the losses of several ranks are spikes in five reports in a row | [`NUMERICAL`](Self::NUMERICAL) |
/// | fault of a rank, 700 permille | the same on only one of at least three ranks | [`NUMERICAL`](Self::NUMERICAL) |
/// | fault of a rank, 900 permille, with faulty state | its checksum of parameters (and optimizer state) differs from that of a strict majority of its replicas, which are equal, at the same step | [`SDC`](Self::SDC) |
/// | note | the checksums of replicas differ, but no rank stands out: of two replicas neither is blamed | |
///
/// A *spike* exceeds the median of the rank's last 32 usual losses by more than eight robust standard deviations
/// (measured by the median absolute difference of successive losses) and by more than 25 %. A rank alone has a NaN loss
/// before the reduced gradients have spread it to all ranks, so the first report decides.
///
/// Checksums are compared in the process groups that the framework itself keeps equal (for example those of
/// `DistributedDataParallel`), in rounds in which all ranks of the world have reported, and only after all ranks of the
/// group have been equal in an earlier round of the same generation. They have two sources. In a `taskd.steps` loop,
/// ranks compute them at the first steps, at powers of two and every 64 steps, for the recovery within processes: this
/// detector adds no cost. Elsewhere `TASKD_NUMERICAL` has each rank compute the checksum of one part of the parameters at
/// a time ([`ReplicaChecksum`](crate::trace::ReplicaChecksum)), so that all parts have their turn.
///
/// Faults of the class [`NUMERICAL`](Self::NUMERICAL) are withdrawn after 16 usual reports. Their ranks still train, so
/// the built-in strategies leave them alone, and the incident reports that nothing was done. Faults of the class
/// [`SDC`](Self::SDC) are withdrawn once all ranks of the group are equal again.
///
/// This detector is not among the [`defaults`](super::defaults).
#[derive(Debug)]
pub struct NumericalDetector {
    sigmas: f64,
    percent: u32,
    persistence: u32,
    state: State,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    generation: Generation,
    incarnations: BTreeMap<u32, Incarnation>,
    /// Step to which the next figures of a rank belong, by rank.
    steps: BTreeMap<u32, u64>,
    /// Largest number of steps that the gradient scaler of a rank has skipped.
    skipped: u64,
    loss: Rounds,
    grad_norm: Rounds,
    loss_not_finite: Run,
    loss_spike: Run,
    grad_norm_not_finite: Run,
    divergence: Divergence,
    checksums: Checksums,
}

impl Default for NumericalDetector {
    fn default() -> NumericalDetector {
        NumericalDetector::new()
    }
}

impl NumericalDetector {
    /// Class of faults of the loss and the gradient norm.
    pub const NUMERICAL: FaultClass = FaultClass::Other(Name::new("numerical"));

    /// Class of silent data corruption: the state of a rank differs from that of its replicas.
    pub const SDC: FaultClass = FaultClass::Other(Name::new("sdc"));

    /// Range to which the number of robust standard deviations of a spike is limited.
    pub const SIGMAS: std::ops::RangeInclusive<f64> = 3.0..=100.0;

    /// Creates the detector: a spike exceeds the usual loss by 8 robust standard deviations and 25 %, and five spikes
    /// in a row are a fault.
    #[must_use]
    pub fn new() -> NumericalDetector {
        NumericalDetector { sigmas: 8.0, percent: 25, persistence: 5, state: State::default() }
    }

    /// Sets by how much a loss has to exceed its usual value to count as a spike: by `sigmas` robust standard
    /// deviations (clamped to [`Self::SIGMAS`]; NaN is the lower end) and by `percent` percent.
    #[must_use]
    pub fn with_spike(mut self, sigmas: f64, percent: u32) -> NumericalDetector {
        self.sigmas = sigmas.max(*Self::SIGMAS.start()).min(*Self::SIGMAS.end()); // NaN: the start
        self.percent = percent;
        self
    }

    /// Sets the number of spikes in a row that are a fault, at least 1. Fewer are reported in a note. Default: 5.
    #[must_use]
    pub fn with_persistence(mut self, reports: u32) -> NumericalDetector {
        self.persistence = reports.max(1);
        self
    }

    /// Returns the number of reports that arrived too late to be compared with those of the other ranks.
    #[must_use]
    pub fn late_reports(&self) -> u64 {
        self.state.loss.late.saturating_add(self.state.grad_norm.late)
    }

    /// Returns the number of reported [checksums](crate::trace::ReplicaChecksum) that could not be compared: without a
    /// step or members, of too many groups, or in a round that lacks a rank.
    #[must_use]
    pub fn dropped_checksums(&self) -> u64 {
        self.state.checksums.dropped
    }

    fn limits(&self) -> Limits {
        Limits { window: WINDOW_REPORTS, sigmas: self.sigmas, percent: self.percent }
    }

    /// Handles a figure of a rank.
    fn reported(&mut self, rank: Rank, name: &Name, value: f64, o: &Observation, view: &View, out: &mut Findings) {
        let Some(proc) = view.proc(&Role::Rank(rank)) else { return };
        if o.incarnation.is_some_and(|told| told != proc.incarnation) || !view.world.members().contains_key(&rank) {
            return;
        }
        let (generation, incarnation) = (view.world.generation(), proc.incarnation);
        let known = self.state.incarnations.insert(rank.0, incarnation);
        if generation != self.state.generation || known.is_some_and(|known| known != incarnation) {
            self.start_again(generation);
            self.state.incarnations.insert(rank.0, incarnation);
        }
        let (limits, at) = (self.limits(), o.at.min(view.now));
        let State { steps, skipped, loss, grad_norm, checksums, .. } = &mut self.state;
        let step = steps.get(&rank.0).copied();
        match name {
            name if *name == METRIC_STEP => _ = whole(value).map(|step| steps.insert(rank.0, step)),
            name if *name == SKIPPED_STEPS => *skipped = whole(value).unwrap_or_default().max(*skipped),
            name if *name == LOSS => loss.add(rank, step, value, at, &limits),
            name if *name == GRAD_NORM => grad_norm.add(rank, step, value, at, &limits),
            checksum => checksums.add(checksum, rank, step, value, view, out),
        }
        self.judge(view, out);
    }

    /// Begins again in a new world: ranks count their reports from one, and what was reported has led to it.
    fn start_again(&mut self, generation: Generation) {
        let divergence = std::mem::take(&mut self.state.divergence);
        let mut checksums = std::mem::take(&mut self.state.checksums);
        checksums.start_again();
        self.state = State { generation, divergence, checksums, ..State::default() };
    }

    /// Judges all rounds that can be judged.
    fn judge(&mut self, view: &View, out: &mut Findings) {
        let State { skipped, loss, grad_norm, loss_not_finite, loss_spike, grad_norm_not_finite, .. } = &mut self.state;
        let of_loss = Metric { name: LOSS, words: "loss", skipped: 0 };
        let of_gradients = Metric { name: GRAD_NORM, words: "gradient norm", skipped: *skipped };
        while let Some(judged) = loss.next(view) {
            loss_not_finite.add(Kind::NotFinite, &of_loss, &judged, LOSS_REPORTS, view, out);
            if loss_spike.add(Kind::Spike, &of_loss, &judged, self.persistence, view, out) {
                loss.forget(); // ranks that would take longer to know the new level would stand out
            }
        }
        while let Some(judged) = grad_norm.next(view) {
            grad_norm_not_finite.add(Kind::NotFinite, &of_gradients, &judged, GRAD_NORM_REPORTS, view, out);
        }
    }
}

impl FaultDetector for NumericalDetector {
    fn name(&self) -> Name {
        NAME
    }

    fn config(&self) -> String {
        format!("spike_sigmas={} spike_percent={} persistence={}", self.sigmas, self.percent, self.persistence)
    }

    fn observe(&mut self, o: &Observation, view: &View, out: &mut Findings) {
        self.state.divergence.observe(view, out);
        let (Signal::Metric { name, value }, Domain::Process(Role::Rank(rank))) = (&o.signal, &o.about) else { return };
        if is_of_training(name) {
            self.reported(*rank, name, *value, o, view, out);
        }
    }

    fn deadline(&self) -> Option<JobTime> {
        self.state.loss.due().into_iter().chain(self.state.grad_norm.due()).min()
    }

    fn expire(&mut self, view: &View, out: &mut Findings) {
        self.judge(view, out);
    }

    fn snapshot(&self) -> Option<Bytes> {
        saved::save(SNAPSHOT_VERSION, &self.state)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), DecodeError> {
        self.state = saved::load(SNAPSHOT_VERSION, saved)?;
        Ok(())
    }
}

/// Returns true if this detector reads the metric.
fn is_of_training(name: &Name) -> bool {
    is_replica_checksum(name.as_str()) || [METRIC_STEP, LOSS, GRAD_NORM, SKIPPED_STEPS].contains(name)
}

/// Returns the whole number that a metric's value contains.
fn whole(value: f64) -> Option<u64> {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 2^53")]
    (0.0..WHOLE_END).contains(&value).then_some(value as u64)
}

#[cfg(test)]
mod tests;
