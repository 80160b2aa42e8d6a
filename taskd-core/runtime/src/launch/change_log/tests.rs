use super::*;
use crate::job::{Exit, Name, Termination};
use crate::state::FailureKind;
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

const EPOCH: u64 = 7;

fn status(proc: ProcId, phase: Phase) -> ProcStatus {
    ProcStatus::new(proc, "1", phase)
}

fn pending() -> Phase {
    Phase::Pending("queued".into())
}

fn exited(code: i32) -> Phase {
    Phase::Exited(Box::new(Exit::new(Termination::Code(code))))
}

fn push(log: &ChangeLog, rank: u32, phase: Phase) -> bool {
    log.push(Change::Proc(status(ProcId::rank(rank, 1), phase)))
}

fn node(name: &'static str, state: NodeState) -> Change {
    Change::Node(NodeStatus::new(NodeId(Name::new(name)), state, 4))
}

fn at(seq: u64) -> Revision {
    Revision { epoch: EPOCH, seq }
}

fn small() -> ChangeLogBounds {
    ChangeLogBounds { changes_max: 3, exits_max: 2, left_nodes_max: 1 }
}

#[test]
fn a_process_only_moves_forward_and_exits_once() {
    let log = ChangeLog::new(EPOCH);
    assert!(push(&log, 0, Phase::Running));
    assert!(!push(&log, 0, pending()), "backwards");
    assert!(push(&log, 0, Phase::Dead(Termination::Unknown)));
    assert!(!push(&log, 0, Phase::Dead(Termination::Code(1))), "a second death");
    assert!(push(&log, 0, exited(1)));
    assert!(!push(&log, 0, exited(2)), "a second exit");
    assert!(!push(&log, 0, exited(1)), "the same exit again");
    assert!(!push(&log, 0, Phase::Running), "after the exit");
    let expected = ChangeLogCounts { backwards: 4, repeated: 1, ..ChangeLogCounts::default() };
    assert_eq!(log.counts(), expected);
    assert_eq!(log.listing().revision, at(3));
}

#[test]
fn more_can_become_known_of_a_process_that_has_not_ended() {
    let log = ChangeLog::new(EPOCH);
    push(&log, 0, pending());
    assert!(push(&log, 0, Phase::Pending("image is pulled".into())));
    push(&log, 0, Phase::Running);
    let with_pid = status(ProcId::rank(0, 1), Phase::Running).with_pid(5);
    assert!(log.push(Change::Proc(with_pid.clone())));
    assert_eq!(log.listing().procs, [with_pid]);
}

#[test]
fn an_acknowledged_exit_is_not_listed_reported_or_started_again() {
    let log = ChangeLog::new(EPOCH);
    push(&log, 0, exited(0));
    push(&log, 1, Phase::Running);
    log.acknowledge(&[ProcId::rank(0, 1), ProcId::rank(1, 1), ProcId::rank(9, 9)]);
    assert_eq!(log.listing().procs, [status(ProcId::rank(1, 1), Phase::Running)], "a running process stays");
    assert!(!push(&log, 0, exited(0)));
    assert!(log.admit([status(ProcId::rank(0, 1), pending())]).is_empty());
    assert_eq!(log.admit([status(ProcId::rank(0, 2), pending())]), [ProcId::rank(0, 2)]);
}

#[test]
fn an_exit_is_retained_after_a_later_incarnation_is_acknowledged() {
    let log = ChangeLog::new(EPOCH);
    push(&log, 0, Phase::Dead(Termination::Unknown));
    let later = ProcId::rank(0, 2);
    log.push(Change::Proc(status(later.clone(), exited(3))));
    log.acknowledge(&[later]);
    assert!(push(&log, 0, exited(9)));
    assert_eq!(log.listing().procs, [status(ProcId::rank(0, 1), exited(9))]);
}

#[test]
fn a_batch_that_names_one_process_twice_starts_it_once() {
    let log = ChangeLog::new(EPOCH);
    let twice = [status(ProcId::rank(0, 1), pending()), status(ProcId::rank(0, 1), pending())];
    assert_eq!(log.admit(twice), [ProcId::rank(0, 1)]);
}

#[tokio::test]
async fn cursors_that_cannot_be_served_are_stale() {
    let log = ChangeLog::with_bounds(EPOCH, small());
    for rank in 0..5 {
        push(&log, rank, Phase::Running);
    }
    assert_eq!(log.after(Revision { epoch: EPOCH + 1, seq: 5 }).await, Err(LaunchError::Stale), "another epoch");
    assert_eq!(log.after(at(6)).await, Err(LaunchError::Stale), "the future");
    assert_eq!(log.after(at(1)).await, Err(LaunchError::Stale), "older than what is kept");
    assert_eq!(log.after(at(2)).await.unwrap().0.len(), 3, "just kept");
    assert_eq!(log.counts().changes_forgotten, 2);
}

#[tokio::test]
async fn a_waiter_that_missed_more_than_the_log_holds_must_list_again() {
    let log = Arc::new(ChangeLog::with_bounds(EPOCH, small()));
    let waiter = tokio::spawn({
        let log = Arc::clone(&log);
        async move { log.after(at(0)).await }
    });
    tokio::task::yield_now().await;
    for rank in 0..4 {
        push(&log, rank, Phase::Running); // no await between them: the waiter sees only the last state
    }
    assert_eq!(waiter.await.unwrap(), Err(LaunchError::Stale));
}

#[test]
fn change_log_at_its_bounds_drops_the_oldest_and_counts_them() {
    let log = ChangeLog::with_bounds(EPOCH, small());
    for rank in 0..3 {
        push(&log, rank, exited(0));
    }
    let listed: Vec<ProcId> = log.listing().procs.into_iter().map(|p| p.proc).collect();
    assert_eq!(listed, [ProcId::rank(1, 1), ProcId::rank(2, 1)]);
    assert!(!push(&log, 0, exited(0)), "also what was given up is not reported twice");

    for change in [node("c", NodeState::Left), node("b", NodeState::Ready), node("a", NodeState::Left)] {
        assert!(log.push(change));
    }
    assert!(!log.push(node("a", NodeState::Left)));
    let listed: Vec<NodeId> = log.listing().nodes.into_iter().map(|n| n.node).collect();
    assert_eq!(listed, [NodeId(Name::new("a")), NodeId(Name::new("b"))]);
    let counts = log.counts();
    assert_eq!((counts.exits_forgotten, counts.left_nodes_forgotten, counts.repeated), (1, 1, 1));
}

#[tokio::test]
async fn a_dropped_wait_takes_nothing() {
    let log = ChangeLog::new(EPOCH);
    tokio::select! {
        biased;
        _ = log.after(at(0)) => unreachable!("nothing has happened yet"),
        () = std::future::ready(()) => {}
    }
    push(&log, 0, Phase::Running);
    assert_eq!(log.after(at(0)).await.unwrap().0.len(), 1);
}

/// Writers and watchers on several threads: every watcher sees every change, once and in order, and none misses its
/// wake-up.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_wake_up_is_lost_under_contention() {
    const WRITERS: u32 = 4;
    const EACH: u32 = 2_000;
    let log = Arc::new(ChangeLog::new(EPOCH));
    let watchers: Vec<_> = (0..3)
        .map(|_| {
            let log = Arc::clone(&log);
            tokio::spawn(async move {
                let (mut seen, mut from) = (Vec::new(), at(0));
                while seen.len() < (WRITERS * EACH) as usize {
                    let (changes, next) = log.after(from).await.unwrap();
                    assert_eq!(next.seq - from.seq, changes.len() as u64);
                    seen.extend(changes);
                    from = next;
                }
                seen
            })
        })
        .collect();
    for writer in 0..WRITERS {
        let log = Arc::clone(&log);
        tokio::spawn(async move {
            for i in 0..EACH {
                push(&log, writer * EACH + i, Phase::Running);
                if i % 16 == 0 {
                    tokio::task::yield_now().await;
                }
            }
        });
    }
    let mut all = Vec::new();
    for watcher in watchers {
        all.push(timeout(Duration::from_secs(60), watcher).await.expect("a watcher sleeps on").unwrap());
    }
    assert!(all.iter().all(|seen| *seen == all[0]), "watchers differ");
}

fn any_change() -> impl Strategy<Value = Change> {
    let phase = prop_oneof![
        Just(pending()),
        Just(Phase::Running),
        Just(Phase::Dead(Termination::Unknown)),
        (0..3).prop_map(exited),
    ];
    let state = prop_oneof![Just(NodeState::Ready), Just(NodeState::OutOfSight), Just(NodeState::Left)];
    prop_oneof![
        8 => (0..3_u32, 1..4_u32, phase).prop_map(|(r, i, phase)| Change::Proc(status(ProcId::rank(r, i), phase))),
        1 => (prop_oneof![Just("a"), Just("b")], state).prop_map(|(name, state)| node(name, state)),
    ]
}

proptest! {
    /// `list` followed by `watch` gives the same state as `list` alone, from every position in the history, for any
    /// changes.
    #[test]
    fn a_listing_and_the_changes_after_it_give_the_later_listing(
        changes in proptest::collection::vec(any_change(), 1..60),
        joined_at in 0..60_usize,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let log = ChangeLog::new(EPOCH);
        let mut joined = log.listing();
        for (i, change) in changes.into_iter().enumerate() {
            log.push(change);
            if i == joined_at {
                joined = log.listing();
            }
        }
        let last = log.listing();
        let mut procs: BTreeMap<ProcId, ProcStatus> =
            joined.procs.into_iter().map(|p| (p.proc.clone(), p)).collect();
        if joined.revision != last.revision {
            let (reported, next) = runtime.block_on(log.after(joined.revision)).unwrap();
            prop_assert_eq!(next, last.revision);
            for change in reported {
                if let Change::Proc(p) = change {
                    let before = procs.insert(p.proc.clone(), p.clone());
                    prop_assert!(before.is_none_or(|old| may_follow(&old.phase, &p.phase)));
                }
            }
        }
        prop_assert_eq!(procs.into_values().collect::<Vec<_>>(), last.procs);
    }
}

#[test]
fn a_failed_step_is_listed_until_its_process_trains_in_a_newer_world_or_exits() {
    let log = ChangeLog::new(EPOCH);
    let link = |generation| {
        let position = crate::launch::LoopPosition::InLoop;
        let link = crate::launch::ControlLink::new(Generation(generation), "test", position);
        log.push(Change::Link(LinkStatus::new(ProcId::rank(0, 1), Some(link))));
    };
    let failed = |generation| {
        let failure = crate::launch::StepFailure::new(Generation(generation), FailureKind::Collective, "closed");
        WorkerEvent::new(ProcId::rank(0, 1), WorkerMessage::Failed(Box::new(failure)))
    };
    push(&log, 0, Phase::Running);
    link(1);
    log.push(Change::Worker(failed(1)));
    link(1);
    assert_eq!(log.listing().failed_steps, [failed(1)]);
    assert!(log.lists_failed_step(&failed(1)) && !log.lists_failed_step(&failed(2)));
    link(2);
    assert_eq!(log.listing().failed_steps, []);
    log.push(Change::Worker(failed(2)));
    push(&log, 0, exited(1));
    assert_eq!(log.listing().failed_steps, []);
}
