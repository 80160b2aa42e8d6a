//! The contract of a recovery strategy.

use super::{Incident, Proposal, Run, Stage};
use crate::job::{JobSpec, Name};
use crate::kernel::View;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// What would mend it, at what cost?
///
/// # Contract
/// - A strategy MUST be pure and without state: what happened so far stands in incident, run and view. Nothing needs to
///   be saved or restored.
/// - `propose` MUST decide from what is still sound ([`Damage`](crate::detect::Damage)), not from a fault's class, and
///   MUST refuse with a reason when its precondition does not hold. The reason stands in the decision.
/// - What can never work for a job SHOULD be said [before](RecoveryStrategy::cannot) anything has failed. Of a job for which it says
///   so a strategy MUST NOT propose anything; the kernel does not ask it then.
/// - A proposal MUST name in `touches` every domain that its actions disturb: the kernel runs no two recoveries whose
///   domains overlap.
/// - New processes MUST get their incarnation from [`View::next_incarnation`], and a new world comes from
///   [`World::successor`](crate::job::World::successor) only, counted as the proposal is. A rank MUST be started into a
///   world that names this incarnation of it.
/// - A strategy that starts ranks and not the job's services MUST refuse while one of these is
///   [missing](View::missing_services).
/// - A process that is to be started in the place of another MUST be stopped by an earlier stage, if it may still run.
/// - A proposal MUST have a stage, its cost MUST say that the job ends exactly if a stage ends it, and no stage may need
///   more answers than it asks for.
/// - `advance` is called at each stage's end, with all answers. It MAY put other stages in the place of the rest, but
///   not for ever, or give up; then the kernel looks for the next dearer proposal.
/// - The kernel watches every time limit and counts every withdrawal from the budget; a strategy does neither.
///
/// # Example
/// ```
/// use std::time::Duration;
/// use taskd_core::job::{Counted, Domain, Name};
/// use taskd_core::kernel::View;
/// use taskd_core::recover::{Action, Cost, Incident, Proposal, RecoveryStrategy, Stage};
///
/// /// Ends the job as soon as anything is wrong.
/// struct GiveUp;
///
/// impl RecoveryStrategy for GiveUp {
///     fn name(&self) -> Name { Name::new("acme.give-up") }
///     fn propose(&self, incident: &Incident, _view: &View) -> Result<Proposal, String> {
///         let reason = format!("{} gives up at the first fault", incident.id);
///         let finish = Action::Finish { ok: false, reason: reason.clone() };
///         let stages = vec![Stage::new("finish", Duration::from_secs(1), vec![finish])];
///         let cost = Cost { ends_job: true, lost_work: Duration::ZERO, downtime: Duration::ZERO, nodes_removed: 0 };
///         Ok(Proposal { stages, touches: vec![Domain::Job], cost, counted: Counted::No, reason })
///     }
/// }
/// # let _object_safe: Box<dyn RecoveryStrategy> = Box::new(GiveUp);
/// ```
///
/// # Testing your implementation
/// `taskd_core::testing::conformance::recovery_strategy` (feature `test-util`) checks this contract clause by clause.
#[cfg_attr(any(test, feature = "test-util"), mockall::automock)]
pub trait RecoveryStrategy: Send + Sync {
    /// Unique among the runtime's plugins of this kind; policies name it.
    fn name(&self) -> Name;

    /// The implementation's version; a replay with another one is told apart.
    fn version(&self) -> Name {
        Name::new("1")
    }

    /// The settings that shape its proposals, for the log's header.
    fn config(&self) -> String {
        String::new()
    }

    /// Why this strategy can never work for such a job, whatever fails, and what to do about it: in one sentence. It stands in the
    /// line that the runtime starts with, in [`JobStatus`](crate::kernel::JobStatus), and in every decision that does without it.
    fn cannot(&self, _job: &Beforehand) -> Option<String> {
        None
    }

    /// A way to mend the incident.
    ///
    /// # Errors
    /// The reason why this strategy does not help here, in a few words.
    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, String>;

    /// A stage has ended well: how to go on.
    fn advance(&self, _run: &Run, _view: &View) -> Next {
        Next::AsProposed
    }
}

/// What is known of a job before any of its ranks has said anything.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Beforehand {
    /// What the user asks for.
    pub spec: Arc<JobSpec>,
    /// How many hosts the job has, once they are known. Others may come later: it is asked anew for each decision.
    pub hosts: Option<usize>,
    /// The service at which the launcher has the ranks meet anew, where it knows of one
    /// ([`LauncherInfo::meets_at`](crate::launch::LauncherInfo::meets_at)).
    pub meets_at: Option<Name>,
}

impl Beforehand {
    /// A job of which nothing else is known.
    #[must_use]
    pub const fn of(spec: Arc<JobSpec>) -> Beforehand {
        Beforehand { spec, hosts: None, meets_at: None }
    }

    /// The job that the view is of, with what is known of it by now.
    #[must_use]
    pub fn of_view(view: &View) -> Beforehand {
        let hosts = Some(view.nodes.len()).filter(|hosts| *hosts > 0);
        Beforehand { spec: Arc::clone(&view.spec), hosts, meets_at: view.meets_at.clone() }
    }

    /// With so many hosts.
    #[must_use]
    pub const fn with_hosts(mut self, hosts: usize) -> Beforehand {
        self.hosts = Some(hosts);
        self
    }

    /// With a launcher that has ranks meet anew at this service, if it is known to have one.
    #[must_use]
    pub fn meeting_at(mut self, service: Option<Name>) -> Beforehand {
        self.meets_at = service;
        self
    }
}

/// How a run goes on after a stage.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// With the next stage.
    AsProposed,
    /// With these stages in the place of the rest.
    Instead(Vec<Stage>),
    /// Not at all, for this reason.
    GiveUp(String),
    /// Not at all, and the job trains as it did before: what was begun is undone. An operator's wish is then not granted.
    Undone(String),
}

/// Whether a strategy can work at all for the job that the view is of.
///
/// # Errors
/// Why it never can: as it says of itself, so that a decision gives the reason that was told when the job started.
pub(crate) fn possible(strategy: &dyn RecoveryStrategy, view: &View) -> Result<(), String> {
    strategy.cannot(&Beforehand::of_view(view)).map_or(Ok(()), Err)
}

/// Why which strategies can never work for a job, by their names: the one source of what the start line, the status and decisions say.
pub(crate) fn cannot(strategies: &[Box<dyn RecoveryStrategy>], job: &Beforehand) -> BTreeMap<Name, String> {
    strategies.iter().filter_map(|strategy| Some((strategy.name(), strategy.cannot(job)?))).collect()
}

#[deny(clippy::missing_trait_methods)] // a method that `delegate` does not know yet
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

/// Conveniences over every [`RecoveryStrategy`]. Implemented for all; you MUST NOT implement it yourself.
pub trait StrategyExt: RecoveryStrategy + Sized {
    /// Refuses once the strategy has failed `tries` times within one incident.
    fn limit(self, tries: u32) -> Limited<Self> {
        Limited { inner: self, tries }
    }

    /// Boxed, to keep strategies of different types in one list.
    fn boxed(self) -> Box<dyn RecoveryStrategy>
    where
        Self: 'static,
    {
        Box::new(self)
    }
}

impl<T: RecoveryStrategy> StrategyExt for T {}

/// Refuses after so many failures (see [`StrategyExt::limit`]).
#[derive(Debug)]
pub struct Limited<S> {
    inner: S,
    tries: u32,
}

impl<S: RecoveryStrategy> RecoveryStrategy for Limited<S> {
    crate::delegate!(RecoveryStrategy to |this| this.inner, except config, propose);

    fn config(&self) -> String {
        format!("{} limit={}", self.inner.config(), self.tries)
    }
    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, String> {
        let name = self.name();
        let failed = incident.attempts.iter().filter(|(strategy, _)| *strategy == name).count();
        if failed >= self.tries as usize {
            return Err(format!("failed {failed} times in this incident, limit {}", self.tries));
        }
        self.inner.propose(incident, view)
    }
}
