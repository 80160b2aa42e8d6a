//! The trait [`FaultDetector`], closures as detectors, and small decorators.

use super::{Finding, Findings};
use crate::job::{Domain, JobTime, Name};
use crate::state::View;
use crate::trace::{DecodeError, Observation};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fmt;

/// Finds faults in a stream of observations: what is wrong, where, since when, and with which confidence.
///
/// # Contract
/// - Every method MUST be pure: its effect depends only on its arguments and on the earlier calls. No clock, no I/O, no
///   randomness, no iteration over hash maps. This makes decisions replayable.
/// - `observe` is called once for every observation that passed the kernel's fences against outdated messages, in
///   the kernel's order. It MUST be quick (the whole decision kernel processes a million observations per second)
///   and MUST NOT block.
/// - Deaths and exits of processes, and replies to probes, arrive as observations, like all other input.
/// - The kernel reads `deadline` after every call; only its latest value counts. It calls `expire` at that time or
///   soon after, once all earlier input has been observed. This makes the absence of a signal detectable.
///   `deadline` MUST be cheap and MAY be earlier than needed; `expire` MUST move it forward (otherwise `expire` is
///   called again at once, which the kernel counts and bounds).
/// - A detector that is uncertain MUST state its confidence ([`Suspect::confidence_permille`](super::Suspect)) or
///   request evidence ([`Findings::probe`]) instead of blaming. Before it has enough data it MUST NOT blame.
/// - Every finding MUST carry the detector's own name. The name, the version and the configuration MUST NOT change. A
///   fault's onset MUST NOT lie in the future, a confidence MUST be at most 1000 permille, and a probe MUST name at
///   least one domain and leave time for a reply.
/// - `snapshot` MAY save the detector's state; then `restore` on a new detector MUST produce a state with the same
///   further behaviour. If `restore` refuses a state, it MUST leave the detector unchanged. A detector without a
///   snapshot starts without state after a restart of the supervisor.
/// - A panic is caught: the detector is disabled, and a fault that names the detector is recorded.
///
/// # Example
/// ```
/// # extern crate taskd_kernel as taskd_core;
/// use taskd_core::detect::{Damage, Fault, FaultClass, FaultDetector, Findings, Suspect};
/// use taskd_core::job::Name;
/// use taskd_core::state::View;
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
/// `taskd_core::testing::conformance::fault_detector` (feature `test-util`) checks every clause of this contract.
#[cfg_attr(any(test, feature = "test-util"), mockall::automock)]
pub trait FaultDetector: Send {
    /// Returns the name of the detector, unique among the detectors of a runtime.
    fn name(&self) -> Name;

    /// Returns the version of the detector's implementation. The version is written to the header of the job's log, so
    /// that a replay with another version is recognised as different.
    fn version(&self) -> Name {
        Name::new("1")
    }

    /// Returns the settings that affect the detector's findings, as text. The text is written to the header of the
    /// job's log, so that a replay with other settings is recognised as different.
    fn config(&self) -> String {
        String::new()
    }

    /// Processes one observation, and adds the detector's findings to `out`. `view` is the state of the job.
    fn observe(&mut self, observation: &Observation, view: &View, out: &mut Findings);

    /// Returns the earliest job time at which the decision kernel has to call [`expire`](FaultDetector::expire); `None`
    /// if no call is needed.
    fn deadline(&self) -> Option<JobTime> {
        None
    }

    /// Reacts to the detector's own deadline, which has passed, for example because an expected signal is missing. The
    /// decision kernel calls this method when `view.now` is at or after `deadline`.
    fn expire(&mut self, _view: &View, _out: &mut Findings) {}

    /// Returns the detector's state as bytes, for a later `restore`; `None`: after a restart of the supervisor the
    /// detector starts without state.
    fn snapshot(&self) -> Option<Bytes> {
        None
    }

    /// Restores the detector's state from bytes that [`snapshot`](FaultDetector::snapshot) of the same detector version
    /// returned.
    ///
    /// # Errors
    /// Returns [`DecodeError`] if the bytes are no state of this detector version; the detector then starts without
    /// state.
    fn restore(&mut self, _saved: &[u8]) -> Result<(), DecodeError> {
        Err(DecodeError)
    }
}

#[deny(clippy::missing_trait_methods)] // fails to compile if `delegate` lacks a method of the trait
impl<T: FaultDetector + ?Sized> FaultDetector for Box<T> {
    crate::delegate!(FaultDetector to |this| (**this));
}

impl fmt::Debug for dyn FaultDetector + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultDetector({})", self.name())
    }
}

/// Creates a detector from a name and a closure that is called for each observation.
///
/// ```
/// # extern crate taskd_kernel as taskd_core;
/// use taskd_core::detect::{Damage, Fault, FaultClass, Suspect, detector_fn};
/// use taskd_core::job::{Domain, Name};
/// use taskd_core::trace::Signal;
///
/// let nan_loss = detector_fn("nan-loss", |o, _view, out| {
///     if let Signal::Metric { name, value } = &o.signal && *name == "loss" && value.is_nan() {
///         let suspect = Suspect::certain(Domain::Job, FaultClass::Program, Damage::default());
///         out.blame(Fault::new(Name::new("nan-loss"), o.at, suspect));
///     }
/// });
/// # let _: Box<dyn taskd_core::detect::FaultDetector> = Box::new(nan_loss);
/// ```
pub fn detector_fn<F>(name: impl Into<Name>, observe: F) -> FnDetector<F>
where
    F: FnMut(&Observation, &View, &mut Findings) + Send,
{
    FnDetector { name: name.into(), observe }
}

/// A detector made from a closure (see [`detector_fn`]).
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

/// Methods that wrap any [`FaultDetector`] in another one, for example to filter its input. They are implemented
/// for all detectors; you MUST NOT implement this trait yourself.
pub trait FaultDetectorExt: FaultDetector + Sized {
    /// Wraps this detector: its first `times` - 1 blames of a domain are suppressed, and its later blames of the domain
    /// are passed on. When the detector withdraws a blame (`Findings::clear`), the count of the domain starts again.
    fn debounce(self, times: u32) -> Debounce<Self> {
        Debounce { inner: self, times, seen: BTreeMap::new() }
    }

    /// Wraps this detector so that it receives only the observations for which `keep` returns true.
    fn when<P>(self, keep: P) -> When<Self, P>
    where
        P: FnMut(&Observation) -> bool + Send,
    {
        When { inner: self, keep }
    }

    /// Boxes the detector, to keep detectors of different types in one list.
    fn boxed(self) -> Box<dyn FaultDetector>
    where
        Self: 'static,
    {
        Box::new(self)
    }
}

impl<T: FaultDetector> FaultDetectorExt for T {}

/// Detector that wraps another one and suppresses its short-lived blames (see [`FaultDetectorExt::debounce`]). Both
/// detectors start without state after a restart of the supervisor.
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
                    let seen = self.seen.entry(fault.primary_suspect().domain.clone()).or_default();
                    *seen = seen.saturating_add(1);
                    if *seen < self.times {
                        continue;
                    }
                }
                Finding::Clear(domain, _) => {
                    self.seen.remove(domain);
                }
                Finding::Probe(_) | Finding::Note(..) => {}
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
        None // a snapshot of the inner detector would lack the counts
    }
    fn restore(&mut self, _saved: &[u8]) -> Result<(), DecodeError> {
        Err(DecodeError)
    }
}

/// Detector that wraps another one and passes only selected observations to it (see [`FaultDetectorExt::when`]).
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::fixture::Scene;
    use crate::detect::{Damage, Fault, FaultClass, Suspect};
    use crate::job::JobTime;
    use crate::trace::Signal;

    #[test]
    fn debounce_suppresses_the_first_blames_of_a_domain_and_no_later_one() {
        let blames = |o: &Observation, _: &View, out: &mut Findings| {
            let suspect = Suspect::certain(o.about.clone(), FaultClass::Stall, Damage::default());
            out.blame(Fault::new("test".into(), JobTime::START, suspect));
        };
        let mut detector = detector_fn("test", blames).debounce(2);
        let scene = Scene::of(1);
        let passed = [(); 4].map(|()| {
            let mut found = Findings::default();
            let observation = Observation {
                at: JobTime::START,
                about: Domain::Job,
                incarnation: None,
                generation: None,
                signal: Signal::Heartbeat,
            };
            detector.observe(&observation, &scene.view, &mut found);
            found.drain().count()
        });
        assert_eq!(passed, [0, 1, 1, 1]);
    }
}
