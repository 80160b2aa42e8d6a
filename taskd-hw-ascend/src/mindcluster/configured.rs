//! Result of reading a job's configuration, and the changes that it makes to a specification.
//!
//! The module only edits data: it reads no source and starts nothing.

use super::decision::{Decided, Forbidden, Wanted};
use super::setting::{Warnings, shown};
use super::value::Asked;
use super::{Key, OperatorRetry, Setting, Warning};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use taskd_core::detect::{self, FaultDetector, FaultDetectorExt, HangDetector, StallDetector};
use taskd_core::job::{BudgetSpec, JobSpec, Name, Permission, Policy, REASON_BYTES_MAX};

/// The recovery settings that result from all sources of a MindCluster job's configuration.
#[derive(Clone, Debug)]
pub struct Configured {
    pub(super) decided: Decided,
    pub(super) wanted: Option<Wanted>,
    /// Reasons why only whole restarts are allowed; empty if process recovery is enabled.
    pub(super) off: Vec<String>,
    pub(super) forbidden: Forbidden,
    pub(super) recoveries: Option<(u32, Setting)>,
    pub(super) operator_retry: Option<OperatorRetry>,
    pub(super) environment: BTreeMap<String, String>,
    pub(super) warnings: Warnings,
}

impl Configured {
    /// Applies the configuration to a job's specification. It sets the permissions of strategies with their reasons,
    /// the recovery budget, the termination grace period, the minimum number of ranks (one, if the job requests elastic
    /// training), and the environment of ranks and services.
    ///
    /// The configuration only withdraws permissions. Values that the specification's policy sets itself are kept: the
    /// permission of a strategy that the policy names (unless a master switch is off), and a budget, grace period or
    /// number of ranks that is not the default.
    ///
    /// Also logs each of the [warnings](Self::warnings) as one line, since the caller is about to start the job.
    pub fn apply(&self, spec: &mut JobSpec) {
        self.warnings().iter().for_each(|warning| tracing::warn!(job = %spec.name, "{warning}"));
        if self.more_warnings() > 0 {
            tracing::warn!(job = %spec.name, "there are {} more warnings about its configuration", self.more_warnings());
        }
        let (usual, policy) = (Policy::default(), &mut spec.policy);
        for (name, reason) in &self.forbidden.switched_off {
            forbid(policy, name, reason);
        }
        for (name, reason) in &self.forbidden.unnamed {
            if !policy.strategies.contains_key(name) {
                forbid(policy, name, reason);
            }
        }
        if let Some((count, _)) = self.recoveries.as_ref().filter(|_| policy.budget == usual.budget) {
            policy.budget = BudgetSpec::fixed(*count);
        }
        let asked = self.wanted.as_ref().map(|wanted| &wanted.named.asked);
        let shrinks =
            asked.is_some_and(|asked| [Asked::ElasticTraining, Asked::Downgrade].iter().any(|a| asked.contains(a)));
        if shrinks && !self.restarts_only() && policy.min_ranks == usual.min_ranks {
            policy.min_ranks = 1; // these strategies request a smaller world
        }
        let is_forced = self.decided.value(Key::FaultScheduling) == Some("force");
        if is_forced && policy.termination_grace_period == usual.termination_grace_period {
            policy.termination_grace_period = Duration::ZERO;
        }
        for program in std::iter::once(&mut spec.worker).chain(spec.services.values_mut()) {
            if !self.environment.is_empty() {
                Arc::make_mut(program).env.extend(self.environment.clone());
            }
        }
    }

    /// Returns a one-line summary of the settings that determine which recovery strategies are allowed.
    #[must_use]
    pub fn summary(&self) -> String {
        if !self.off.is_empty() {
            return format!("whole restarts only: {}", self.off.join("; "));
        }
        match &self.wanted {
            Some(wanted) => {
                let by: Vec<String> = wanted.by.iter().map(ToString::to_string).collect();
                format!("strategies are allowed by name: {}", by.join(", "))
            }
            None => "every strategy is allowed: none is named".into(),
        }
    }

    /// Returns true if whole restarts of the job are the only allowed recovery.
    #[must_use]
    pub fn restarts_only(&self) -> bool {
        !self.off.is_empty()
    }

    /// Returns the effective setting of a key, that is, the value with its source; `None` if no source has the key.
    #[must_use]
    pub fn setting(&self, key: Key) -> Option<&Setting> {
        self.decided.get(key)
    }

    /// Returns the reason why a strategy is not allowed, or `None` if this configuration does not forbid it.
    #[must_use]
    pub fn forbids(&self, strategy: &Name) -> Option<&str> {
        let Forbidden { switched_off, unnamed } = &self.forbidden;
        switched_off.get(strategy).or_else(|| unnamed.get(strategy)).map(String::as_str)
    }

    /// Returns the maximum number of recoveries during the job, if the job's configuration sets one. Launchers can pass
    /// the number to ranks, as torchrun does.
    #[must_use]
    pub fn recoveries(&self) -> Option<u32> {
        self.recoveries.as_ref().map(|(count, _)| *count)
    }

    /// Returns the environment variables that the configuration adds to ranks and services.
    #[must_use]
    pub fn environment(&self) -> &BTreeMap<String, String> {
        &self.environment
    }

    /// Returns the first 100 warnings about the configuration.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        self.warnings.kept()
    }

    /// Returns the number of warnings beyond the first 100.
    #[must_use]
    pub fn more_warnings(&self) -> usize {
        self.warnings.more()
    }

    /// Returns the parameters of HCCL's operator retry, with which HCCL itself repeats failed operators; `None` if that
    /// retry is off.
    #[must_use]
    pub fn operator_retry(&self) -> Option<&OperatorRetry> {
        self.operator_retry.as_ref()
    }

    /// Returns `bound`, a detector's limit for the inactivity of a rank, extended by the longest pauses of HCCL's own
    /// operator retry, so that no rank is blamed during these pauses. When HCCL's retry fails, HCCL reports an error,
    /// and that error starts a recovery.
    #[must_use]
    pub fn patience(&self, bound: Duration) -> Duration {
        bound + self.operator_retry.as_ref().map_or(Duration::ZERO, |retry| retry.pauses)
    }

    /// Returns the [default detectors](detect::defaults), in which the detectors for inactivity (`stall` and `hang`)
    /// also wait for HCCL's own retry.
    #[must_use]
    pub fn detectors(&self) -> Vec<Box<dyn FaultDetector>> {
        let mut detectors = detect::defaults();
        for detector in &mut detectors {
            match detector.name().as_str() {
                "stall" => *detector = StallDetector::after(self.patience(StallDetector::USUAL)).boxed(),
                "hang" => {
                    let patient = HangDetector::default().missing_after(self.patience(HangDetector::USUAL));
                    *detector = patient.boxed();
                }
                _ => {}
            }
        }
        detectors
    }
}

fn forbid(policy: &mut Policy, name: &Name, reason: &str) {
    policy.strategies.insert(name.clone(), Permission::Never);
    let reason = if reason.len() <= REASON_BYTES_MAX { reason.to_owned() } else { shown(reason) };
    policy.reasons.insert(name.clone(), reason);
}
