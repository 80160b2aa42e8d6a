//! What a job's configuration comes to, and the changes that it makes to a specification.
//!
//! It starts nothing, and reads nothing.

use super::decision::{Decided, Forbidden, Wanted};
use super::setting::{Warnings, shown};
use super::value::Asked;
use super::{Key, OperatorRetry, Setting, Warning};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use taskd_core::detect::{self, DetectorExt, FaultDetector, HangDetector, StallDetector};
use taskd_core::job::{BudgetSpec, JobSpec, Name, Permission, Policy, REASON_BYTES_MAX};

/// What a job's configuration comes to.
#[derive(Clone, Debug)]
pub struct Configured {
    pub(super) decided: Decided,
    pub(super) wanted: Option<Wanted>,
    /// Why only the whole job is restarted.
    pub(super) off: Vec<String>,
    pub(super) forbidden: Forbidden,
    pub(super) recoveries: Option<(u32, Setting)>,
    pub(super) operator_retry: Option<OperatorRetry>,
    pub(super) environment: BTreeMap<String, String>,
    pub(super) warnings: Warnings,
}

impl Configured {
    /// Puts it into the specification: permissions with their reasons, the recovery budget, the grace of stops, with how few ranks the
    /// job may train on where it asks for elastic training (one), and the environment of ranks and services.
    ///
    /// Permissions are only taken away. What the policy says itself stays: the permission of a strategy that it names (unless a
    /// master switch is off), and a budget, a grace or a number of ranks that is not the default.
    ///
    /// What somebody should look at is logged as well, each of the [warnings](Self::warnings) by itself: who applies a configuration is
    /// about to start its job.
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
        if shrinks && !self.restarts_only() && policy.ranks_min == usual.ranks_min {
            policy.ranks_min = 1; // whoever names it asks for a smaller world
        }
        let is_forced = self.decided.value(Key::FaultScheduling) == Some("force");
        if is_forced && policy.stop_grace == usual.stop_grace {
            policy.stop_grace = Duration::ZERO;
        }
        for program in std::iter::once(&mut spec.worker).chain(spec.services.values_mut()) {
            if !self.environment.is_empty() {
                Arc::make_mut(program).env.extend(self.environment.clone());
            }
        }
    }

    /// What decided which strategies are allowed, in one line.
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

    /// Whether only the whole job is restarted.
    #[must_use]
    pub fn restarts_only(&self) -> bool {
        !self.off.is_empty()
    }

    /// The value of a key that counts, and where it stands.
    #[must_use]
    pub fn setting(&self, key: Key) -> Option<&Setting> {
        self.decided.get(key)
    }

    /// Why a strategy is not allowed; `None`: this configuration takes nothing from it.
    #[must_use]
    pub fn forbids(&self, strategy: &Name) -> Option<&str> {
        let Forbidden { switched_off, unnamed } = &self.forbidden;
        switched_off.get(strategy).or_else(|| unnamed.get(strategy)).map(String::as_str)
    }

    /// How many recoveries the job may have, if it says so: for launchers that tell ranks, as torchrun does.
    #[must_use]
    pub fn recoveries(&self) -> Option<u32> {
        self.recoveries.as_ref().map(|(count, _)| *count)
    }

    /// What ranks find in their environment.
    #[must_use]
    pub fn environment(&self) -> &BTreeMap<String, String> {
        &self.environment
    }

    /// What somebody should look at, the 100 first.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        self.warnings.kept()
    }

    /// How many warnings there are besides.
    #[must_use]
    pub fn more_warnings(&self) -> usize {
        self.warnings.more()
    }

    /// HCCL's own retry of operators, if it is on.
    #[must_use]
    pub fn operator_retry(&self) -> Option<&OperatorRetry> {
        self.operator_retry.as_ref()
    }

    /// A bound of a detector on how long nothing may happen, with the time on top that HCCL may take for its own retry: nobody
    /// is blamed in it. When HCCL gives up it says so, and that starts a recovery.
    #[must_use]
    pub fn patience(&self, bound: Duration) -> Duration {
        bound + self.operator_retry.as_ref().map_or(Duration::ZERO, |retry| retry.pauses)
    }

    /// The [usual detectors](detect::defaults), of which those that blame for standing still wait as long as HCCL's own retry may
    /// take.
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
