//! Calls one detector as the kernel does, and writes down what it says.

use super::super::verdict::{Verdict, apart};
use super::watch::{Stuck, Watch};
use super::{
    ASK_CAN_BE_ANSWERED, CONFIDENCE_IN_RANGE, DEADLINE_MOVES_ON, IDENTITY_CONSTANT, NEVER_PANICS, ONSET_NOT_IN_FUTURE,
    SIGNED,
};
use crate::detect::{FaultDetector, Finding, Findings};
use crate::job::{Domain, JobTime, Name};
use crate::kernel::View;
use crate::testing::Moment;
use crate::trace::{Ask, Evidence, Exhibit, Malformed, Observation, Signal};
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Most calls of `expire` between two observations; after so many the time of the next one has come.
const EXPIRES_MAX: usize = 1_000;
/// Most questions that are answered: a detector that asks for ever must not keep the suite for ever.
const ANSWERS_MAX: usize = 1_000;
/// After so many calls that took too long nothing more is shown.
const SLOW_MAX: usize = 10;

/// Which call was made, and when by the job's time.
#[derive(Clone)]
pub(super) enum What {
    Observe(usize, Domain, JobTime),
    Expire(JobTime),
    /// One that is not part of the story.
    Other(&'static str),
}

/// One call of `observe` or `expire`, and all that came of it.
struct Call {
    what: What,
    now: JobTime,
    said: Vec<Finding>,
    deadline: Option<JobTime>,
    /// `expire` was called and the deadline has not moved on.
    stuck: bool,
}

/// Where a play was interrupted.
#[derive(Clone)]
pub(super) struct State {
    /// How many moments of the timeline had been shown.
    pub(super) shown: usize,
    /// How many calls had been made.
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

    /// Lets `play` call the detector on a thread of its own.
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

    /// Deadlines before this moment, then the moment, then what the detector had asked for.
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

    /// What is due until the end of the timeline.
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

    /// `None`: it panicked.
    pub(super) fn restore(&mut self, saved: &[u8]) -> Option<Result<(), Malformed>> {
        self.guarded(What::Other("restore"), |detector| detector.restore(saved))
    }

    /// Goes on from where a play was interrupted.
    pub(super) fn resume(&mut self, from: &State) {
        self.state = from.clone();
    }

    /// Nothing more can be learnt: it has panicked, or it blocks.
    fn is_over(&self) -> bool {
        self.has_panicked() || self.slow.len() >= SLOW_MAX
    }

    pub(super) fn has_panicked(&self) -> bool {
        self.panicked.is_some()
    }

    pub(super) fn findings(&self) -> impl Iterator<Item = (usize, &Finding)> {
        self.calls.iter().enumerate().flat_map(|(i, call)| call.said.iter().map(move |finding| (i, finding)))
    }

    pub(super) fn title(&self, call: usize) -> String {
        self.calls.get(call).or(self.calls.last()).map_or("before all calls".into(), |call| call.what.to_string())
    }

    /// The first call that differs from those of another driver that began `skipped` calls later: what each said.
    pub(super) fn differs(&self, other: &Driver, skipped: usize) -> Option<(String, String, String)> {
        let mut theirs = other.calls.iter();
        for mine in self.calls.iter().skip(skipped) {
            let Some(other) = theirs.next() else { break };
            if mine.deadline == other.deadline && mine.said.is_empty() && other.said.is_empty() {
                continue; // nearly always
            }
            let (one, two) = (mine.told(), other.told());
            if one != two {
                let (one, two) = apart(&one, &two);
                return Some((mine.what.to_string(), one, two));
            }
        }
        None
    }

    /// What is wrong with single calls.
    pub(super) fn judge(&self, title: &str, verdict: &mut Verdict) {
        if let Some(panicked) = &self.panicked {
            verdict.broken(NEVER_PANICS, format!("{title}, {panicked}"));
        }
        if self.renamed {
            verdict.broken(IDENTITY_CONSTANT, format!("{title}: it was {:?} and changed", self.identity));
        }
        for call in &self.calls {
            if !call.stuck && call.said.is_empty() {
                continue;
            }
            let at = format!("{title}, {}", call.what);
            if call.stuck {
                let deadline = call.deadline.unwrap_or_default();
                verdict.broken(DEADLINE_MOVES_ON, format!("{at}: at {} the deadline is {deadline}", call.now));
            }
            call.said.iter().for_each(|finding| self.judge_finding(&at, call.now, finding, verdict));
        }
    }

    fn judge_finding(&self, at: &str, now: JobTime, finding: &Finding, verdict: &mut Verdict) {
        let name = self.identity.as_ref().map(|(name, ..)| name);
        let signed = |by: &Name, verdict: &mut Verdict| {
            if Some(by) != name {
                verdict.broken(SIGNED, format!("{at}: said something in the name of {by}"));
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
            Finding::Ask(ask) => {
                signed(&ask.by, verdict);
                if ask.about.is_empty() || ask.within.is_zero() {
                    let (domains, within) = (ask.about.len(), ask.within);
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
        let mut call_made = Call { what: what.clone(), now: view.now, said: Vec::new(), deadline: None, stuck: false };
        if self.guarded(what, |detector| call(detector, &mut found)).is_none() {
            return;
        }
        if self.watch.last() > self.quick {
            self.slow.insert(self.state.calls);
        }
        call_made.deadline = self.guarded(What::Other("deadline"), |detector| detector.deadline()).flatten();
        call_made.said = found.drain().collect();
        let said = call_made.said.clone();
        for ask in said.iter().filter_map(|finding| if let Finding::Ask(ask) = finding { Some(ask) } else { None }) {
            self.answer(ask, view.now);
        }
        self.calls.push(call_made);
        self.state.calls += 1;
    }

    /// Each question is answered in another way.
    fn answer(&mut self, ask: &Ask, now: JobTime) {
        for about in &ask.about {
            if self.state.answered >= ANSWERS_MAX {
                return;
            }
            let exhibit = match self.state.answered % 3 {
                0 => Exhibit::Silence,
                1 => Exhibit::Text("running".into()),
                _ => Exhibit::Unavailable("the conformance suite does not know".into()),
            };
            self.state.answered += 1;
            let Ask { by, tag, what, .. } = ask.clone();
            let evidence = Evidence { by, tag, what, about: about.clone(), exhibit };
            let signal = Signal::Evidence(Arc::new(evidence));
            let answer = Observation { at: now, about: about.clone(), incarnation: None, generation: None, signal };
            self.state.answers.push_back(answer);
        }
    }

    /// A call whose panic is caught. `None`: it panicked, now or before.
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
    fn told(&self) -> String {
        let deadline = self.deadline.map_or("no deadline".to_owned(), |at| format!("deadline {at:?}"));
        format!("{:?} with {deadline}", self.said) // as text: a NaN equals no NaN
    }
}

fn identity(detector: &mut dyn FaultDetector) -> (Name, Name, String) {
    (detector.name(), detector.version(), detector.config())
}
