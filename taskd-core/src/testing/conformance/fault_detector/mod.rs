//! The detector suite: plays timelines to detectors, several times, from several states, and compares all they say.

mod driver;
#[cfg(test)]
mod tests;

use super::verdict::{Verdict, clauses, insist};
use super::{Clause, Report, Violation};
use crate::detect::{FaultDetector, Finding};
use crate::testing::Timeline;
use driver::{Driver, State};
use std::fmt;
use std::time::Duration;

clauses! { "fault_detector":
    PURE = "the same observations give the same findings and deadlines";
    QUICK = "no call blocks";
    NEVER_PANICS = "no call panics, whatever it is shown";
    DEADLINE_MOVES_ON = "`expire` moves the deadline on";
    COLD_BLAMES_NOBODY = "nobody is blamed in a healthy job, wherever the detector comes in";
    CONFIDENCE_IN_RANGE = "a suspect's confidence is at most 1000 permille";
    ONSET_NOT_IN_FUTURE = "a fault has begun when it is found";
    SIGNED = "faults and questions carry the name of the detector";
    ASK_CAN_BE_ANSWERED = "a question is about somebody and leaves time for an answer";
    SNAPSHOT_GOES_ON = "a detector that was restored from a snapshot goes on as the one that was saved";
    REFUSED_RESTORE_IS_COLD = "a detector that refuses a saved state starts cold";
    IDENTITY_CONSTANT = "name, version and configuration never change";
}

/// How often a timeline is played to fresh detectors: enough for two maps with random order to differ.
const PLAYS: usize = 3;
/// In how many places a timeline is interrupted by a snapshot, or entered cold.
const PLACES: usize = 5;
/// Random timelines, unless the author asks for more.
const SEEDS: u64 = 20;

/// Checks a detector against the contract of [`FaultDetector`].
///
/// `make` gives a fresh detector. The suite plays a healthy job and random timelines to it.
///
/// ```
/// use taskd_core::detect::{Damage, Fault, FaultClass, Suspect, detector};
/// use taskd_core::job::{Domain, Name};
/// use taskd_core::testing::conformance;
/// use taskd_core::trace::Signal;
///
/// let nan_loss = || detector("nan-loss", |o, _view, out| {
///     if let Signal::Metric { name, value } = &o.signal && *name == "loss" && value.is_nan() {
///         let suspect = Suspect::certain(Domain::Job, FaultClass::Program, Damage::default());
///         out.blame(Fault::new(Name::new("nan-loss"), o.at, suspect));
///     }
/// });
/// conformance::fault_detector(nan_loss).assert();
/// ```
pub fn fault_detector<F, D>(make: F) -> DetectorSuite
where
    F: Fn() -> D + 'static,
    D: FaultDetector + 'static,
{
    DetectorSuite {
        make: Box::new(move || Box::new(make())),
        healthy: Timeline::healthy(),
        timelines: Vec::new(),
        seeds: SEEDS,
        quick: Duration::from_millis(10),
        verdict: Verdict::default(),
    }
}

/// A detector and what it is to be shown, ready to be checked (see [`fault_detector()`]).
pub struct DetectorSuite {
    make: Box<dyn Fn() -> Box<dyn FaultDetector>>,
    healthy: Timeline,
    timelines: Vec<Timeline>,
    seeds: u64,
    quick: Duration,
    verdict: Verdict,
}

impl DetectorSuite {
    /// What a healthy job looks like to this detector; [`Timeline::healthy`] unless told.
    #[must_use]
    pub fn with_healthy(mut self, healthy: Timeline) -> Self {
        self.healthy = healthy;
        self
    }

    /// Another timeline to play, best one in which the detector has much to say.
    #[must_use]
    pub fn with_timeline(mut self, timeline: Timeline) -> Self {
        self.timelines.push(timeline);
        self
    }

    /// How many random timelines to play; 20 unless told.
    #[must_use]
    pub fn with_seeds(mut self, seeds: u64) -> Self {
        self.seeds = seeds;
        self
    }

    /// From how long on a call counts as one that blocks, if it takes so long each time; 10 ms unless told.
    #[must_use]
    pub fn with_quick(mut self, quick: Duration) -> Self {
        self.quick = quick;
        self
    }

    /// Says that the detector does not keep `clause`, and why that is right. The report tells of it.
    #[must_use]
    pub fn without(mut self, clause: Clause, why: impl Into<String>) -> Self {
        self.verdict.waive(clause, why);
        self
    }

    /// Runs the suite.
    ///
    /// # Errors
    /// Every clause that was seen broken.
    pub fn check(mut self) -> Result<Report, Vec<Violation>> {
        let mut snapshots = 0;
        let random = (0..self.seeds).map(|seed| (format!("random timeline {seed}"), Timeline::random(seed)));
        let given = self.timelines.iter().cloned().enumerate().map(|(i, t)| (format!("timeline {i}"), t));
        let healthy = std::iter::once(("the healthy timeline".to_owned(), self.healthy.clone()));
        for (title, timeline) in healthy.chain(given).chain(random).collect::<Vec<_>>() {
            match self.play(&title, &timeline) {
                Some(taken) => snapshots += taken,
                None => return self.verdict.finish(ALL), // more of it would only take long
            }
        }
        self.cold();
        if snapshots == 0 {
            let why = "the detector gave no snapshot: it starts cold after a restart of the supervisor";
            self.verdict.skip(SNAPSHOT_GOES_ON, why);
        }
        self.verdict.finish(ALL)
    }

    /// Runs the suite.
    ///
    /// # Panics
    /// With every clause that was seen broken.
    #[track_caller]
    pub fn assert(self) -> Report {
        insist("detector", self.check())
    }

    /// Plays one timeline in every way. How many snapshots it gave; `None`: it panics or blocks.
    fn play(&mut self, title: &str, timeline: &Timeline) -> Option<usize> {
        let places: Vec<usize> = (1..=PLACES).map(|i| timeline.moments().len() * i / (PLACES + 1)).collect();
        let mut first = self.driver();
        let mut saved: Vec<(State, Vec<u8>)> = Vec::new();
        for (i, moment) in timeline.moments().iter().enumerate() {
            if places.contains(&i) {
                saved.extend(first.save());
            }
            first.show(moment);
        }
        first.finish(timeline.view());
        first.judge(title, &mut self.verdict);
        if first.has_panicked() {
            return None;
        }

        let mut slow = first.slow.clone();
        for _ in 1..PLAYS {
            let mut other = self.driver();
            timeline.moments().iter().for_each(|moment| other.show(moment));
            other.finish(timeline.view());
            slow.retain(|call| other.slow.contains(call));
            if slow.is_empty()
                && let Some((call, one, two)) = first.differs(&other, 0)
            {
                self.verdict.broken(PURE, format!("{title}, {call}: said {one}, and another time {two}"));
            }
        }
        if let Some(call) = slow.first() {
            let (call, quick) = (first.title(*call), self.quick);
            self.verdict.broken(QUICK, format!("{title}, {call}: took more than {quick:?} each of {PLAYS} times"));
            return None;
        }
        for (state, bytes) in &saved {
            self.go_on(title, timeline, &first, state, bytes);
        }
        if let Some((_, bytes)) = saved.last() {
            self.spoil(title, timeline, &first, bytes);
        }
        Some(saved.len())
    }

    /// Restores a saved state and plays the rest.
    fn go_on(&mut self, title: &str, timeline: &Timeline, saved: &Driver, state: &State, bytes: &[u8]) {
        let mut restored = self.driver();
        match restored.restore(bytes) {
            Some(Ok(())) => {}
            Some(Err(_)) => {
                let seen =
                    format!("{title}: the detector's own snapshot after {} was refused", saved.title(state.calls));
                return self.verdict.broken(SNAPSHOT_GOES_ON, seen);
            }
            None => return restored.judge(title, &mut self.verdict),
        }
        restored.resume(state);
        timeline.moments()[state.shown..].iter().for_each(|moment| restored.show(moment));
        restored.finish(timeline.view());
        if let Some((call, one, two)) = saved.differs(&restored, state.calls) {
            self.verdict.broken(SNAPSHOT_GOES_ON, format!("{title}, {call}: said {one}, and restored it said {two}"));
        }
    }

    /// Offers states that are none. One who refuses them goes on as if nothing had been offered.
    fn spoil(&mut self, title: &str, timeline: &Timeline, saved: &Driver, bytes: &[u8]) {
        for spoilt in [&bytes[..bytes.len() / 2], &[], b"no state of any detector"] {
            let mut cold = self.driver();
            let refused = cold.restore(spoilt);
            if matches!(refused, Some(Err(_))) {
                timeline.moments().iter().for_each(|moment| cold.show(moment));
                cold.finish(timeline.view());
                if let Some((call, one, two)) = saved.differs(&cold, 0) {
                    let seen = format!("{title}, {call}: a cold one said {one}, and after a refused restore {two}");
                    self.verdict.broken(REFUSED_RESTORE_IS_COLD, seen);
                }
            }
            cold.judge(title, &mut self.verdict);
        }
    }

    /// Comes into a healthy job in several places: nobody is to blame.
    fn cold(&mut self) {
        let moments = self.healthy.moments();
        for place in (0..PLACES).map(|i| moments.len() * i / PLACES) {
            let mut cold = self.driver();
            moments[place..].iter().for_each(|moment| cold.show(moment));
            let blames = cold.findings().filter_map(|(call, finding)| match finding {
                Finding::Blame(fault) if fault.prime().is_cause() => Some((call, &fault.prime().domain)),
                _ => None,
            });
            for (call, domain) in blames {
                let seen = format!("came into a healthy job at moment {place}; {}: blamed {domain}", cold.title(call));
                self.verdict.broken(COLD_BLAMES_NOBODY, seen);
            }
        }
    }

    fn driver(&self) -> Driver {
        Driver::new((self.make)(), self.quick)
    }
}

impl fmt::Debug for DetectorSuite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DetectorSuite")
            .field("timelines", &self.timelines.len())
            .field("seeds", &self.seeds)
            .finish_non_exhaustive()
    }
}
