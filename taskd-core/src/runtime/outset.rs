//! What people are told when a job starts: which strategies can work for it, and which losses are covered by what.
//!
//! It decides nothing: a decision asks each strategy itself.

use crate::job::{Mode, Name};
use crate::kernel::View;
use crate::launch::LinkStatus;
use crate::recover::{Beforehand, RecoveryStrategy, cannot, coverage, unproven};
use std::collections::{BTreeMap, BTreeSet};

/// Most different things that ranks say of themselves that are told.
const SAID_MAX: usize = 64;

/// A job at its start, until all is told of it.
#[derive(Debug)]
pub(super) struct Outset {
    job: Beforehand,
    /// What strategies have said of it.
    cannot: BTreeMap<Name, String>,
    /// What ranks have said of themselves, as far as it was told.
    said: BTreeSet<String>,
    /// The newest step at which all ranks have reported checksums of their state, and whether these prove a replica of each.
    proven: Option<(u64, bool)>,
    is_told: bool,
}

impl Outset {
    /// Tells what is known before anything is asked of the launcher.
    pub(super) fn tell(strategies: &[Box<dyn RecoveryStrategy>], job: Beforehand) -> Outset {
        let (spec, cannot) = (&job.spec, cannot(strategies, &job));
        let names: Vec<Name> = strategies.iter().map(|strategy| strategy.name()).collect();
        let line = spec.policy.permissions(&names, &cannot);
        tracing::info!(job = %spec.name, ranks = spec.ranks, "the runtime starts; {line}");
        Outset { is_told: spec.policy.mode == Mode::Observe, cannot, job, said: BTreeSet::new(), proven: None }
    }

    /// A rank has found out what of recoveries it cannot take part in: told once, whoever says it, and not when something has failed.
    pub(super) fn rank_says(&mut self, status: &LinkStatus) {
        self.news_of(status).iter().for_each(|line| tracing::warn!("{line}"));
    }

    fn news_of(&mut self, status: &LinkStatus) -> Vec<String> {
        let LinkStatus { proc, linked: Some(linked) } = status else { return Vec::new() };
        let cannot = linked.cannot.iter().map(|why| {
            let told =
                format!("{proc} cannot be kept in a recovery, and all ranks start again when one is lost: {why}");
            (why.clone(), told)
        });
        let names = Some(linked.sharded.join(", ")).filter(|names| !names.is_empty());
        let sharded = names.into_iter().map(|names| {
            let told = format!("no rank has a copy of what {proc} holds of {names}: all start again when one is lost");
            (names, told)
        });
        let mut is_new = |what: String| self.said.len() < SAID_MAX && self.said.insert(what);
        cannot.chain(sharded).filter_map(|(what, told)| is_new(what).then_some(told)).collect()
    }

    /// All ranks have reported checksums of their state: reports whether each has a replica to be recovered from, once, and again when
    /// that changes.
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
                Err(format!("a lost rank's state cannot be taken from another, all start again instead: {why}"))
            }
        })
    }

    /// The launcher has said which hosts there are: tells the rest, once.
    pub(super) fn hosts_are_known(&mut self, strategies: &[Box<dyn RecoveryStrategy>], hosts: usize) {
        if std::mem::replace(&mut self.is_told, true) {
            return;
        }
        self.job.hosts = (hosts > 0).then_some(hosts);
        let now = cannot(strategies, &self.job);
        for (name, why) in now.iter().filter(|(name, _)| !self.cannot.contains_key(*name)) {
            tracing::info!("{name} cannot work for this job with the hosts that it has now ({hosts}): {why}");
        }
        let covered: Vec<String> = coverage(strategies, &self.job).iter().map(ToString::to_string).collect();
        tracing::info!(
            "when these are lost, a program with a step loop of taskd's goes on from: {}",
            covered.join("; ")
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Generation, JobSpec, ProcId, WorkerSpec};
    use crate::launch::{Linked, Point};
    use std::sync::Arc;

    #[test]
    fn what_all_ranks_say_alike_is_told_once() {
        let spec = Arc::new(JobSpec::new("job", 4, WorkerSpec::new(["train"])));
        let mut outset = Outset::tell(&[], Beforehand::of(spec));
        let mut news = |rank, cannot: Option<&str>, sharded: &[&str]| {
            let linked = Linked {
                generation: Generation(1),
                framework: Name::new("torch"),
                can: [].into(),
                at: Point::Loop,
                state_bytes: None,
                cannot: cannot.map(str::to_owned),
                sharded: sharded.iter().map(ToString::to_string).collect(),
                digest: None,
            };
            outset.news_of(&LinkStatus { proc: ProcId::rank(rank, 1), linked: Some(linked) })
        };
        assert_eq!(news(0, None, &[]), [] as [&str; 0]);
        let told = "rank 1#1 cannot be kept in a recovery, and all ranks start again when one is lost: it is in pieces";
        assert_eq!(news(1, Some("it is in pieces"), &[]), [told]);
        let told = "no rank has a copy of what rank 2#1 holds of model, optimizer: all start again when one is lost";
        assert_eq!(news(2, Some("it is in pieces"), &["model", "optimizer"]), [told]);
        assert_eq!(news(3, Some("it is in pieces"), &["model", "optimizer"]), [] as [&str; 0]);
    }
}
