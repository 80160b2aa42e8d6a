//! The way of a running job: records, observer with its reducers, fail-slow detector.

use super::Blamed;
use super::store::Stored;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use taskd_kernel::detect::{FailSlowDetector, Fault, FaultDetector, Finding, Findings};
use taskd_kernel::job::{Domain, JobSpec, JobTime, Rank, Role, WorkerSpec};
use taskd_kernel::state::{Phase, Proc, View};
use taskd_kernel::trace::{Fact, Observation};
use taskd_runtime::trace::Origin;
use taskd_runtime::trace::reduce::Observer;

/// Returns the components that the detector blames. A blame that one of a larger component replaces does not count.
pub(crate) fn judge(stored: &Stored) -> BTreeSet<Blamed> {
    let mut view = view(stored);
    let mut detector = FailSlowDetector::new();
    let mut observer = Observer::new(Duration::from_secs(1));
    let mut read_until: BTreeMap<Origin, u64> = BTreeMap::new();
    let mut blamed: Vec<(Domain, Blamed)> = Vec::new();
    let first =
        stored.batches.iter().flat_map(|batch| &batch.records).map(|record| record.unix_nanos).min().unwrap_or(0);
    for batch in &stored.batches {
        observer.take(batch);
        let until = read_until.entry(batch.origin).or_default();
        let facts = observer.settle(batch.origin, *until);
        *until = batch.records.iter().map(|record| record.unix_nanos).fold(*until, u64::max);
        for timed in facts {
            view.now = view.now.max(JobTime::START + Duration::from_nanos(timed.unix_nanos - first));
            observe(&mut detector, timed.fact, stored, &view, &mut blamed);
        }
    }
    for (origin, _) in read_until {
        for timed in observer.settle(origin, u64::MAX) {
            observe(&mut detector, timed.fact, stored, &view, &mut blamed);
        }
    }
    blamed.into_iter().map(|(_, blamed)| blamed).collect()
}

/// All ranks run in the first world, on one host.
fn view(stored: &Stored) -> View {
    let spec = JobSpec::new("recorded", stored.ranks, WorkerSpec::new(["train"])).with_groups(stored.groups.clone());
    let world = Arc::new(spec.first_world());
    let mut view = View::new(JobTime::START, Arc::new(spec), Arc::clone(&world));
    for (rank, member) in world.members() {
        let mut proc = Proc::ordered(member.incarnation, world.generation(), JobTime::START);
        proc.phase = Phase::Running;
        view.procs.insert(Role::Rank(*rank), proc);
    }
    view
}

fn observe(
    detector: &mut FailSlowDetector,
    fact: Fact,
    stored: &Stored,
    view: &View,
    blamed: &mut Vec<(Domain, Blamed)>,
) {
    let Fact { about, incarnation, signal, .. } = fact;
    let observation = Observation::new(view.now, about, signal).with_incarnation(incarnation);
    let mut out = Findings::default();
    detector.observe(&observation, view, &mut out);
    let findings: Vec<Finding> = out.drain().collect();
    let new: Vec<(Domain, Blamed)> = findings.iter().filter_map(|finding| found(finding, stored)).collect();
    for finding in &findings {
        if let Finding::Clear(domain, _) = finding {
            let covers = |old: &Blamed| new.iter().any(|(_, new)| old.0.iter().all(|rank| new.0.contains(rank)));
            blamed.retain(|(of, old)| of != domain || !covers(old));
        }
    }
    blamed.extend(new);
}

fn found(finding: &Finding, stored: &Stored) -> Option<(Domain, Blamed)> {
    let Finding::Blame(fault) = finding else { return None };
    let domain = fault.primary_suspect().domain.clone();
    let mut ranks = match &domain {
        Domain::Process(Role::Rank(Rank(rank))) => vec![*rank],
        Domain::Group(id) => stored.groups[id].iter().map(|rank| rank.0).collect(),
        _ => (0..stored.ranks).collect(),
    };
    ranks.sort_unstable();
    let cause = fault.evidence[0].text.split(':').next().unwrap_or_default().to_owned();
    Some((domain, (ranks, cause, onset(fault))))
}

fn onset(fault: &Fault) -> u64 {
    let clue = fault.evidence.iter().find(|clue| clue.what.as_str() == "fail_slow_onset_step");
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the number of a step")]
    let step = clue.and_then(|clue| clue.value).unwrap_or(-1.0) as u64;
    step
}
