//! Calls one detector as the kernel does, and records its output.

use super::super::verdict::{Verdict, apart};
use super::watch::{Stuck, Watch};
use super::{
    ASK_CAN_BE_ANSWERED, CONFIDENCE_IN_RANGE, DEADLINE_MOVES_ON, IDENTITY_CONSTANT, NEVER_PANICS, ONSET_NOT_IN_FUTURE,
    SIGNED,
};
use crate::detect::{FaultDetector, Finding, Findings};
use crate::job::{Domain, JobTime, Name};
use crate::state::View;
use crate::testing::Moment;
use crate::trace::{DecodeError, Observation, Probe, ProbeReply, ProbeResult, Signal};
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Largest number of calls of `expire` between two observations; after that, the next observation follows.
const EXPIRES_MAX: usize = 1_000;
/// Largest number of probes that are answered, so that a detector that requests them forever does not block the suite.
const ANSWERS_MAX: usize = 1_000;
/// Number of slow calls after which nothing more is shown.
const SLOW_MAX: usize = 10;

/// The call that was made, with its job time.
#[derive(Clone)]
pub(super) enum What {
    Observe(usize, Domain, JobTime),
    Expire(JobTime),
    /// A call of another method, such as `snapshot`, which is not part of the timeline.
    Other(&'static str),
}

/// One call of `observe` or `expire`, and its complete output.
struct Call {
    what: What,
    now: JobTime,
    findings: Vec<Finding>,
    deadline: Option<JobTime>,
    /// True if the call was of `expire` and the detector's deadline has not moved on.
    stuck: bool,
}

/// The position at which a play was interrupted.
#[derive(Clone)]
pub(super) struct State {
    /// Number of moments of the timeline that had been shown.
    pub(super) shown: usize,
    /// Number of calls that had been made.
    pub(super) calls: usize,
    now: JobTime,
    view: Option<View>,
    answers: VecDeque<Observation>,
    answered: usize,
}

pub(super) struct Driver {
    detector: Option<Box<dyn FaultDetector>>,
    identity: Option<(Name, Name, String)>,
    quick: Duration,
    watch: Arc<Watch>,
    state: State,
    calls: Vec<Call>,
    pub(super) slow: BTreeSet<usize>,
    panicked: Option<String>,
    renamed: bool,
}

impl Driver {
    pub(super) fn new(detector: Box<dyn FaultDetector>, quick: Duration) -> Driver {
        let state =
            State { shown: 0, calls: 0, now: JobTime::START, view: None, answers: VecDeque::new(), answered: 0 };
        let mut driver = Driver {
            detector: Some(detector),
            identity: None,
            quick,
            watch: Arc::default(),
            state,
            calls: Vec::new(),
            slow: BTreeSet::new(),
            panicked: None,
            renamed: false,
        };
        driver.identity = driver.guarded(What::Other("name"), identity);
        driver
    }

    /// Lets `play` call the detector on a separate thread.
    pub(super) fn apart<T: Send + 'static>(
        mut self,
        patience: Duration,
        play: impl FnOnce(&mut Driver) -> T + Send + 'static,
    ) -> Result<(Driver, T), Stuck> {
        let watch = Arc::clone(&self.watch);
        watch.over(patience, move || {
            let played = play(&mut self);
            (self, played)
        })
    }

    /// Calls the deadlines before this moment, then shows the moment, then the replies to the detector's probes.
    pub(super) fn show(&mut self, moment: &Moment) {
        if self.is_over() {
            return;
        }
        self.expire_before(moment.view.now);
        self.state.view = Some(moment.view.clone());
        self.state.now = moment.view.now;
        self.observe(&moment.observation, &moment.view);
        self.state.shown += 1;
        while let Some(answer) = self.state.answers.pop_front() {
            self.observe(&answer, &moment.view);
        }
    }

    /// Calls what is due until the end of the timeline.
    pub(super) fn finish(&mut self, last: &View) {
        self.state.view = Some(last.clone());
        self.expire_before(last.now + Duration::from_nanos(1));
        if let Some(now) = self.guarded(What::Other("name"), identity) {
            self.renamed = self.identity.as_ref() != Some(&now);
        }
    }

    pub(super) fn save(&mut self) -> Option<(State, Vec<u8>)> {
        let bytes = self.guarded(What::Other("snapshot"), |detector| detector.snapshot())??;
        Some((self.state.clone(), bytes.to_vec()))
    }

    /// Calls `restore`. Returns `None` if it panicked.
    pub(super) fn restore(&mut self, saved: &[u8]) -> Option<Result<(), DecodeError>> {
        self.guarded(What::Other("restore"), |detector| detector.restore(saved))
    }

    /// Continues from the position at which a play was interrupted.
    pub(super) fn resume(&mut self, from: &State) {
        self.state = from.clone();
    }

    /// Returns true if no further call is useful, because the detector has panicked or too many of its calls were slow.
    fn is_over(&self) -> bool {
        self.has_panicked() || self.slow.len() >= SLOW_MAX
    }

    pub(super) fn has_panicked(&self) -> bool {
        self.panicked.is_some()
    }

    pub(super) fn findings(&self) -> impl Iterator<Item = (usize, &Finding)> {
        self.calls.iter().enumerate().flat_map(|(i, call)| call.findings.iter().map(move |finding| (i, finding)))
    }

    pub(super) fn title(&self, call: usize) -> String {
        self.calls.get(call).or(self.calls.last()).map_or("before all calls".into(), |call| call.what.to_string())
    }

    /// Returns the first call whose output differs from that of another driver, which began `skipped` calls later, with
    /// both outputs.
    pub(super) fn differs(&self, other: &Driver, skipped: usize) -> Option<(String, String, String)> {
        let mut theirs = other.calls.iter();
        for mine in self.calls.iter().skip(skipped) {
            let Some(other) = theirs.next() else { break };
            if mine.deadline == other.deadline && mine.findings.is_empty() && other.findings.is_empty() {
                continue; // the usual case
            }
            let (one, two) = (mine.summary(), other.summary());
            if one != two {
                let (one, two) = apart(&one, &two);
                return Some((mine.what.to_string(), one, two));
            }
        }
        None
    }

    /// Judges single calls.
    pub(super) fn judge(&self, title: &str, verdict: &mut Verdict) {
        if let Some(panicked) = &self.panicked {
            verdict.broken(NEVER_PANICS, format!("{title}, {panicked}"));
        }
        if self.renamed {
            verdict.broken(IDENTITY_CONSTANT, format!("{title}: it was {:?} and changed", self.identity));
        }
        for call in &self.calls {
            if !call.stuck && call.findings.is_empty() {
                continue;
            }
            let at = format!("{title}, {}", call.what);
            if call.stuck {
                let deadline = call.deadline.unwrap_or_default();
                verdict.broken(DEADLINE_MOVES_ON, format!("{at}: at {} the deadline is {deadline}", call.now));
            }
            call.findings.iter().for_each(|finding| self.judge_finding(&at, call.now, finding, verdict));
        }
    }

    fn judge_finding(&self, at: &str, now: JobTime, finding: &Finding, verdict: &mut Verdict) {
        let name = self.identity.as_ref().map(|(name, ..)| name);
        let signed = |by: &Name, verdict: &mut Verdict| {
            if Some(by) != name {
                verdict.broken(SIGNED, format!("{at}: reported in the name of {by}"));
            }
        };
        match finding {
            Finding::Blame(fault) => {
                signed(&fault.by, verdict);
                if fault.onset > now {
                    verdict.broken(ONSET_NOT_IN_FUTURE, format!("{at}: found at {now}, began at {}", fault.onset));
                }
                for suspect in fault.suspects().iter().filter(|s| s.confidence_permille > 1000) {
                    let sure = suspect.confidence_permille;
                    verdict.broken(CONFIDENCE_IN_RANGE, format!("{at}: {} with {sure} permille", suspect.domain));
                }
            }
            Finding::Probe(ask) => {
                signed(&ask.by, verdict);
                if ask.about.is_empty() || ask.timeout.is_zero() {
                    let (domains, within) = (ask.about.len(), ask.timeout);
                    let seen = format!("{at}: asked for {} of {domains} domains within {within:?}", ask.what);
                    verdict.broken(ASK_CAN_BE_ANSWERED, seen);
                }
            }
            Finding::Clear(..) | Finding::Note(..) => {}
        }
    }

    fn expire_before(&mut self, time: JobTime) {
        for _ in 0..EXPIRES_MAX {
            let Some(deadline) = self.guarded(What::Other("deadline"), |detector| detector.deadline()).flatten() else {
                return;
            };
            if deadline >= time {
                return;
            }
            let Some(mut view) = self.state.view.clone() else { return };
            view.now = deadline.max(self.state.now);
            self.state.now = view.now;
            self.call(What::Expire(view.now), &view, |detector, out| detector.expire(&view, out));
            if self.is_over() {
                return;
            }
            let stuck = self.calls.last_mut().filter(|call| call.deadline.is_some_and(|at| at <= call.now));
            if let Some(call) = stuck {
                call.stuck = true;
                return;
            }
        }
    }

    fn observe(&mut self, observation: &Observation, view: &View) {
        let what = What::Observe(self.state.shown, observation.about.clone(), view.now);
        self.call(what, view, |detector, out| detector.observe(observation, view, out));
    }

    fn call(&mut self, what: What, view: &View, call: impl FnOnce(&mut dyn FaultDetector, &mut Findings)) {
        let mut found = Findings::default();
        let mut call_made =
            Call { what: what.clone(), now: view.now, findings: Vec::new(), deadline: None, stuck: false };
        if self.guarded(what, |detector| call(detector, &mut found)).is_none() {
            return;
        }
        if self.watch.last() > self.quick {
            self.slow.insert(self.state.calls);
        }
        call_made.deadline = self.guarded(What::Other("deadline"), |detector| detector.deadline()).flatten();
        call_made.findings = found.drain().collect();
        let findings = call_made.findings.clone();
        for ask in
            findings.iter().filter_map(|finding| if let Finding::Probe(ask) = finding { Some(ask) } else { None })
        {
            self.answer(ask, view.now);
        }
        self.calls.push(call_made);
        self.state.calls += 1;
    }

    /// Answers a probe that the detector requested; successive answers are of different kinds.
    fn answer(&mut self, ask: &Probe, now: JobTime) {
        for about in &ask.about {
            if self.state.answered >= ANSWERS_MAX {
                return;
            }
            let exhibit = match self.state.answered % 3 {
                0 => ProbeResult::Silence,
                1 => ProbeResult::Text("running".into()),
                _ => ProbeResult::Unavailable("the conformance suite does not know".into()),
            };
            self.state.answered += 1;
            let evidence = ProbeReply::new(ask, about.clone(), exhibit);
            let signal = Signal::ProbeReply(Arc::new(evidence));
            let answer = Observation::new(now, about.clone(), signal);
            self.state.answers.push_back(answer);
        }
    }

    /// Calls the detector and catches a panic. Returns `None` if the detector panicked, in this call or before.
    fn guarded<T>(&mut self, what: What, call: impl FnOnce(&mut dyn FaultDetector) -> T) -> Option<T> {
        let detector = self.detector.as_mut()?;
        self.watch.begin(&what);
        let answer = catch_unwind(AssertUnwindSafe(|| call(&mut **detector)));
        self.watch.end();
        answer
            .inspect_err(|panic| {
                self.detector = None;
                self.panicked = Some(format!("{what}: panicked: {}", super::super::verdict::words(panic.as_ref())));
            })
            .ok()
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Observe(index, about, at) => write!(f, "observation {index} ({about} at {at})"),
            What::Expire(at) => write!(f, "`expire` at {at}"),
            What::Other(name) => f.write_str(name),
        }
    }
}

impl Call {
    fn summary(&self) -> String {
        let deadline = self.deadline.map_or("no deadline".to_owned(), |at| format!("deadline {at:?}"));
        format!("{:?} with {deadline}", self.findings) // as text: a NaN does not equal a NaN
    }
}

fn identity(detector: &mut dyn FaultDetector) -> (Name, Name, String) {
    (detector.name(), detector.version(), detector.config())
}
