//! The simulated training keeps the rules that the analysis relies on.

use super::{Fault, Job, clock_offsets, trace};
use crate::model::{Kind, Trace};
use std::collections::BTreeMap;

fn ends(trace: &Trace, offsets: &[i64]) -> BTreeMap<(String, u64), Vec<i64>> {
    let mut ends: BTreeMap<(String, u64), Vec<i64>> = BTreeMap::new();
    for (rank, events) in &trace.ranks {
        for event in events.events.iter().filter(|event| event.kind == Kind::Collective) {
            let details = &events.communications[event.communication.unwrap() as usize];
            let group = &events.groups[details.group.unwrap() as usize].name;
            let key = (group.clone(), details.sequence.unwrap());
            ends.entry(key).or_default().push(event.end_ns() - offsets[*rank as usize]);
        }
    }
    ends
}

#[test]
fn trace_of_equal_seeds_is_equal() {
    let job = Job::default();
    assert_eq!(trace(&job, 7), trace(&job, 7));
    assert_ne!(trace(&job, 7), trace(&job, 8));
}

#[test]
fn trace_has_all_steps_of_all_ranks() {
    let job = Job::default();
    let trace = trace(&job, 1);
    assert_eq!(trace.ranks.len(), 8);
    for events in trace.ranks.values() {
        assert_eq!(events.steps.len(), 12);
        assert!(events.events.is_sorted_by_key(|event| event.start_ns));
        let count = |kind| events.events.iter().filter(|event| event.kind == kind).count();
        assert_eq!(count(Kind::Forward), 12 * 4);
        assert_eq!(count(Kind::Compute), 12 * (4 * 2 * 2 + 1));
        assert_eq!(count(Kind::Send), 12 * 4);
        assert_eq!(count(Kind::Receive), 12 * 4);
        assert_eq!(count(Kind::SaveCheckpoint), 2);
    }
}

#[test]
fn collectives_of_true_clocks_end_together() {
    let job = Job::default();
    for (_, ends) in ends(&trace(&job, 3), &clock_offsets(&job, 3)) {
        assert!(ends.len() > 1);
        assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
    }
}

#[test]
fn slow_rank_delays_all_ranks() {
    let healthy = Job { clock_offset_ns: 0, ..Job::default() };
    let slow = healthy.clone().with_fault(Fault::SlowRank { rank: 5, from_step: 6, percent: 50 });
    let (healthy, slow) = (trace(&healthy, 2), trace(&slow, 2));
    for rank in 0..8 {
        let step = |trace: &Trace, at: usize| trace.ranks[&rank].steps[at].duration_ns as f64;
        let ratio = |at: usize| step(&slow, at) / step(&healthy, at);
        assert!((0.99..1.01).contains(&ratio(3)), "rank {rank}: {}", ratio(3));
        assert!((1.2..1.6).contains(&ratio(8)), "rank {rank}: {}", ratio(8));
    }
}

#[test]
fn events_of_a_lane_do_not_overlap() {
    for (rank, events) in trace(&Job::default(), 4).ranks {
        let mut ends = BTreeMap::new();
        for event in events.events.iter().filter(|event| event.lane != 0) {
            let end = ends.insert(event.lane, event.end_ns()).unwrap_or(i64::MIN);
            assert!(end <= event.start_ns, "rank {rank} lane {}", event.lane);
        }
    }
}
