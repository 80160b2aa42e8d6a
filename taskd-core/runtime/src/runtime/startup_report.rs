//! Log lines at the start of a job: usable strategies, and how each kind of loss is covered.
//!
//! The report does not influence decisions: a decision asks each strategy itself.

use crate::job::{Mode, Name};
use crate::launch::LinkStatus;
use crate::recover::{JobProfile, RecoveryStrategy, cannot, coverage, unproven};
use crate::state::View;
use std::collections::{BTreeMap, BTreeSet};

/// Most different limitations of ranks that are reported.
const LOGGED_MAX: usize = 64;

/// A job at its start, with what has been reported about it so far.
#[derive(Debug)]
pub(super) struct Outset {
    job: JobProfile,
    /// Reasons why strategies cannot work for this job, by strategy name.
    cannot: BTreeMap<Name, String>,
    /// Limitations of ranks that have been reported already.
    logged: BTreeSet<String>,
    /// The newest step for which all ranks have reported checksums, and true if these prove a replica of each rank.
    proven: Option<(u64, bool)>,
    is_logged: bool,
}

impl Outset {
    /// Reports what is known before the launcher has been asked for its hosts.
    pub(super) fn new(strategies: &[Box<dyn RecoveryStrategy>], job: JobProfile) -> Outset {
        let (spec, cannot) = (&job.spec, cannot(strategies, &job));
        let names: Vec<Name> = strategies.iter().map(|strategy| strategy.name()).collect();
        let line = spec.policy.permissions(&names, &cannot);
        tracing::info!(job = %spec.name, ranks = spec.ranks, "the runtime starts; {line}");
        Outset { is_logged: spec.policy.mode == Mode::DryRun, cannot, job, logged: BTreeSet::new(), proven: None }
    }

    /// Reports the recoveries in which a rank cannot take part. Reports each limitation once, even if several ranks
    /// have it, and when the rank announces it rather than after a failure.
    pub(super) fn log_link(&mut self, status: &LinkStatus) {
        self.news_of(status).iter().for_each(|line| tracing::warn!("{line}"));
    }

    fn news_of(&mut self, status: &LinkStatus) -> Vec<String> {
        let LinkStatus { proc, link: Some(linked), .. } = status else { return Vec::new() };
        let cannot = linked.unsupported_reason.iter().map(|why| {
            let message = format!("{proc} cannot be kept in a recovery, and all ranks restart when one is lost: {why}");
            (why.clone(), message)
        });
        let names = Some(linked.sharded.join(", ")).filter(|names| !names.is_empty());
        let sharded = names.into_iter().map(|names| {
            let message =
                format!("no rank has a copy of what {proc} holds of {names}: all ranks restart when one is lost");
            (names, message)
        });
        let mut is_new = |what: String| self.logged.len() < LOGGED_MAX && self.logged.insert(what);
        cannot.chain(sharded).filter_map(|(what, message)| is_new(what).then_some(message)).collect()
    }

    /// Reports if each rank has a replica to recover from. Reports once all ranks have sent checksums of their state,
    /// and again when the result changes.
    pub(super) fn look_at_replicas(&mut self, view: &View) {
        match self.news_of_replicas(view) {
            Some(Ok(line)) => tracing::info!("{line}"),
            Some(Err(line)) => tracing::warn!("{line}"),
            None => {}
        }
    }

    fn news_of_replicas(&mut self, view: &View) -> Option<Result<String, String>> {
        let step = view.replicas.complete_round(view.world.members().keys().copied())?;
        if view.world.size() < 2 || self.proven.is_some_and(|(known, _)| known == step) {
            return None;
        }
        let why = unproven(view);
        let was = self.proven.replace((step, why.is_none())).map(|(_, proven)| proven);
        if was == Some(why.is_none()) {
            return None;
        }
        Some(match why {
            None => Ok(format!(
                "every rank has a proven replica: checksums of parameters and optimizer state are equal at step {step}"
            )),
            Some(why) => {
                Err(format!("the state of a lost rank cannot be copied from another, all ranks restart instead: {why}"))
            }
        })
    }

    /// Reports the rest once, when the launcher has listed its hosts.
    pub(super) fn hosts_are_known(&mut self, strategies: &[Box<dyn RecoveryStrategy>], hosts: usize) {
        if std::mem::replace(&mut self.is_logged, true) {
            return;
        }
        self.job.hosts = (hosts > 0).then_some(hosts);
        let now = cannot(strategies, &self.job);
        for (name, why) in now.iter().filter(|(name, _)| !self.cannot.contains_key(*name)) {
            tracing::info!("{name} cannot work for this job with its present hosts ({hosts}): {why}");
        }
        let covered: Vec<String> = coverage(strategies, &self.job).iter().map(ToString::to_string).collect();
        tracing::info!(
            "when these are lost, a program with a step loop (taskd.steps) continues from: {}",
            covered.join("; ")
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Generation, JobSpec, ProcId, WorkerSpec};
    use crate::launch::{ControlLink, LoopPosition};
    use std::sync::Arc;

    #[test]
    fn a_limitation_shared_by_ranks_is_reported_once() {
        let spec = Arc::new(JobSpec::new("job", 4, WorkerSpec::new(["train"])));
        let mut outset = Outset::new(&[], JobProfile::of(spec));
        let mut news = |rank, cannot: Option<&str>, sharded: &[&str]| {
            let linked = ControlLink::new(Generation(1), "torch", LoopPosition::InLoop)
                .with_capabilities([].into())
                .with_unsupported_reason(cannot.map(str::to_owned))
                .with_sharded(sharded.iter().map(ToString::to_string).collect());
            outset.news_of(&LinkStatus::new(ProcId::rank(rank, 1), Some(linked)))
        };
        assert_eq!(news(0, None, &[]), [] as [&str; 0]);
        let message = "rank 1#1 cannot be kept in a recovery, and all ranks restart when one is lost: it is in pieces";
        assert_eq!(news(1, Some("it is in pieces"), &[]), [message]);
        let message =
            "no rank has a copy of what rank 2#1 holds of model, optimizer: all ranks restart when one is lost";
        assert_eq!(news(2, Some("it is in pieces"), &["model", "optimizer"]), [message]);
        assert_eq!(news(3, Some("it is in pieces"), &["model", "optimizer"]), [] as [&str; 0]);
    }
}
