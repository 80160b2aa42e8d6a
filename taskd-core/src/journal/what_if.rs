//! Other detectors over an old log: what would they have found?
//!
//! It follows the logged kernel step by step and shows the other detectors everything that a detector was shown then, in
//! the job as it stood. What they find goes nowhere: it is written down beside what was announced.
//!
//! Only verdicts can be compared. Had another detector been in force, another recovery would have followed, and from then
//! on the job would have been another one: other processes, other steps, other observations. No log has those. For the
//! same reason a question that another detector asks gets no answer here.

use super::replay::{Moment, ReplayFrom, ReplayReport, differences, follow};
use super::{History, JournalError, text};
use crate::detect::{FaultDetector, Finding, Findings};
use crate::job::{Domain, JobTime, Name, Seq};
use crate::kernel::{Event, Input, Kernel, Plugins, View};
use crate::recover::Action;
use crate::trace::{Malformed, Observation, Signal};
use bytes::Bytes;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most findings, and most events, that are kept; the rest is counted.
pub const FINDINGS_MAX: usize = 100_000;

/// How long a detector is left alone whose deadline stays in the past, as the kernel does.
const STUBBORN_HOLD: Duration = Duration::from_secs(1);

/// What other detectors would have found, beside what was announced.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct WhatIf {
    /// What the other detectors found.
    pub would: Vec<Said>,
    /// What was announced then.
    pub announced: Vec<(Seq, JobTime, Event)>,
    /// Findings and events that were left out at [`FINDINGS_MAX`].
    pub left_out: u64,
    /// How far the logged kernel could be followed. Behind a first difference nothing is known.
    pub followed: ReplayReport,
}

/// Something that another detector said.
#[derive(Clone, Debug, PartialEq)]
pub struct Said {
    /// While the kernel took this input, or before it at a deadline of the detector's own.
    pub seq: Seq,
    /// When.
    pub now: JobTime,
    /// Which detector.
    pub detector: Name,
    /// What. `None`: it panicked, and was not called again.
    pub finding: Option<Finding>,
}

/// Shows `others` everything that detectors were shown in the latest life in `dir`. `plugins` must be those with which
/// the log was written: they are needed to follow how the job stood.
///
/// # Errors
/// [`JournalError`] when there is no log that can be read.
pub fn what_if(
    dir: &Path,
    others: Vec<Box<dyn FaultDetector>>,
    mut plugins: impl FnMut() -> Plugins,
) -> Result<WhatIf, JournalError> {
    let history = History::open(dir)?;
    let life = history.latest_in(dir)?;
    let shadows: Vec<Shared> = others.into_iter().map(Shared::new).collect();
    let mut watched = || {
        let mut plugins = plugins();
        plugins.detectors.extend(shadows.iter().map(|s| Box::new(s.clone()) as Box<dyn FaultDetector>));
        plugins
    };
    let mut result = WhatIf::default();
    let mut last = None;
    let mut tell = |moment: Moment<'_>| match moment {
        Moment::Before(kernel, step) => {
            shadows.iter().for_each(|s| s.lock().begin(kernel, step.now));
        }
        Moment::After(kernel, step) => {
            last = Some(step.now);
            shadows.iter().for_each(|s| s.lock().end(kernel, step.seq, step.input.as_ref(), &mut result));
            result.announce(step);
        }
        Moment::Resumed(kernel) => {
            if let Some(last) = last {
                shadows.iter().for_each(|s| s.lock().sleep(kernel, last));
            }
        }
    };
    let mut followed = follow(life, ReplayFrom::Start, &mut watched, &mut tell);
    followed.differences = differences(life, &plugins());
    result.followed = followed;
    Ok(result)
}

impl WhatIf {
    fn announce(&mut self, step: &super::Step) {
        for command in step.commands.iter().flatten() {
            if let Action::Announce(event) = &command.action {
                match self.announced.len() < FINDINGS_MAX {
                    true => self.announced.push((step.seq, step.now, (**event).clone())),
                    false => self.left_out += 1,
                }
            }
        }
    }

    fn say(&mut self, said: Said) {
        match self.would.len() < FINDINGS_MAX {
            true => self.would.push(said),
            false => self.left_out += 1,
        }
    }
}

/// Another detector, which sits among those of the followed kernel and tells it nothing.
struct Shadow {
    name: Name,
    /// `None` once it has panicked.
    detector: Option<Box<dyn FaultDetector>>,
    /// Whether what the kernel shows counts: not while a state is being rebuilt.
    watching: bool,
    not_before: JobTime,
    found: Vec<(JobTime, Option<Finding>)>,
}

impl Shadow {
    /// The step is about to be taken: first come the deadlines before it.
    fn begin(&mut self, kernel: &Kernel, now: JobTime) {
        while let Some(due) = self.deadline().filter(|due| *due <= now) {
            let view = View { now: due.max(kernel.view().now), ..kernel.view().clone() };
            self.call(&view, |detector, out| detector.expire(&view, out));
            if self.deadline().is_some_and(|next| next <= due) {
                self.not_before = due + STUBBORN_HOLD;
            }
        }
        self.watching = true;
    }

    /// The step has been taken.
    fn end(&mut self, kernel: &Kernel, seq: Seq, input: Option<&Input>, result: &mut WhatIf) {
        self.watching = false;
        if let Some(Input::Slept { .. }) = input {
            self.not_before = self.not_before.max(kernel.view().now + kernel.view().spec.policy.slept_over);
        }
        for (now, finding) in self.found.drain(..) {
            result.say(Said { seq, now, detector: self.name.clone(), finding });
        }
    }

    /// A part of the log is missing: to a detector that is as if nobody had watched for that time.
    fn sleep(&mut self, kernel: &Kernel, last: JobTime) {
        let view = kernel.view();
        let nanos = view.now.as_nanos().saturating_sub(last.as_nanos());
        let signal = Signal::SupervisorSlept { nanos };
        let slept = Observation { at: view.now, about: Domain::Job, incarnation: None, generation: None, signal };
        self.call(view, |detector, out| detector.observe(&slept, view, out));
        self.not_before = self.not_before.max(view.now + view.spec.policy.slept_over);
    }

    fn deadline(&self) -> Option<JobTime> {
        self.detector.as_ref()?.deadline().map(|at| at.max(self.not_before))
    }

    fn call(&mut self, view: &View, call: impl FnOnce(&mut dyn FaultDetector, &mut Findings)) {
        let Some(detector) = &mut self.detector else { return };
        let mut out = Findings::default();
        let whole = catch_unwind(AssertUnwindSafe(|| call(&mut **detector, &mut out))).is_ok();
        self.found.extend(out.drain().map(|finding| (view.now, Some(finding))));
        if !whole {
            self.detector = None;
            self.found.push((view.now, None));
        }
    }
}

/// A shadow that both the kernel and the one who drives it hold.
#[derive(Clone)]
struct Shared(Arc<Mutex<Shadow>>);

impl Shared {
    fn new(detector: Box<dyn FaultDetector>) -> Shared {
        Shared(Arc::new(Mutex::new(Shadow {
            name: detector.name(),
            detector: Some(detector),
            watching: false,
            not_before: JobTime::START,
            found: Vec::new(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Shadow> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FaultDetector for Shared {
    fn name(&self) -> Name {
        format!("what-if-{}", self.lock().name).into()
    }

    fn observe(&mut self, observation: &Observation, view: &View, _out: &mut Findings) {
        let mut shadow = self.lock();
        if shadow.watching {
            shadow.call(view, |detector, out| detector.observe(observation, view, out));
        }
    }

    /// Its deadlines are kept by the one who drives it: the kernel is not to notice that it is there.
    fn deadline(&self) -> Option<JobTime> {
        None
    }

    fn snapshot(&self) -> Option<Bytes> {
        Some(Bytes::new())
    }

    fn restore(&mut self, _saved: &[u8]) -> Result<(), Malformed> {
        Ok(())
    }
}

impl fmt::Display for WhatIf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "announced then:")?;
        for (_, now, event) in &self.announced {
            if matches!(event, Event::Found { .. } | Event::Decided(_)) {
                writeln!(f, "  {now}  {}", text::event(event))?;
            }
        }
        writeln!(f, "found by the others:")?;
        for Said { now, detector, finding, .. } in &self.would {
            match finding {
                Some(Finding::Blame(fault)) => writeln!(f, "  {now}  {}", text::verdict(fault))?,
                Some(Finding::Clear(domain, class)) => {
                    writeln!(f, "  {now}  {class} of {domain} cleared by {detector}")?
                }
                Some(Finding::Note(about, clue)) => writeln!(f, "  {now}  {about} noted by {detector}: {}", clue.text)?,
                Some(Finding::Ask(ask)) => writeln!(f, "  {now}  {detector} asks for {}", ask.what)?,
                None => writeln!(f, "  {now}  {detector} panicked")?,
            }
        }
        if self.left_out > 0 {
            writeln!(f, "and {} more", self.left_out)?;
        }
        self.followed.fmt(f)
    }
}
