mod links;

use super::stacks::STACKS_MAX;
use super::*;
use crate::detect::Finding;
use crate::detect::Health;
use crate::detect::fixture::{Scene, exited, fault, rank_domain};
use crate::job::Termination;
use crate::trace::{Call, GroupPosition, ProbeResult};
use std::collections::VecDeque;

const MEMBERS: u32 = 3;

fn told() -> Signal {
    Signal::CollectivePending { group: "default".into(), sequence: 8, nanos: 1_000_000_000 }
}

fn groups(calls: u64, is_pending: bool) -> ProbeResult {
    let call = |sequence| Call {
        sequence,
        operation: "allreduce".into(),
        elements: 1024,
        data_type: "f32".into(),
        begun: Duration::from_millis(1_200),
        is_pending: is_pending && sequence == calls,
    };
    let members = (0..MEMBERS).collect();
    ProbeResult::Groups(vec![GroupPosition {
        group: "default".into(),
        members,
        recent: (0..=calls).map(call).collect(),
    }])
}

/// All ranks wait in call 8, except rank 1, which has made `calls` calls.
fn without_rank_1(calls: u64) -> impl Fn(u32, &Name) -> ProbeResult {
    move |rank, what| match (*what == COLLECTIVES, rank) {
        (true, 1) => groups(calls, false),
        (true, _) => groups(8, true),
        (false, _) => ProbeResult::Text("state=S".into()),
    }
}

/// Performs one look: probes are answered at once.
fn look(scene: &mut Scene, hang: &mut HangDetector, answer: impl Fn(u32, &Name) -> ProbeResult) -> Vec<Finding> {
    scene.view.now = scene.view.now.max(hang.deadline().expect("a look is due"));
    let (mut said, mut open) = (Vec::new(), VecDeque::from(scene.expire(hang)));
    while let Some(finding) = open.pop_front() {
        match finding {
            Finding::Probe(ask) if ask.what == STACKS => {
                assert!(ask.about.len() <= STACKS_MAX);
                open.extend((0..MEMBERS).flat_map(|rank| scene.answer(hang, &ask, rank, stack(rank))));
            }
            Finding::Probe(ask) => {
                for rank in 0..MEMBERS {
                    open.extend(scene.answer(hang, &ask, rank, answer(rank, &ask.what)));
                }
            }
            other => said.push(other),
        }
    }
    said
}

fn stack(rank: u32) -> ProbeResult {
    ProbeResult::Text(format!("thread MainThread (idle):\n  step_of_{rank} (train.py:12)"))
}

#[test]
fn a_stopped_rank_is_blamed_after_two_looks() {
    let (mut scene, mut hang) = (Scene::of(MEMBERS), HangDetector::default());
    scene.pass(5_000);
    let told_at = scene.view.now;
    assert!(scene.tell(&mut hang, 0, told()).is_empty());
    let stopped = |rank: u32, what: &Name| match (rank, *what == PROCESS_STATE) {
        (1, true) => ProbeResult::Text("state=T wchan=do_signal_stop".into()),
        _ => without_rank_1(7)(rank, what),
    };
    assert!(look(&mut scene, &mut hang, stopped).is_empty(), "one look is none");
    let found = look(&mut scene, &mut hang, stopped);
    let fault = fault(&found);
    assert_eq!(
        (&fault.primary_suspect().domain, &fault.primary_suspect().class),
        (&rank_domain(1), &FaultClass::Silence)
    );
    assert!(fault.primary_suspect().is_certain() && fault.primary_suspect().damage.process == Health::Faulty);
    assert_eq!(fault.onset, scene.view.now.before(Duration::from_millis(1_200)));
    assert!(scene.view.now.since(told_at) < Duration::from_secs(1));
    let texts: Vec<&str> = fault.evidence.iter().map(|clue| clue.text.as_str()).collect();
    assert_eq!(
        texts,
        [
            "rank 1 is frozen: its process is stopped (state T) and has not made this call; allreduce of 1024 f32, \
             number 8 of group default waits for rank 1",
            "waiting in it for 1.2 s: ranks 0 and 2",
            "stack of rank 1: thread MainThread (idle): step_of_1 (train.py:12)"
        ]
    );
    assert!(look(&mut scene, &mut hang, stopped).is_empty(), "it is blamed once");
    let moved = |rank: u32, what: &Name| if *what == COLLECTIVES { groups(9, false) } else { stopped(rank, what) };
    assert_eq!(look(&mut scene, &mut hang, moved), [Finding::Clear(rank_domain(1), FaultClass::Silence)]);
    assert_eq!(hang.deadline(), None, "nothing is under way any more");
}

#[test]
fn a_missing_rank_is_blamed_after_its_time_limit_unless_it_moves() {
    let mut scene = Scene::of(MEMBERS);
    let mut hang = HangDetector::default().missing_after(Duration::from_secs(1));
    scene.tell(&mut hang, 0, told());
    for calls in 0..6 {
        assert!(look(&mut scene, &mut hang, without_rank_1(calls)).is_empty(), "it comes nearer");
    }
    let found = look(&mut scene, &mut hang, without_rank_1(5));
    assert_eq!(fault(&found).primary_suspect().class, FaultClass::Stall);
    assert_eq!(fault(&found).evidence[0].what, "hang_missing");
    let mut patient = HangDetector::default();
    scene.tell(&mut patient, 0, told());
    for _ in 0..6 {
        assert!(look(&mut scene, &mut patient, without_rank_1(7)).is_empty());
    }
}

#[test]
fn hang_probes_slow_down_until_another_call_is_reported() {
    let (mut scene, mut hang) = (Scene::of(MEMBERS), HangDetector::default());
    scene.tell(&mut hang, 0, told());
    for _ in 0..9 {
        look(&mut scene, &mut hang, without_rank_1(7));
    }
    assert_eq!(hang.deadline(), Some(scene.view.now + PAUSE_MAX));
    scene.tell(&mut hang, 2, told());
    assert_eq!(hang.deadline(), Some(scene.view.now + PAUSE_MIN));
}

#[test]
fn ranks_that_disagree_without_a_majority_are_a_stall_of_the_job() {
    let (mut scene, mut hang) = (Scene::of(MEMBERS), HangDetector::default());
    scene.tell(&mut hang, 0, told());
    let split = |rank: u32, what: &Name| match (*what == COLLECTIVES, rank, groups(8, true)) {
        (true, 2, _) => ProbeResult::Unavailable("its recorder cannot be read".into()),
        (true, 1, ProbeResult::Groups(mut groups)) => {
            groups[0].recent[8].operation = "barrier".into();
            ProbeResult::Groups(groups)
        }
        (true, _, groups) => groups,
        (false, ..) => ProbeResult::Text("state=S".into()),
    };
    assert!(look(&mut scene, &mut hang, split).is_empty());
    let found = look(&mut scene, &mut hang, split);
    assert_eq!(
        (&fault(&found).primary_suspect().domain, &fault(&found).primary_suspect().class),
        (&Domain::Job, &FaultClass::Stall)
    );
    let text = "the members of group default have made different calls under number 8: rank 0 allreduce of 1024 f32, \
                rank 1 barrier of 1024 f32";
    assert_eq!(fault(&found).evidence[0].text, text);
}

#[test]
fn answers_that_do_not_come_are_not_waited_for() {
    let (mut scene, mut hang) = (Scene::of(MEMBERS), HangDetector::default());
    scene.tell(&mut hang, 0, told());
    assert_eq!(scene.expire(&mut hang).len(), 2, "two questions");
    let due = hang.deadline().expect("the look ends");
    assert_eq!(due, scene.view.now + ANSWERS_WITHIN + ANSWERS_LATE);
    scene.view.now = due;
    assert!(scene.expire(&mut hang).is_empty());
    assert_eq!(hang.deadline(), None, "nothing is known to be under way");
}

#[test]
fn hang_detector_pauses_while_ranks_are_stopped_or_have_failed() {
    for failed in [false, true] {
        let (mut scene, mut hang) = (Scene::of(MEMBERS), HangDetector::default());
        if failed {
            let asked = scene.tell(&mut hang, 1, exited(Termination::Code(1)));
            assert!(matches!(&asked[..], [Finding::Probe(_)]), "where all stood, once: {asked:?}");
            scene.view.now = hang.deadline().expect("answers are waited for");
            assert!(scene.expire(&mut hang).is_empty());
        } else {
            scene.proc(1).wanted = false;
        }
        scene.tell(&mut hang, 0, told());
        assert!(scene.expire(&mut hang).is_empty());
        assert_eq!(hang.deadline(), None);
    }
}

#[test]
fn a_rank_that_exits_successfully_during_a_collective_is_blamed() {
    let (mut scene, mut hang) = (Scene::of(MEMBERS), HangDetector::default());
    scene.tell(&mut hang, 1, exited(Termination::Code(0)));
    scene.tell(&mut hang, 0, told());
    let gone = |rank: u32, what: &Name| match rank {
        1 => ProbeResult::Unavailable("it has ended".into()),
        _ => without_rank_1(7)(rank, what),
    };
    assert!(look(&mut scene, &mut hang, gone).is_empty());
    let found = look(&mut scene, &mut hang, gone);
    assert_eq!(
        (&fault(&found).primary_suspect().domain, &fault(&found).primary_suspect().class),
        (&rank_domain(1), &FaultClass::Exit)
    );
}

#[test]
fn hang_detector_resets_after_a_suspend_and_in_a_new_world() {
    let (mut scene, mut hang) = (Scene::of(MEMBERS), HangDetector::default().missing_after(Duration::ZERO));
    scene.tell(&mut hang, 0, told());
    look(&mut scene, &mut hang, without_rank_1(7));
    scene.slept(&mut hang);
    assert!(look(&mut scene, &mut hang, without_rank_1(7)).is_empty(), "the look before counts for nothing");
    assert_eq!(look(&mut scene, &mut hang, without_rank_1(7)).len(), 1);
    scene.restart();
    scene.tell(&mut hang, 0, Signal::Heartbeat);
    assert_eq!(hang.deadline(), None);
}

/// All ranks except rank 1 make call 8; rank 1 leaves it out, and makes the call that would follow.
fn rank_1_left_out_8(rank: u32) -> ProbeResult {
    let ProbeResult::Groups(mut groups) = groups(8, true) else { return ProbeResult::Silence };
    let calls = &mut groups[0].recent;
    for call in calls.iter_mut() {
        call.elements = if call.sequence % 2 == 0 { 2 } else { 1024 };
    }
    if rank == 1 {
        calls[8].elements = 1024;
    }
    ProbeResult::Groups(groups)
}

fn dies(scene: &mut Scene, hang: &mut HangDetector, rank: u32, answer: impl Fn(u32) -> ProbeResult) -> Vec<Finding> {
    let aborted = Termination::Signal { number: 6, core_dumped: false };
    let mut said = Vec::new();
    for finding in scene.tell(hang, rank, exited(aborted)) {
        match finding {
            Finding::Probe(ask) => {
                assert_eq!(ask.what, COLLECTIVES);
                for rank in 0..MEMBERS {
                    said.extend(scene.answer(hang, &ask, rank, answer(rank)));
                }
            }
            other => said.push(other),
        }
    }
    said
}

#[test]
fn a_rank_aborted_by_the_mistake_of_another_rank_is_a_victim() {
    let (mut scene, mut hang) = (Scene::of(MEMBERS), HangDetector::default());
    let said = dies(&mut scene, &mut hang, 0, rank_1_left_out_8);
    let [Finding::Blame(culprit), Finding::Blame(victim)] = &said[..] else { panic!("{said:?}") };
    assert_eq!(
        (&culprit.primary_suspect().domain, culprit.evidence[0].what.as_str()),
        (&rank_domain(1), "hang_skipped")
    );
    assert_eq!(
        (&victim.primary_suspect().domain, &victim.primary_suspect().class),
        (&rank_domain(0), &FaultClass::Exit)
    );
    assert!(culprit.primary_suspect().is_cause() && !victim.primary_suspect().is_cause());
    let said = dies(&mut scene, &mut hang, 2, rank_1_left_out_8);
    let [Finding::Blame(another)] = &said[..] else { panic!("{said:?}") };
    assert!(!another.primary_suspect().is_cause(), "{another:?}");
    assert!(hang.deadline().is_none(), "nobody is looked at any more");
}

#[test]
fn a_death_among_ranks_with_equal_calls_adds_no_finding() {
    let (mut scene, mut hang) = (Scene::of(MEMBERS), HangDetector::default());
    let said = dies(&mut scene, &mut hang, 1, |rank| if rank == 1 { groups(7, false) } else { groups(8, true) });
    assert!(said.is_empty(), "{said:?}");
}

/// Performs looks until a blame waits for its stacks. Returns the request.
fn until_stacks_are_requested(scene: &mut Scene, hang: &mut HangDetector) -> Probe {
    for _ in 0..2 {
        scene.view.now = scene.view.now.max(hang.deadline().expect("a look is due"));
        for finding in scene.expire(hang) {
            let Finding::Probe(ask) = finding else { panic!("{finding:?}") };
            for rank in 0..MEMBERS {
                let found = scene.answer(hang, &ask, rank, without_rank_1(7)(rank, &ask.what));
                if let [Finding::Probe(ask)] = &found[..] {
                    return ask.clone();
                }
                assert!(found.is_empty(), "{found:?}");
            }
        }
    }
    panic!("no stack was requested")
}

#[test]
fn a_stack_that_does_not_arrive_delays_the_blame_by_half_a_second() {
    let (mut scene, mut hang) = (Scene::of(MEMBERS), HangDetector::default().missing_after(Duration::ZERO));
    scene.tell(&mut hang, 0, told());
    let ask = until_stacks_are_requested(&mut scene, &mut hang);
    assert_eq!((&ask.what, &ask.about[..]), (&STACKS, &[rank_domain(1)][..]), "the suspect's only");
    let due = scene.view.now + Duration::from_millis(500);
    assert_eq!(hang.state.held.as_ref().map(|held| held.due), Some(due));
    let saved = hang.snapshot().expect("plain data");
    hang = HangDetector::default().missing_after(Duration::ZERO);
    hang.restore(&saved).expect("the same version");
    scene.view.now = due;
    let found = scene.expire(&mut hang);
    let fault = found.iter().find_map(|finding| match finding {
        Finding::Blame(fault) => Some(fault),
        _ => None,
    });
    let last = fault.and_then(|fault| fault.evidence.last()).expect("it is blamed");
    assert_eq!((last.what.as_str(), last.text.as_str()), ("hang_stack", "the stack of rank 1 did not arrive in time"));
    assert!(scene.answer(&mut hang, &ask, 1, stack(1)).is_empty(), "too late");
}

#[test]
fn a_culprit_that_moves_while_its_stack_is_read_is_not_blamed() {
    let (mut scene, mut hang) = (Scene::of(MEMBERS), HangDetector::default().missing_after(Duration::ZERO));
    scene.tell(&mut hang, 0, told());
    let ask = until_stacks_are_requested(&mut scene, &mut hang);
    scene.tell(&mut hang, 2, told()); // the next look follows soon
    let moved = |_: u32, what: &Name| if *what == COLLECTIVES { groups(9, false) } else { ProbeResult::Silence };
    assert!(look(&mut scene, &mut hang, moved).is_empty(), "nothing was blamed, and nothing is withdrawn");
    assert!(scene.answer(&mut hang, &ask, 1, stack(1)).is_empty());
    assert_eq!(hang.deadline(), None);
}

/// Looks until the missing rank 1 is blamed. Returns the time from the report, and the last but one piece of evidence.
fn blamed_after(state: impl Fn(u64) -> String) -> (Duration, String) {
    let mut hang = HangDetector::default().missing_after(Duration::from_secs(100));
    let mut scene = Scene::of(MEMBERS);
    let began = scene.view.now;
    scene.tell(&mut hang, 0, told());
    for _ in 0..40 {
        let waited = hang.deadline().map_or(Duration::ZERO, |due| due.since(began));
        let answer = |rank: u32, what: &Name| match without_rank_1(7)(rank, what) {
            ProbeResult::Groups(mut groups) => {
                groups[0].recent.iter_mut().for_each(|call| call.begun += waited);
                ProbeResult::Groups(groups)
            }
            other if rank != 1 => other,
            _ => ProbeResult::Text(state(u64::try_from(waited.as_millis()).expect("short"))),
        };
        if let [Finding::Blame(fault)] = &look(&mut scene, &mut hang, answer)[..] {
            let [.., activity, _] = &fault.evidence[..] else { panic!("{fault:?}") };
            return (scene.view.now.since(began), activity.what.to_string());
        }
    }
    panic!("no rank was blamed")
}

#[test]
fn a_blocked_rank_is_blamed_sooner_than_a_busy_or_sleeping_one() {
    let (blocked, what) = blamed_after(|_| "state=D wchan=nfs_wait cpu_ms=50 uninterruptible=1".into());
    assert!(what == "hang_blocked" && (40..60).contains(&blocked.as_secs()), "{what} after {blocked:?}");
    let (busy, what) = blamed_after(|ms| format!("state=D cpu_ms={}", ms / 2));
    assert!(what == "hang_busy" && busy.as_secs() >= 98, "{what} after {busy:?}");
    let (asleep, what) = blamed_after(|_| "state=S wchan=futex_do_wait cpu_ms=50".into());
    assert!(what == "hang_sleeps" && asleep.as_secs() >= 98, "{what} after {asleep:?}");
}
