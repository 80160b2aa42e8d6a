//! Other detectors on an old log: what would they have found?
//!
//! The logged kernel is followed step by step. The other detectors receive everything that detectors received at the
//! time, with the job in its state at that time. Their findings have no effect; they are listed beside the published
//! events.
//!
//! Only findings can be compared. If another detector had been active, another recovery would have followed, and the
//! job would have continued differently: with other processes, other steps and other observations. No log contains
//! those. For the same reason, probes that another detector requests are not answered.

use super::replay::{Moment, ReplayFrom, ReplayReport, differences, follow};
use super::{History, JournalError};
use crate::detect::{FaultDetector, Finding, Findings};
use crate::job::{Domain, JobTime, Name, Seq};
use crate::kernel::Effect;
use crate::kernel::text;
use crate::kernel::{Event, Input, Kernel, Plugins};
use crate::state::View;
use crate::trace::{DecodeError, Observation, Signal};
use bytes::Bytes;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Maximum number of findings in [`WhatIf::would`], and of events in [`WhatIf::announced`]. Further ones are counted in
/// [`WhatIf::left_out`].
pub const FINDINGS_MAX: usize = 100_000;

/// Pause of a detector whose deadline stays in the past; the kernel does the same.
const STUBBORN_HOLD: Duration = Duration::from_secs(1);

/// Findings that other fault detectors report for the inputs in a job's log, and the events that the job's original
/// runtime published.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct WhatIf {
    /// Findings that the detectors passed to [`what_if`] report for the inputs in the log.
    pub would: Vec<WhatIfFinding>,
    /// Events that the original runtime of the logged job published, each with the number and the job time of the input
    /// that led to the event.
    pub announced: Vec<(Seq, JobTime, Event)>,
    /// Number of further findings and events, which `would` and `announced` do not contain because each of them has at
    /// most [`FINDINGS_MAX`] entries.
    pub left_out: u64,
    /// Report of the replay of the decision kernel with its original plugins. After the first difference from the log,
    /// the replay ends, and nothing is known about later inputs.
    pub followed: ReplayReport,
}

/// A finding of one of the detectors that were passed to [`what_if`].
#[derive(Clone, Debug, PartialEq)]
pub struct WhatIfFinding {
    /// Number of the input that the decision kernel was processing when the detector reported the finding. If a
    /// deadline of the detector led to the finding: number of the input that the kernel was to process next.
    pub seq: Seq,
    /// Job time of the finding.
    pub now: JobTime,
    /// Name of the detector that reported the finding.
    pub detector: Name,
    /// The finding. `None` if the detector panicked; it was not called again.
    pub finding: Option<Finding>,
}

/// Runs the detectors `others` on everything that detectors received in the latest life in `dir` (the newest chain
/// of supervisor starts, each of which continued from the previous one), and returns their findings. `plugins` must
/// return the plugins with which the log was written: they are needed to follow the state of the job.
///
/// # Errors
/// Returns [`JournalError`] if there is no readable log.
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
    let mut report = |moment: Moment<'_>| match moment {
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
    let mut followed = follow(life, ReplayFrom::Start, &mut watched, &mut report);
    followed.differences = differences(life, &plugins());
    result.followed = followed;
    Ok(result)
}

impl WhatIf {
    fn announce(&mut self, step: &super::Step) {
        for command in step.commands.iter().flatten() {
            if let Effect::Publish(event) = &command.effect {
                match self.announced.len() < FINDINGS_MAX {
                    true => self.announced.push((step.seq, step.now, (**event).clone())),
                    false => self.left_out += 1,
                }
            }
        }
    }

    fn say(&mut self, finding: WhatIfFinding) {
        match self.would.len() < FINDINGS_MAX {
            true => self.would.push(finding),
            false => self.left_out += 1,
        }
    }
}

/// Wrapper of another detector. It runs among the followed kernel's detectors but reports nothing to the kernel.
struct Shadow {
    name: Name,
    /// The wrapped detector; `None` after it has panicked.
    detector: Option<Box<dyn FaultDetector>>,
    /// True while observations from the kernel count; false while the kernel's state is being rebuilt.
    watching: bool,
    not_before: JobTime,
    found: Vec<(JobTime, Option<Finding>)>,
}

impl Shadow {
    /// Handles the detector's deadlines before the next step, and starts to count observations.
    fn begin(&mut self, kernel: &Kernel, now: JobTime) {
        while let Some(due) = self.deadline().filter(|due| *due <= now) {
            let mut view = kernel.view().clone();
            view.now = due.max(view.now);
            self.call(&view, |detector, out| detector.expire(&view, out));
            if self.deadline().is_some_and(|next| next <= due) {
                self.not_before = due + STUBBORN_HOLD;
            }
        }
        self.watching = true;
    }

    /// Adds the detector's findings of this step to `result`.
    fn end(&mut self, kernel: &Kernel, seq: Seq, input: Option<&Input>, result: &mut WhatIf) {
        self.watching = false;
        if let Some(Input::Slept { .. }) = input {
            self.not_before = self.not_before.max(kernel.view().now + kernel.view().spec.policy.suspend_threshold);
        }
        for (now, finding) in self.found.drain(..) {
            result.say(WhatIfFinding { seq, now, detector: self.name.clone(), finding });
        }
    }

    /// Informs the detector about a break in the log in the same way as about a time in which the supervisor was
    /// suspended.
    fn sleep(&mut self, kernel: &Kernel, last: JobTime) {
        let view = kernel.view();
        let nanos = view.now.as_nanos().saturating_sub(last.as_nanos());
        let signal = Signal::SupervisorSlept { nanos };
        let slept = Observation::new(view.now, Domain::Job, signal);
        self.call(view, |detector, out| detector.observe(&slept, view, out));
        self.not_before = self.not_before.max(view.now + view.spec.policy.suspend_threshold);
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

/// A shadow shared by the kernel and the code that drives the shadow.
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

    /// Returns no deadline to the kernel: the code that drives the detector handles its deadlines, so that the kernel
    /// is not affected.
    fn deadline(&self) -> Option<JobTime> {
        None
    }

    fn snapshot(&self) -> Option<Bytes> {
        Some(Bytes::new())
    }

    fn restore(&mut self, _saved: &[u8]) -> Result<(), DecodeError> {
        Ok(())
    }
}

impl fmt::Display for WhatIf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "announced in the log:")?;
        for (_, now, event) in &self.announced {
            if matches!(event, Event::Found { .. } | Event::Decided(_)) {
                writeln!(f, "  {now}  {}", text::event(event))?;
            }
        }
        writeln!(f, "found by the other detectors:")?;
        for WhatIfFinding { now, detector, finding, .. } in &self.would {
            match finding {
                Some(Finding::Blame(fault)) => writeln!(f, "  {now}  {}", text::verdict(fault))?,
                Some(Finding::Clear(domain, class)) => {
                    writeln!(f, "  {now}  {class} of {domain} cleared by {detector}")?
                }
                Some(Finding::Note(about, clue)) => writeln!(f, "  {now}  {about} noted by {detector}: {}", clue.text)?,
                Some(Finding::Probe(ask)) => writeln!(f, "  {now}  {detector} asks for {}", ask.what)?,
                None => writeln!(f, "  {now}  {detector} panicked")?,
            }
        }
        if self.left_out > 0 {
            writeln!(f, "and {} more", self.left_out)?;
        }
        self.followed.fmt(f)
    }
}
