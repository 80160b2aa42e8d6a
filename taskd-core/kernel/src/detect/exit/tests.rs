use super::judge::TEXT_CHARS_MAX;
use super::*;
use crate::detect::fixture::{
    KILLED, Scene, dead, exception, exited, failed, fault, follow_up, lost_race, rank_domain,
};
use crate::detect::{Damage, Finding, Health};
use crate::job::IncidentId;
use crate::recover::Incident;

const UNKNOWN: Termination = Termination::Unknown;

const fn signal(number: i32) -> Termination {
    Termination::Signal { number, core_dumped: false }
}

#[test]
fn exit_confidence_depends_on_the_termination_and_the_error() {
    use FaultClass::{Exit, Launch, Program};
    let code = Termination::Code;
    let cases = [
        (code(64), None, Program, 1000),
        (code(64), Some(follow_up()), Program, 1000),
        (code(1), Some(follow_up()), Exit, 100),
        (signal(6), Some(follow_up()), Exit, 100),
        (code(1), Some(lost_race()), Launch, 900),
        (code(1), Some(exception("bad")), Exit, 900),
        (signal(9), None, Exit, 1000),
        (signal(11), None, Exit, 1000),
        (signal(6), None, Exit, 800),
        (signal(13), None, Exit, 100),
        (code(137), None, Exit, 1000),
        (code(134), None, Exit, 800),
        (code(141), None, Exit, 100),
        (code(160), None, Exit, 800),
        (code(128), None, Exit, 800),
        (UNKNOWN, None, Exit, 850),
        (code(1), None, Exit, 800),
    ];
    for (how, error, class, confidence) in cases {
        let verdict = judge(how, error.as_ref(), false, 64);
        assert_eq!((&verdict.class, verdict.confidence_permille), (&class, confidence), "{how} {error:?}");
        let explained = judge(how, error.as_ref(), true, 64).confidence_permille;
        let expected = if confidence == 800 { 400 } else { confidence };
        assert_eq!(explained, expected, "{how} {error:?}: an end without a word is explained by a cause before it");
        let broken = verdict.damage.program == Health::Faulty;
        assert_eq!(broken, class == Program, "{how}: only the script's own word condemns the program");
    }
}

#[test]
fn a_signal_is_blamed_when_it_is_known_and_again_with_the_exact_exit() {
    let (mut scene, mut exits) = (Scene::of(2), ExitDetector::new());
    scene.proc(1).step = Some(17);
    scene.pass(5);
    let first = scene.tell(&mut exits, 1, dead(KILLED));
    scene.pass(100);
    let exit = Exit { stderr_tail: "one\n  last words \n\n".into(), ..Exit::new(KILLED) };
    let second = scene.tell(&mut exits, 1, Signal::Phase(Phase::Exited(Box::new(exit))));
    let (first, second) = (fault(&first), fault(&second));
    assert!(first.is_duplicate_of(second), "one death is one fault");
    assert_eq!((first.onset, second.onset), (JobTime::from_nanos(5_000_000), first.onset));
    let texts: Vec<&str> = second.evidence.iter().map(|c| c.text.as_str()).collect();
    let expected = ["rank 1#1 ended: signal 9 (SIGKILL)", "last step seen: 17", "last line of stderr: last words"];
    assert_eq!(texts, expected);
}

#[test]
fn last_line_of_stderr_prefers_output_of_the_program() {
    for (tail, last) in [
        ("loss is nan\ntaskd: the first line\ntaskd: the last one\n", "loss is nan"),
        ("taskd: the first line\ntaskd: the last one\n", "taskd: the last one"),
    ] {
        let exit = Exit { stderr_tail: tail.into(), ..Exit::new(KILLED) };
        assert_eq!(judge::last_line(&exit), Some(last));
    }
}

#[test]
fn a_helpers_line_is_no_last_line_of_a_rank_that_has_stepped() {
    for (step, is_shown) in [(None, true), (Some(12), false)] {
        let (mut scene, mut exits) = (Scene::of(1), ExitDetector::new());
        let exit = Exit { stderr_tail: "taskd: ema/n_averaged: changed\n".into(), step, ..Exit::new(KILLED) };
        let found = scene.tell(&mut exits, 0, Signal::Phase(Phase::Exited(Box::new(exit))));
        assert_eq!(fault(&found).evidence.iter().any(|clue| clue.what == "stderr"), is_shown, "{step:?}");
    }
}

#[test]
fn of_a_progress_bar_the_last_state_is_the_last_line() {
    let (mut scene, mut exits) = (Scene::of(1), ExitDetector::new());
    let exit = Exit { stderr_tail: "\r 1%|  |\r 2%|# |\r\n".into(), ..Exit::new(KILLED) };
    let found = scene.tell(&mut exits, 0, Signal::Phase(Phase::Exited(Box::new(exit))));
    assert_eq!(fault(&found).evidence.last().map(|clue| clue.text.as_str()), Some("last line of stderr: 2%|# |"));
}

#[test]
fn an_end_by_exit_code_waits_for_its_report_which_may_show_a_victim() {
    let (mut scene, mut exits) = (Scene::of(1), ExitDetector::new());
    assert!(scene.tell(&mut exits, 0, dead(Termination::Code(1))).is_empty());
    scene.pass(300);
    let found = scene.tell(&mut exits, 0, failed(follow_up()));
    assert!(!fault(&found).primary_suspect().is_cause());
    assert_eq!(fault(&found).onset, JobTime::START, "since its death, not since its exit");
    scene.pass(60_000);
    assert!(scene.expire(&mut exits).is_empty(), "nothing is waited for any more");
}

#[test]
fn an_exact_exit_that_does_not_come_is_not_waited_for_for_ever() {
    for (how, confidence) in [(Termination::Code(1), 800), (UNKNOWN, 850)] {
        let (mut scene, mut exits) = (Scene::of(2), ExitDetector::new());
        assert!(scene.tell(&mut exits, 0, dead(how)).is_empty());
        scene.pass(9_000);
        assert!(scene.tell(&mut exits, 1, dead(UNKNOWN)).is_empty());
        scene.pass(1_000);
        let found = scene.expire(&mut exits);
        assert_eq!(fault(&found).primary_suspect().confidence_permille, confidence);
        assert_eq!(fault(&found).primary_suspect().domain, rank_domain(0));
        scene.pass(9_000);
        assert_eq!(fault(&scene.expire(&mut exits)).primary_suspect().domain, rank_domain(1));
        assert_eq!(exits.deadline(), None);
    }
}

fn recorded(error: crate::job::ErrorReport) -> Signal {
    Signal::FailureRecorded(Box::new(error))
}

#[test]
fn a_process_that_has_recorded_its_failure_and_does_not_end_is_the_cause() {
    let (mut scene, mut exits) = (Scene::of(2), ExitDetector::new());
    scene.proc(1).step = Some(17);
    assert!(scene.tell(&mut exits, 1, recorded(exception("bad"))).is_empty(), "its exit says more");
    scene.pass(999);
    assert!(scene.tell(&mut exits, 1, recorded(exception("bad"))).is_empty() && scene.expire(&mut exits).is_empty());
    scene.pass(1);
    let found = scene.expire(&mut exits);
    let first = fault(&found).clone();
    assert_eq!((&first.primary_suspect().domain, first.primary_suspect().confidence_permille), (&rank_domain(1), 900));
    assert_eq!((first.onset, first.primary_suspect().damage), (JobTime::START, Damage::PROCESS_GONE));
    let texts: Vec<&str> = first.evidence.iter().map(|c| c.text.as_str()).collect();
    let end = "rank 1#1 has recorded its failure and is still running";
    assert_eq!(texts, [end, "python ValueError: bad", "last step seen: 17"]);
    assert!(scene.tell(&mut exits, 1, recorded(exception("bad"))).is_empty() && exits.deadline().is_none());

    scene.pass(5_000);
    let dead = scene.tell(&mut exits, 1, dead(Termination::Code(1)));
    assert_eq!(fault(&dead).primary_suspect().confidence_permille, 900, "it is no consequence of itself");
    let exact = scene.tell(&mut exits, 1, failed(exception("bad")));
    assert!(fault(&exact).is_duplicate_of(&first) && fault(&exact).evidence[0].text.contains("ended: "), "{exact:?}");
}

#[test]
fn a_recorded_failure_followed_by_an_exit_is_blamed_once() {
    let (mut scene, mut exits) = (Scene::of(2), ExitDetector::new());
    assert!(scene.tell(&mut exits, 1, recorded(exception("bad"))).is_empty());
    scene.pass(400);
    let found = scene.tell(&mut exits, 1, failed(exception("bad")));
    assert_eq!((fault(&found).primary_suspect().confidence_permille, fault(&found).onset), (900, JobTime::START));
    scene.pass(60_000);
    assert!(scene.expire(&mut exits).is_empty() && exits.deadline().is_none());
    assert!(scene.tell(&mut exits, 1, recorded(exception("late"))).is_empty(), "it has ended");
    assert_eq!(exits.deadline(), None);
}

#[test]
fn a_victim_that_hangs_at_its_exit_stays_a_victim_and_waits_for_a_cause() {
    let (mut scene, mut exits) = (Scene::of(3), ExitDetector::new());
    scene.tell(&mut exits, 1, recorded(follow_up()));
    scene.tell(&mut exits, 2, recorded(exception("bad")));
    assert!(scene.tell(&mut exits, 0, failed(follow_up())).is_empty(), "its cause may be among them");
    scene.pass(1_000);
    let found = blamed(&scene.expire(&mut exits));
    assert_eq!(found, [(rank_domain(1), 100), (rank_domain(2), 900), (rank_domain(0), 100)]);
}

#[test]
fn recorded_victims_wait_for_an_interrupt_that_may_be_the_cause() {
    let (mut scene, mut exits) = (Scene::of(3), ExitDetector::new());
    assert!(scene.tell(&mut exits, 1, exited(signal(2))).is_empty(), "others may have been interrupted as well");
    scene.pass(200);
    for victim in [0, 2] {
        assert!(scene.tell(&mut exits, victim, recorded(follow_up())).is_empty());
    }
    scene.pass(1_000);
    assert!(scene.expire(&mut exits).is_empty(), "the interrupt is not decided yet");
    scene.pass(1_799);
    assert!(scene.expire(&mut exits).is_empty());
    scene.pass(1);
    let found = blamed(&scene.expire(&mut exits));
    assert_eq!(found, [(rank_domain(1), 1000), (rank_domain(0), 100), (rank_domain(2), 100)]);
    assert_eq!(exits.deadline(), None);
}

#[test]
fn a_recorded_failure_of_a_killed_or_stopped_process_adds_no_blame() {
    let (mut scene, mut exits) = (Scene::of(2), ExitDetector::new());
    scene.tell(&mut exits, 1, recorded(exception("bad")));
    let found = scene.tell(&mut exits, 1, dead(KILLED));
    assert_eq!(fault(&found).error.as_ref().map(|error| error.text.as_str()), Some("bad"));
    scene.pass(20_000);
    assert!(scene.expire(&mut exits).is_empty());

    let (mut scene, mut exits) = (Scene::of(2), ExitDetector::new());
    scene.tell(&mut exits, 1, recorded(exception("bad")));
    scene.proc(1).wanted = false;
    scene.pass(20_000);
    assert!(scene.expire(&mut exits).is_empty(), "its end was asked for meanwhile");
}

/// Returns the blamed domains with their confidences.
fn blamed(findings: &[Finding]) -> Vec<(Domain, u16)> {
    let suspects = findings.iter().filter_map(|f| match f {
        Finding::Blame(fault) => {
            Some((fault.primary_suspect().domain.clone(), fault.primary_suspect().confidence_permille))
        }
        _ => None,
    });
    suspects.collect()
}

#[test]
fn exits_are_blamed_at_once_when_a_cause_is_known() {
    let (mut scene, mut exits) = (Scene::of(4), ExitDetector::new());
    for rank in [1, 2] {
        assert!(scene.tell(&mut exits, rank, dead(Termination::Code(1))).is_empty());
    }
    assert!(scene.tell(&mut exits, 0, dead(UNKNOWN)).is_empty());
    scene.pass(2);
    let found = scene.tell(&mut exits, 3, dead(KILLED));
    assert_eq!(blamed(&found), [(rank_domain(3), 1000), (rank_domain(1), 400), (rank_domain(2), 400)]);
    let found = scene.tell(&mut exits, 1, failed(exception("its own")));
    assert_eq!(blamed(&found), [(rank_domain(1), 900)], "its report refines what was said before");
    let found = scene.tell(&mut exits, 2, failed(follow_up()));
    assert_eq!(blamed(&found), [(rank_domain(2), 100)]);
    assert!(scene.tell(&mut exits, 0, exited(Termination::Code(0))).is_empty(), "it had finished");
    scene.restart();
    assert!(scene.tell(&mut exits, 1, dead(Termination::Code(1))).is_empty(), "a new generation, a new cause");
}

#[test]
fn victims_wait_for_a_cause_as_long_as_one_may_come() {
    let (mut scene, mut exits) = (Scene::of(3), ExitDetector::new());
    for rank in 0..3 {
        assert!(scene.tell(&mut exits, rank, dead(Termination::Code(1))).is_empty());
    }
    assert!(scene.tell(&mut exits, 1, failed(follow_up())).is_empty(), "its cause may be among the others");
    let found = scene.tell(&mut exits, 2, failed(exception("bad")));
    assert_eq!(blamed(&found), [(rank_domain(2), 900), (rank_domain(0), 400), (rank_domain(1), 100)]);

    let (mut scene, mut exits) = (Scene::of(2), ExitDetector::new());
    scene.tell(&mut exits, 0, dead(UNKNOWN));
    assert!(scene.tell(&mut exits, 1, failed(follow_up())).is_empty());
    let found = scene.tell(&mut exits, 0, exited(Termination::Code(0)));
    let expected = [(rank_domain(0), 600), (rank_domain(1), 100)];
    assert_eq!(blamed(&found), expected, "rank 0 has finished before rank 1, and nothing else explains it");
}

#[test]
fn a_cause_stays_one_when_its_exact_exit_comes() {
    for how in [signal(6), KILLED] {
        let (mut scene, mut exits) = (Scene::of(2), ExitDetector::new());
        let first = blamed(&scene.tell(&mut exits, 0, dead(how)));
        assert_eq!(blamed(&scene.tell(&mut exits, 0, exited(how))), first, "it does not explain itself");
    }
}

#[test]
fn blame_is_taken_back_when_the_exact_exit_turns_out_otherwise() {
    let (mut scene, mut exits) = (Scene::of(1), ExitDetector::new());
    scene.tell(&mut exits, 0, dead(UNKNOWN));
    scene.pass(10_000);
    fault(&scene.expire(&mut exits));
    let found = scene.tell(&mut exits, 0, exited(Termination::Code(0)));
    assert_eq!(found, [Finding::Clear(rank_domain(0), FaultClass::Exit)], "it had finished");

    let (mut scene, mut exits) = (Scene::of(1), ExitDetector::new());
    scene.tell(&mut exits, 0, dead(Termination::Code(1)));
    scene.pass(10_000);
    scene.expire(&mut exits);
    let found = scene.tell(&mut exits, 0, failed(lost_race()));
    assert!(matches!(&found[0], Finding::Blame(f) if f.primary_suspect().class == FaultClass::Launch));
    assert_eq!(found[1], Finding::Clear(rank_domain(0), FaultClass::Exit), "after it, or the incident is closed");
}

#[test]
fn success_and_ends_that_were_asked_for_are_no_faults() {
    let (mut scene, mut exits) = (Scene::of(3), ExitDetector::new());
    assert!(scene.tell(&mut exits, 0, dead(Termination::Code(0))).is_empty());
    assert!(scene.tell(&mut exits, 0, exited(Termination::Code(0))).is_empty());
    scene.proc(1).wanted = false;
    assert!(scene.tell(&mut exits, 1, dead(KILLED)).is_empty());
    assert!(scene.tell(&mut exits, 1, exited(KILLED)).is_empty());
    assert!(scene.tell(&mut exits, 2, dead(UNKNOWN)).is_empty());
    assert!(scene.tell(&mut exits, 2, exited(Termination::Code(0))).is_empty());
    assert_eq!(scene.view.world.size(), 3);
    scene.pass(60_000);
    assert!(scene.expire(&mut exits).is_empty());
}

#[test]
fn a_stop_that_comes_while_an_end_waits_for_its_report_does_not_excuse_it() {
    let (mut scene, mut exits) = (Scene::of(1), ExitDetector::new());
    scene.tell(&mut exits, 0, dead(Termination::Code(1)));
    // The kernel does not change `wanted` for a process that is dead already.
    assert!(fault(&scene.tell(&mut exits, 0, failed(exception("bad")))).primary_suspect().is_cause());
}

#[test]
fn the_killed_rank_is_the_root_in_whatever_order_the_ends_are_known() {
    let ends = [(0, exited(Termination::Code(1))), (1, exited(KILLED)), (2, failed(follow_up()))];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let (mut scene, mut exits) = (Scene::of(3), ExitDetector::new());
        let mut faults = Vec::new();
        for i in order {
            scene.pass(3);
            let (rank, signal) = ends[i].clone();
            faults.push(fault(&scene.tell(&mut exits, rank, signal)).clone());
        }
        let incident = Incident { id: IncidentId(1), opened: JobTime::START, faults, attempts: Vec::new() };
        assert_eq!(incident.root().map(|f| f.primary_suspect().domain.clone()), Some(rank_domain(1)), "{order:?}");
        assert_eq!(incident.lost_ranks(&scene.view).len(), 3, "victims are gone as well");
    }
}

#[test]
fn the_code_that_asks_not_to_be_restarted_is_the_policys() {
    let (mut scene, mut exits) = (Scene::of(1), ExitDetector::new());
    let mut spec = (*scene.view.spec).clone();
    spec.policy.no_restart_exit_code = 99;
    scene.view.spec = spec.into();
    let found = scene.tell(&mut exits, 0, exited(Termination::Code(99)));
    let fault = fault(&found);
    assert_eq!(
        (&fault.primary_suspect().class, fault.primary_suspect().damage),
        (&FaultClass::Program, Damage::PROGRAM_BROKEN)
    );
    assert!(fault.evidence[0].text.contains("the script requests no restart"), "{:?}", fault.evidence);
}

#[test]
fn an_older_incarnation_is_nobodys_fault() {
    let (mut scene, mut exits) = (Scene::of(1), ExitDetector::new());
    scene.tell(&mut exits, 0, dead(Termination::Code(1)));
    scene.restart();
    scene.pass(10_000);
    assert!(scene.expire(&mut exits).is_empty(), "it was replaced meanwhile");
    let mut late = Observation {
        at: scene.view.now,
        about: rank_domain(0),
        incarnation: Some(Incarnation(1)),
        generation: None,
        signal: exited(KILLED),
    };
    assert!(scene.observe(&mut exits, late.clone()).is_empty());
    late.incarnation = Some(Incarnation(2));
    let found = scene.observe(&mut exits, late);
    assert_eq!(fault(&found).incarnation(), Some(Incarnation(2)));
    assert_eq!(fault(&found).onset, scene.view.now, "not since the death of the older one");
}

#[test]
fn foreign_texts_become_one_line_of_bounded_length() {
    assert_eq!(one_line(" a\n b\t\tc "), "a b c");
    let long = one_line(&"ä".repeat(5_000));
    assert_eq!(long.chars().count(), TEXT_CHARS_MAX + 1);
    assert!(long.ends_with('…'));
}
