//! The detector suite: plays timelines to detectors, several times, from several states, and compares their output.

mod driver;
#[cfg(test)]
mod tests;
mod watch;

use super::verdict::{Verdict, clauses, insist};
use super::{Clause, Report, Violation};
use crate::detect::{FaultDetector, Finding};
use crate::testing::Timeline;
use crate::trace::DecodeError;
use driver::{Driver, State};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use watch::Stuck;

clauses! { "fault_detector":
    PURE = "the same observations give the same findings and deadlines";
    QUICK = "no call blocks";
    NEVER_PANICS = "no call panics for any input";
    DEADLINE_MOVES_ON = "`expire` moves the deadline on";
    COLD_BLAMES_NOBODY = "nothing is blamed in a healthy job, at whatever point the detector starts";
    CONFIDENCE_IN_RANGE = "a suspect's confidence is at most 1000 permille";
    ONSET_NOT_IN_FUTURE = "a fault has begun when it is found";
    SIGNED = "faults and probes carry the name of the detector";
    ASK_CAN_BE_ANSWERED = "a probe names at least one domain and leaves time for an answer";
    SNAPSHOT_GOES_ON = "a detector that was restored from a snapshot continues like the saved one";
    REFUSED_RESTORE_IS_COLD = "a detector that refuses a saved state starts cold";
    IDENTITY_CONSTANT = "name, version and configuration never change";
}

/// Number of times that a timeline is played to new detectors: enough for two maps with random order to differ.
const PLAYS: usize = 3;
/// Number of positions at which a timeline is interrupted by a snapshot, or entered without history.
const PLACES: usize = 5;
/// Default number of random timelines.
const SEEDS: u64 = 20;

/// Checks a detector against the contract of [`FaultDetector`].
///
/// `make` returns a new detector. The suite plays a healthy job and random timelines to it, on separate threads: a call
/// that does not return is reported, and its thread is left behind.
///
/// ```
/// use taskd_core::detect::{Damage, Fault, FaultClass, Suspect, detector_fn};
/// use taskd_core::job::{Domain, Name};
/// use taskd_core::testing::conformance;
/// use taskd_core::trace::Signal;
///
/// let nan_loss = || detector_fn("nan-loss", |o, _view, out| {
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
        healthy: Arc::new(Timeline::healthy()),
        timelines: Vec::new(),
        seeds: SEEDS,
        quick: Duration::from_millis(10),
        patience: Duration::from_secs(10),
        verdict: Verdict::default(),
    }
}

/// A detector and its timelines, ready to be checked (see [`fault_detector()`]).
pub struct DetectorSuite {
    make: Box<dyn Fn() -> Box<dyn FaultDetector>>,
    healthy: Arc<Timeline>,
    timelines: Vec<Timeline>,
    seeds: u64,
    quick: Duration,
    patience: Duration,
    verdict: Verdict,
}

impl DetectorSuite {
    /// Sets the timeline of a healthy job, in which this detector must not blame anything (default:
    /// [`Timeline::healthy`]).
    #[must_use]
    pub fn with_healthy(mut self, healthy: Timeline) -> Self {
        self.healthy = Arc::new(healthy);
        self
    }

    /// Adds a timeline to show to the detector, preferably one in which the detector reports much.
    #[must_use]
    pub fn with_timeline(mut self, timeline: Timeline) -> Self {
        self.timelines.push(timeline);
        self
    }

    /// Sets the number of random timelines to show to the detector (default: 20).
    #[must_use]
    pub fn with_seeds(mut self, seeds: u64) -> Self {
        self.seeds = seeds;
        self
    }

    /// Sets the duration from which a call of the detector counts as blocking, if it takes that long each time
    /// (default: 10 ms).
    #[must_use]
    pub fn with_quick(mut self, quick: Duration) -> Self {
        self.quick = quick;
        self
    }

    /// Sets how long to wait for a call of the detector that does not return (default: 10 s).
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Excludes `clause`, a requirement of the contract that the detector does not keep: breaking it is then no
    /// violation. The [report](Report::skipped) lists the clause with the reason `why`.
    #[must_use]
    pub fn without(mut self, clause: Clause, why: impl Into<String>) -> Self {
        self.verdict.waive(clause, why);
        self
    }

    /// Runs the suite.
    ///
    /// # Errors
    /// Returns one [`Violation`] for each clause of the contract that the detector broke, in the order of the contract.
    pub fn check(mut self) -> Result<Report, Vec<Violation>> {
        let random = (0..self.seeds).map(|seed| (format!("random timeline {seed}"), Arc::new(Timeline::random(seed))));
        let given = self.timelines.drain(..).enumerate().map(|(i, t)| (format!("timeline {i}"), Arc::new(t)));
        let healthy = std::iter::once(("the healthy timeline".to_owned(), Arc::clone(&self.healthy)));
        let timelines: Vec<(String, Arc<Timeline>)> = healthy.chain(given).chain(random).collect();
        let mut snapshots = 0;
        for (title, timeline) in timelines {
            let played = self.play(&title, &timeline);
            match self.unless_stuck(&title, played).flatten() {
                Some(taken) => snapshots += taken,
                None => return self.verdict.finish(ALL), // further plays would only take long
            }
        }
        let cold = self.cold();
        self.unless_stuck("the healthy timeline", cold);
        if snapshots == 0 {
            let why = "the detector gave no snapshot: it starts cold after a restart of the supervisor";
            self.verdict.skip(SNAPSHOT_GOES_ON, why);
        }
        self.verdict.finish(ALL)
    }

    /// Runs the suite.
    ///
    /// # Panics
    /// Panics if the detector broke a clause of the contract; the message lists each broken clause, what the detector
    /// did, and what the clause requires.
    #[track_caller]
    pub fn assert(self) -> Report {
        insist("detector", self.check())
    }

    fn unless_stuck<T>(&mut self, title: &str, played: Result<T, Stuck>) -> Option<T> {
        let patience = self.patience;
        let message = |Stuck(call): &Stuck| format!("{title}, {call}: has not returned for {patience:?}");
        played.inspect_err(|stuck| self.verdict.broken(QUICK, message(stuck))).ok()
    }

    /// Shows one timeline to the detector repeatedly, also after restoring valid and invalid snapshots. Returns the
    /// number of snapshots that the detector gave; `None` if it panics or is slow each time.
    fn play(&mut self, title: &str, timeline: &Arc<Timeline>) -> Result<Option<usize>, Stuck> {
        let story = Arc::clone(timeline);
        let (first, saved) = self.driver().apart(self.patience, move |driver| {
            let moments = story.moments();
            let places: Vec<usize> = (1..=PLACES).map(|i| moments.len() * i / (PLACES + 1)).collect();
            let mut saved: Vec<(State, Vec<u8>)> = Vec::new();
            for (i, moment) in moments.iter().enumerate() {
                if places.contains(&i) {
                    saved.extend(driver.save());
                }
                driver.show(moment);
            }
            driver.finish(story.view());
            saved
        })?;
        first.judge(title, &mut self.verdict);
        if first.has_panicked() {
            return Ok(None);
        }

        let mut slow = first.slow.clone();
        for _ in 1..PLAYS {
            let other = self.show(self.driver(), timeline, 0)?;
            slow.retain(|call| other.slow.contains(call));
            if slow.is_empty()
                && let Some((call, one, two)) = first.differs(&other, 0)
            {
                self.verdict.broken(PURE, format!("{title}, {call}: returned {one}, and another time {two}"));
            }
        }
        if let Some(call) = slow.first() {
            let (call, quick) = (first.title(*call), self.quick);
            self.verdict.broken(QUICK, format!("{title}, {call}: took more than {quick:?} each of {PLAYS} times"));
            return Ok(None);
        }
        for (state, bytes) in &saved {
            self.go_on(title, timeline, &first, state, bytes)?;
        }
        if let Some((_, bytes)) = saved.last() {
            self.spoil(title, timeline, &first, bytes)?;
        }
        Ok(Some(saved.len()))
    }

    /// Shows the observations of a timeline to a detector, from index `from` on, and calls `expire` whenever it is due.
    fn show(&self, driver: Driver, timeline: &Arc<Timeline>, from: usize) -> Result<Driver, Stuck> {
        let story = Arc::clone(timeline);
        let reported = driver.apart(self.patience, move |driver| {
            story.moments()[from..].iter().for_each(|moment| driver.show(moment));
            driver.finish(story.view());
        });
        reported.map(|(driver, ())| driver)
    }

    /// Creates a new detector, and returns it with the result of its `restore` for this saved state.
    fn restored(&self, bytes: &[u8]) -> Result<(Driver, Option<Result<(), DecodeError>>), Stuck> {
        let bytes = bytes.to_vec();
        self.driver().apart(self.patience, move |driver| driver.restore(&bytes))
    }

    /// Checks that a detector that is restored from a saved state continues the timeline as the original one did.
    fn go_on(
        &mut self,
        title: &str,
        timeline: &Arc<Timeline>,
        saved: &Driver,
        state: &State,
        bytes: &[u8],
    ) -> Result<(), Stuck> {
        let (mut restored, accepted) = self.restored(bytes)?;
        match accepted {
            Some(Ok(())) => {}
            Some(Err(_)) => {
                let seen =
                    format!("{title}: the detector's own snapshot after {} was refused", saved.title(state.calls));
                self.verdict.broken(SNAPSHOT_GOES_ON, seen);
                return Ok(());
            }
            None => {
                restored.judge(title, &mut self.verdict);
                return Ok(());
            }
        }
        restored.resume(state);
        let restored = self.show(restored, timeline, state.shown)?;
        if let Some((call, one, two)) = saved.differs(&restored, state.calls) {
            self.verdict
                .broken(SNAPSHOT_GOES_ON, format!("{title}, {call}: returned {one}, and after a restore {two}"));
        }
        Ok(())
    }

    /// Checks that a detector that refuses an invalid saved state continues as if nothing had been offered.
    fn spoil(&mut self, title: &str, timeline: &Arc<Timeline>, saved: &Driver, bytes: &[u8]) -> Result<(), Stuck> {
        for spoilt in [&bytes[..bytes.len() / 2], &[], b"no state of any detector"] {
            let (mut cold, refused) = self.restored(spoilt)?;
            if matches!(refused, Some(Err(_))) {
                cold = self.show(cold, timeline, 0)?;
                if let Some((call, one, two)) = saved.differs(&cold, 0) {
                    let seen = format!("{title}, {call}: a cold one returned {one}, and after a refused restore {two}");
                    self.verdict.broken(REFUSED_RESTORE_IS_COLD, seen);
                }
            }
            cold.judge(title, &mut self.verdict);
        }
        Ok(())
    }

    /// Checks that a new detector that starts to observe in the middle of a healthy job does not blame anything.
    fn cold(&mut self) -> Result<(), Stuck> {
        let moments = self.healthy.moments().len();
        for place in (0..PLACES).map(|i| moments * i / PLACES) {
            let cold = self.show(self.driver(), &self.healthy, place)?;
            let blames = cold.findings().filter_map(|(call, finding)| match finding {
                Finding::Blame(fault) if fault.primary_suspect().is_cause() => {
                    Some((call, &fault.primary_suspect().domain))
                }
                _ => None,
            });
            for (call, domain) in blames {
                let seen = format!("started in a healthy job at moment {place}; {}: blamed {domain}", cold.title(call));
                self.verdict.broken(COLD_BLAMES_NOBODY, seen);
            }
        }
        Ok(())
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
