//! The contract of a detector, closures as detectors, and small decorators.

use super::{Finding, Findings};
use crate::job::{Domain, JobTime, Name};
use crate::kernel::View;
use crate::trace::{Malformed, Observation};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fmt;

/// Is something wrong, where, since when, and how sure are we?
///
/// # Contract
/// - Every method MUST be pure: what it does depends only on its arguments and on what the detector was told before. No
///   clock, no I/O, no randomness, no iteration over hash maps. That is what makes a decision replayable.
/// - `observe` gets every observation that passed the fences, in the kernel's order, one a call; it MUST be quick (the
///   whole kernel takes a million observations a second) and MUST NOT block.
/// - Deaths, exits and answers to questions arrive as observations like all else.
/// - `deadline` is read after every call: a level, not a timer that is set. At that moment, or soon after, and only when
///   all that arrived before it has been observed, `expire` is called. So silence can be a fault. It MUST be cheap, it
///   MAY be earlier than needed, and `expire` MUST move it on (or it is called again at once, which the kernel counts
///   and bounds).
/// - A detector that is not sure MUST say so ([`Suspect::confidence_permille`](super::Suspect)) or ask for evidence
///   ([`Findings::ask`]) instead of blaming. Before it has seen enough it MUST blame nobody.
/// - What it says MUST carry its own name, which never changes (nor do version and configuration). A fault's onset MUST NOT
///   lie in the future, a confidence MUST be at most 1000 permille, and a question MUST be about somebody and leave time
///   for an answer.
/// - `snapshot` MAY save the detector's state; then `restore` on a fresh detector MUST bring it to a state that goes on
///   in the same way. A state that is refused MUST leave the detector as if nothing had been offered. A detector without a
///   snapshot starts cold after a restart of the supervisor.
/// - A panic is caught: the detector is taken out of service, and that is a fault against it.
///
/// # Example
/// ```
/// use taskd_core::detect::{Damage, Fault, FaultClass, FaultDetector, Findings, Suspect};
/// use taskd_core::job::Name;
/// use taskd_core::kernel::View;
/// use taskd_core::trace::{Observation, Signal};
///
/// /// Blames a device that becomes too hot.
/// struct Hot { limit_c: f64 }
///
/// impl FaultDetector for Hot {
///     fn name(&self) -> Name { Name::new("acme.hot") }
///     fn observe(&mut self, o: &Observation, _view: &View, out: &mut Findings) {
///         let Signal::Metric { name, value } = &o.signal else { return };
///         if *name == "device.temperature_c" && *value > self.limit_c {
///             let suspect = Suspect::certain(o.about.clone(), FaultClass::Device, Damage::default());
///             out.blame(Fault::new(self.name(), o.at, suspect));
///         }
///     }
/// }
/// # let _object_safe: Box<dyn FaultDetector> = Box::new(Hot { limit_c: 95.0 });
/// ```
///
/// # Testing your implementation
/// `taskd_core::testing::conformance::fault_detector` (feature `test-util`) checks this contract clause by clause.
#[cfg_attr(any(test, feature = "test-util"), mockall::automock)]
pub trait FaultDetector: Send {
    /// Unique among the runtime's plugins of this kind.
    fn name(&self) -> Name;

    /// The implementation's version; a replay with another one is told apart.
    fn version(&self) -> Name {
        Name::new("1")
    }

    /// The settings that shape its verdicts, for the log's header; a replay with other settings is told apart.
    fn config(&self) -> String {
        String::new()
    }

    /// Takes one observation.
    fn observe(&mut self, observation: &Observation, view: &View, out: &mut Findings);

    /// When to call [`expire`](FaultDetector::expire) at the earliest; never when `None`.
    fn deadline(&self) -> Option<JobTime> {
        None
    }

    /// The deadline has come: `view.now` is at or after it.
    fn expire(&mut self, _view: &View, _out: &mut Findings) {}

    /// The detector's state, or `None` for one that starts cold.
    fn snapshot(&self) -> Option<Bytes> {
        None
    }

    /// Takes up a state that [`snapshot`](FaultDetector::snapshot) of the same version saved.
    ///
    /// # Errors
    /// [`Malformed`] when the bytes are not such a state; the detector then starts cold.
    fn restore(&mut self, _saved: &[u8]) -> Result<(), Malformed> {
        Err(Malformed)
    }
}

#[deny(clippy::missing_trait_methods)] // a method that `delegate` does not know yet
impl<T: FaultDetector + ?Sized> FaultDetector for Box<T> {
    crate::delegate!(FaultDetector to |this| (**this));
}

impl fmt::Debug for dyn FaultDetector + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultDetector({})", self.name())
    }
}

/// A named closure as a detector.
///
/// ```
/// use taskd_core::detect::{Damage, Fault, FaultClass, Suspect, detector};
/// use taskd_core::job::{Domain, Name};
/// use taskd_core::trace::Signal;
///
/// let nan_loss = detector("nan-loss", |o, _view, out| {
///     if let Signal::Metric { name, value } = &o.signal && *name == "loss" && value.is_nan() {
///         let suspect = Suspect::certain(Domain::Job, FaultClass::Program, Damage::default());
///         out.blame(Fault::new(Name::new("nan-loss"), o.at, suspect));
///     }
/// });
/// # let _: Box<dyn taskd_core::detect::FaultDetector> = Box::new(nan_loss);
/// ```
pub fn detector<F>(name: impl Into<Name>, observe: F) -> FnDetector<F>
where
    F: FnMut(&Observation, &View, &mut Findings) + Send,
{
    FnDetector { name: name.into(), observe }
}

/// A closure under a name (see [`detector`]).
pub struct FnDetector<F> {
    name: Name,
    observe: F,
}

impl<F> fmt::Debug for FnDetector<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FnDetector").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<F> FaultDetector for FnDetector<F>
where
    F: FnMut(&Observation, &View, &mut Findings) + Send,
{
    fn name(&self) -> Name {
        self.name.clone()
    }
    fn observe(&mut self, observation: &Observation, view: &View, out: &mut Findings) {
        (self.observe)(observation, view, out);
    }
}

/// Conveniences over every [`FaultDetector`]. Implemented for all; you MUST NOT implement it yourself.
pub trait DetectorExt: FaultDetector + Sized {
    /// Passes a blame on only when the same domain was blamed `times` times in a row (a clear starts anew).
    fn debounce(self, times: u32) -> Debounce<Self> {
        Debounce { inner: self, times, seen: BTreeMap::new() }
    }

    /// Shows the detector only observations for which `keep` is true.
    fn when<P>(self, keep: P) -> When<Self, P>
    where
        P: FnMut(&Observation) -> bool + Send,
    {
        When { inner: self, keep }
    }

    /// Boxed, to keep detectors of different types in one list.
    fn boxed(self) -> Box<dyn FaultDetector>
    where
        Self: 'static,
    {
        Box::new(self)
    }
}

impl<T: FaultDetector> DetectorExt for T {}

/// Passes on only what lasts (see [`DetectorExt::debounce`]). Starts cold after a restart.
#[derive(Debug)]
pub struct Debounce<D> {
    inner: D,
    times: u32,
    seen: BTreeMap<Domain, u32>,
}

impl<D> Debounce<D> {
    fn pass(&mut self, mut found: Findings, out: &mut Findings) {
        for finding in found.drain() {
            match &finding {
                Finding::Blame(fault) => {
                    let seen = self.seen.entry(fault.prime().domain.clone()).or_default();
                    *seen = seen.saturating_add(1);
                    if *seen < self.times {
                        continue;
                    }
                }
                Finding::Clear(domain, _) => {
                    self.seen.remove(domain);
                }
                Finding::Ask(_) | Finding::Note(..) => {}
            }
            out.push(finding);
        }
    }
}

impl<D: FaultDetector> FaultDetector for Debounce<D> {
    crate::delegate!(FaultDetector to |this| this.inner, except config, observe, expire, snapshot, restore);

    fn config(&self) -> String {
        format!("{} debounce={}", self.inner.config(), self.times)
    }
    fn observe(&mut self, observation: &Observation, view: &View, out: &mut Findings) {
        let mut found = Findings::default();
        self.inner.observe(observation, view, &mut found);
        self.pass(found, out);
    }
    fn expire(&mut self, view: &View, out: &mut Findings) {
        let mut found = Findings::default();
        self.inner.expire(view, &mut found);
        self.pass(found, out);
    }
    fn snapshot(&self) -> Option<Bytes> {
        None // the counts would be missing from it
    }
    fn restore(&mut self, _saved: &[u8]) -> Result<(), Malformed> {
        Err(Malformed)
    }
}

/// Sees only some observations (see [`DetectorExt::when`]).
pub struct When<D, P> {
    inner: D,
    keep: P,
}

impl<D: fmt::Debug, P> fmt::Debug for When<D, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("When").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<D: FaultDetector, P: FnMut(&Observation) -> bool + Send> FaultDetector for When<D, P> {
    crate::delegate!(FaultDetector to |this| this.inner, except observe);

    fn observe(&mut self, observation: &Observation, view: &View, out: &mut Findings) {
        if (self.keep)(observation) {
            self.inner.observe(observation, view, out);
        }
    }
}
