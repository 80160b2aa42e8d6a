//! Contract tests of the sources of stored and of synthetic records.

use super::*;
use crate::job::Rank;
use crate::trace::synthetic::{Injection, SyntheticJob};
use crate::trace::{GroupPosition, Signal};

fn frozen() -> SyntheticJob {
    SyntheticJob::new(4).steps(40).inject(Injection::Frozen { rank: Rank(2), at_step: 31 })
}

/// Returns all facts of a source until it ends, or reports nothing for a while.
async fn all(mut source: impl TraceSource) -> Vec<Fact> {
    let mut facts = Vec::new();
    while let Ok(Some(batch)) = tokio::time::timeout(Duration::from_secs(5), source.next()).await {
        facts.extend(batch.unwrap().facts);
    }
    facts
}

fn steps(facts: &[Fact]) -> Vec<(Domain, u64)> {
    let step = |fact: &Fact| {
        if let Signal::Step(times) = &fact.signal { Some((fact.about.clone(), times.step)) } else { None }
    };
    facts.iter().filter_map(step).collect()
}

#[tokio::test(start_paused = true)]
async fn a_real_time_source_reports_each_step_once_in_time_order() {
    let began = Instant::now();
    let facts = all(StoredSource::new(SyntheticJob::new(4).steps(20).run()).pace(Pace::RealTime)).await;
    let took = began.elapsed();
    assert!((Duration::from_millis(2000)..Duration::from_millis(2200)).contains(&took), "{took:?}");
    let steps = steps(&facts);
    assert_eq!(steps.len(), 80);
    assert!(steps.is_sorted_by_key(|(_, step)| *step));
    let mut about: Vec<_> = steps[..4].iter().map(|(about, _)| about.to_string()).collect();
    about.sort();
    assert_eq!(about, ["rank 0", "rank 1", "rank 2", "rank 3"]);
}

#[tokio::test(start_paused = true)]
async fn a_frozen_job_reports_pending_collectives_and_answers_probes() {
    let mut source = frozen().source();
    assert!(source.info().stand_in);
    let began = Instant::now();
    let pending = loop {
        let facts = source.next().await.unwrap().unwrap().facts;
        let pending: Vec<Fact> =
            facts.into_iter().filter(|fact| matches!(fact.signal, Signal::CollectivePending { .. })).collect();
        if !pending.is_empty() {
            break pending;
        }
    };
    let hung = began.elapsed();
    assert!((Duration::from_millis(3750)..Duration::from_millis(4250)).contains(&hung), "{hung:?}");
    for rank in [0, 1, 3] {
        let about = Domain::Process(Role::Rank(Rank(rank)));
        assert!(pending.iter().any(|fact| fact.about == about), "{pending:?}");
    }
    let ask = Probe::new(NAME, COLLECTIVES, Vec::new(), Duration::from_secs(1)).with_tag(1);
    let mut at = Vec::new();
    for rank in 0..4 {
        let about = Domain::Process(Role::Rank(Rank(rank)));
        let Ok(ProbeResult::Groups(groups)) = source.collect(&ask, &about).await else { panic!() };
        let [GroupPosition { recent, .. }] = &groups[..] else { panic!("{groups:?}") };
        at.push(recent.last().unwrap().sequence);
    }
    assert!(at[2] <= at[0] && at[0] == at[1] && at[1] == at[3], "{at:?}");
    let stranger = source.collect(&ask, &Domain::Process(Role::Rank(Rank(9)))).await;
    assert!(matches!(stranger, Err(SourceError::Unavailable(_))));
}
