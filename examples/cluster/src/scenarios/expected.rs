//! A fault that was injected, and what must follow.

use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeSet;
use std::time::Duration;
use taskd_core::detect::FaultClass;
use taskd_core::job::{Domain, Name, NodeId, Rank, Role};
use taskd_examples::recover::now;

/// A moment by two clocks.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Seconds of the monotonic clock.
    pub monotonic: f64,
    /// Seconds since 1970.
    pub unix: f64,
}

impl Moment {
    /// Returns the present moment.
    #[must_use]
    pub fn now() -> Moment {
        let unix = clock_gettime(ClockId::Realtime);
        Moment { monotonic: now(), unix: unix.tv_sec as f64 + unix.tv_nsec as f64 / 1e9 }
    }

    /// Returns the seconds since this moment.
    #[must_use]
    pub fn elapsed(&self) -> f64 {
        now() - self.monotonic
    }
}

/// A fault that was injected, and what must follow.
#[derive(Debug)]
pub struct Injected {
    /// What was injected, in words.
    pub what: String,
    /// When.
    pub at: Moment,
    /// What must follow.
    pub expected: Expected,
    /// Host that must have stopped its ranks within the lease and the time to stop.
    pub fenced: Option<String>,
    /// Words that the evidence of the main incident must contain, if any.
    pub evidence: Option<String>,
    /// Further incidents that must be reported, because the scenario caused them.
    pub also: Vec<(FaultClass, Domain)>,
    /// Ranks that the scenario has given new processes by these further incidents.
    pub replaced: BTreeSet<u32>,
    /// Time at which the observation of the fault ended, in seconds of the monotonic clock; `None`: the end of the run.
    pub until: Option<f64>,
    /// Figures that the scenario itself has measured.
    pub figures: Figures,
    /// Deviations that the scenario itself has found, in sentences.
    pub problems: Vec<String>,
    /// What a reader should know, in sentences.
    pub notes: Vec<String>,
}

/// Figures in seconds; see the fields of [`Row`](super::Row).
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// From the fault to the next manager.
    pub manager_s: Option<f64>,
    /// From the return of a host to the whole job.
    pub grown_s: Option<f64>,
    /// Longest pause of training while the host was taken in.
    pub paused_s: Option<f64>,
    /// From the fault to the end of the last rank's process.
    pub fenced_s: Option<f64>,
}

/// What must follow a fault.
#[derive(Debug)]
pub enum Expected {
    /// The job blames this, and these ranks continue in new processes.
    Recovery {
        /// Class of the only incident.
        class: FaultClass,
        /// What it blames.
        domain: Domain,
        /// The ranks that get a new process.
        ranks: BTreeSet<u32>,
    },
    /// The job blames this host, and trains on without its ranks.
    Smaller {
        /// The host.
        host: String,
        /// Its ranks.
        ranks: BTreeSet<u32>,
    },
    /// Training continues in the same processes. An incident about this host is allowed, if one is named.
    Undisturbed {
        /// The host.
        host: Option<String>,
        /// Time for which the job is observed after the fault.
        observe: Duration,
    },
    /// No rank trains any more: no majority is left that could confirm a manager.
    Stopped {
        /// When the majority was back: all ranks must train again, in new processes. `None`: it does not come back.
        then: Option<Moment>,
    },
}

impl Injected {
    /// Returns a fault that happened at `at`, with what must follow.
    #[must_use]
    pub fn new(what: impl Into<String>, at: Moment, expected: Expected) -> Injected {
        Injected {
            what: what.into(),
            at,
            expected,
            fenced: None,
            evidence: None,
            also: Vec::new(),
            replaced: BTreeSet::new(),
            until: None,
            figures: Figures::default(),
            problems: Vec::new(),
            notes: Vec::new(),
        }
    }
}

impl Expected {
    /// Returns the ranks that do not keep their processes.
    #[must_use]
    pub fn ranks(&self) -> BTreeSet<u32> {
        match self {
            Expected::Recovery { ranks, .. } | Expected::Smaller { ranks, .. } => ranks.clone(),
            Expected::Undisturbed { .. } | Expected::Stopped { .. } => BTreeSet::new(),
        }
    }
}

/// Returns a host as incidents name it.
pub(super) fn host_named(host: &str) -> Domain {
    Domain::Node(NodeId(Name::from(host.to_owned())))
}

/// Returns a rank as incidents name it.
pub(super) fn rank_named(rank: u32) -> Domain {
    Domain::Process(Role::Rank(Rank(rank)))
}
