//! The contract of a recovery strategy.

use super::{Incident, PlanExecution, Proposal, RefusalError, RefusalKind, Stage};
use crate::job::{JobSpec, Name};
use crate::state::View;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Proposes a way to recover from an incident, with its cost.
///
/// # Contract
/// - A strategy MUST be pure and stateless: the incident, the plan execution and the view contain all that has
///   happened. It has nothing to save or restore.
/// - `propose` MUST base its decision on what is still healthy ([`Damage`](crate::detect::Damage)), not on the
///   class of a fault. It MUST refuse with a reason when its precondition does not hold. The reason is recorded in
///   the decision.
/// - [`unsupported_reason`](RecoveryStrategy::unsupported_reason) SHOULD report why the strategy can never work for a
///   job, before anything has failed. If it returns a reason for a job, the strategy MUST NOT propose anything for that
///   job; the kernel then does not call `propose`.
/// - A proposal MUST name in `affected_domains` every domain that its actions disturb: the kernel runs no two
///   recoveries whose domains overlap.
/// - New processes MUST get their incarnation from [`View::next_incarnation`]. A new world MUST come from
///   [`World::successor`](crate::job::World::successor), with the same `counted` as the proposal. A rank MUST be
///   started in a world that names the incarnation of its new process.
/// - A strategy that starts ranks but not the services of the job MUST refuse while a service is
///   [missing](View::missing_services).
/// - A process that is to be replaced MUST be stopped by an earlier stage, if it may still run.
/// - A proposal MUST have a stage. Its cost MUST set `ends_job` if and only if a stage ends the job. No stage may
///   need more answers than it has targets.
/// - `advance` is called at the end of each stage, with all answers. It MAY replace the remaining stages, but not
///   endlessly. It MAY also fail the recovery; the kernel then takes the next-cheapest proposal.
/// - The kernel enforces all time limits and draws on the recovery budget; a strategy does neither.
///
/// # Example
/// ```
/// # extern crate taskd_kernel as taskd_core;
/// use std::time::Duration;
/// use taskd_core::job::{Counted, Domain, Name};
/// use taskd_core::state::View;
/// use taskd_core::recover::{Action, Cost, Incident, Proposal, RecoveryStrategy, RefusalError, Stage};
///
/// /// Ends the job as soon as anything is wrong.
/// struct GiveUp;
///
/// impl RecoveryStrategy for GiveUp {
///     fn name(&self) -> Name { Name::new("acme.give-up") }
///     fn propose(&self, incident: &Incident, _view: &View) -> Result<Proposal, RefusalError> {
///         let reason = format!("{} gives up at the first fault", incident.id);
///         let finish = Action::Finish { ok: false, reason: reason.clone() };
///         let stages = vec![Stage::new("finish", Duration::from_secs(1), vec![finish])];
///         Ok(Proposal::new(stages, vec![Domain::Job], Cost::of_the_job(), Counted::No, reason))
///     }
/// }
/// # let _object_safe: Box<dyn RecoveryStrategy> = Box::new(GiveUp);
/// ```
///
/// # Testing your implementation
/// `taskd_core::testing::conformance::recovery_strategy` (feature `test-util`) checks each clause of the contract.
#[cfg_attr(any(test, feature = "test-util"), mockall::automock)]
pub trait RecoveryStrategy: Send + Sync {
    /// Returns the name of the strategy, unique among the runtime's strategies. Policies refer to the strategy by this
    /// name.
    fn name(&self) -> Name;

    /// Returns the version of the strategy's implementation. A replay uses it to detect that another version was in use
    /// when the job's log was written.
    fn version(&self) -> Name {
        Name::new("1")
    }

    /// Returns the settings that influence the strategy's proposals, as text for the header of the job's log.
    fn config(&self) -> String {
        String::new()
    }

    /// Returns the reason why this strategy can never work for a job, whatever fails, and what to do about it.
    ///
    /// The reason is one sentence. It appears in the line that the runtime logs at its start, in
    /// [`JobStatus`](crate::kernel::JobStatus), and in every decision made without this strategy.
    fn unsupported_reason(&self, _job: &JobProfile) -> Option<String> {
        None
    }

    /// Proposes a way to recover from the incident.
    ///
    /// # Errors
    /// Returns [`RefusalError`] if this strategy does not help in this incident, with the reason in a few words. A
    /// `String` or a `&str` converts to the error with `?` and `into`.
    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, RefusalError>;

    /// Decides how to continue a recovery of this strategy after one of its stages has succeeded.
    fn advance(&self, _run: &PlanExecution, _view: &View) -> Advance {
        Advance::Continue
    }
}

/// The facts known about a job before any of its ranks has reported anything.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobProfile {
    /// Specification of the job.
    pub spec: Arc<JobSpec>,
    /// Number of hosts of the job; `None` until it is known. The number may change, because hosts can join later: the
    /// profile is built again for each decision.
    pub hosts: Option<usize>,
    /// Name of the rendezvous service that the launcher provides, if it is known to provide one.
    ///
    /// See `LauncherInfo::rendezvous_service`.
    pub rendezvous_service: Option<Name>,
}

impl JobProfile {
    /// Creates a profile from the job specification alone.
    #[must_use]
    pub const fn of(spec: Arc<JobSpec>) -> JobProfile {
        JobProfile { spec, hosts: None, rendezvous_service: None }
    }

    /// Creates the profile of the job in the view, with all that is known by now.
    #[must_use]
    pub fn of_view(view: &View) -> JobProfile {
        let hosts = Some(view.nodes.len()).filter(|hosts| *hosts > 0);
        JobProfile { spec: Arc::clone(&view.spec), hosts, rendezvous_service: view.rendezvous_service.clone() }
    }

    /// Sets the number of hosts of the job.
    #[must_use]
    pub const fn with_hosts(mut self, hosts: usize) -> JobProfile {
        self.hosts = Some(hosts);
        self
    }

    /// Sets the name of the rendezvous service that the launcher provides, if it is known to provide one.
    #[must_use]
    pub fn with_rendezvous_service(mut self, service: Option<Name>) -> JobProfile {
        self.rendezvous_service = service;
        self
    }
}

/// How a recovery continues after one of its stages.
#[derive(Clone, Debug, PartialEq)]
pub enum Advance {
    /// Continue with the next stage.
    Continue,
    /// Replace the remaining stages of the recovery with these.
    ReplaceRest(Vec<Stage>),
    /// End the recovery as failed, for this reason.
    Fail(String),
    /// End the recovery as failed after its effects were undone: the job trains as it did before. If an operator
    /// requested the recovery, the request is reported as not granted, for this reason.
    RolledBack(String),
}

/// Returns `Ok` if the strategy can work at all for the job in the view.
///
/// # Errors
/// Returns the strategy's own [`unsupported_reason`](RecoveryStrategy::unsupported_reason) if it has one, so that a
/// decision gives the same reason as the log line of the job's start.
#[doc(hidden)]
pub fn possible(strategy: &dyn RecoveryStrategy, view: &View) -> Result<(), RefusalError> {
    let reason = strategy.unsupported_reason(&JobProfile::of_view(view));
    reason.map_or(Ok(()), |reason| Err(RefusalError::new(RefusalKind::Unsupported, reason)))
}

/// Returns the reason for each strategy that can never work for a job, by name of the strategy. The runtime's log
/// line at start, the job status and decisions all take their text from here.
#[doc(hidden)]
pub fn cannot(strategies: &[Box<dyn RecoveryStrategy>], job: &JobProfile) -> BTreeMap<Name, String> {
    strategies.iter().filter_map(|strategy| Some((strategy.name(), strategy.unsupported_reason(job)?))).collect()
}

#[deny(clippy::missing_trait_methods)] // makes the compiler report a method that `delegate` does not forward yet
impl<T: RecoveryStrategy + ?Sized> RecoveryStrategy for Box<T> {
    crate::delegate!(RecoveryStrategy to |this| (**this));
}

#[deny(clippy::missing_trait_methods)]
impl<T: RecoveryStrategy + ?Sized> RecoveryStrategy for Arc<T> {
    crate::delegate!(RecoveryStrategy to |this| (**this));
}

impl fmt::Debug for dyn RecoveryStrategy + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecoveryStrategy({})", self.name())
    }
}

/// Methods that wrap any [`RecoveryStrategy`] in another one. They are implemented for all strategies; you MUST NOT
/// implement this trait yourself.
pub trait RecoveryStrategyExt: RecoveryStrategy + Sized {
    /// Wraps the strategy so that it refuses once it has failed `tries` times within one incident.
    fn limit(self, tries: u32) -> Limit<Self> {
        Limit { inner: self, tries }
    }

    /// Boxes the strategy, to keep strategies of different types in one list.
    fn boxed(self) -> Box<dyn RecoveryStrategy>
    where
        Self: 'static,
    {
        Box::new(self)
    }
}

impl<T: RecoveryStrategy> RecoveryStrategyExt for T {}

/// Strategy that wraps another one and refuses an incident in which the wrapped strategy has failed a given number of
/// times (see [`RecoveryStrategyExt::limit`]).
#[derive(Debug)]
pub struct Limit<S> {
    inner: S,
    tries: u32,
}

impl<S: RecoveryStrategy> RecoveryStrategy for Limit<S> {
    crate::delegate!(RecoveryStrategy to |this| this.inner, except config, propose);

    fn config(&self) -> String {
        format!("{} limit={}", self.inner.config(), self.tries)
    }
    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, RefusalError> {
        let name = self.name();
        let failed = incident.attempts.iter().filter(|(strategy, _)| *strategy == name).count();
        if failed >= self.tries as usize {
            let reason = format!("failed {failed} times in this incident, limit {}", self.tries);
            return Err(RefusalError::new(RefusalKind::TriedEnough, reason));
        }
        self.inner.propose(incident, view)
    }
}
