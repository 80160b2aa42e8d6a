use super::*;
use crate::detect::Health;
use crate::detect::fixture::{
    KILLED, Scene, dead, exception, exited, failed, fault, follow_up, lost_race, node, rank_domain,
};
use crate::job::Counted;
use std::sync::Arc;

const HERE: &[(&str, u32)] = &[];
const TWO_HOSTS: &[(&str, u32)] = &[("a", 2), ("b", 2)];

fn at_step(step: u64) -> ErrorReport {
    ErrorReport { step: Some(step), ..exception("bad batch") }
}

/// Starts the next generation; `exchanged`: the ranks of the two hosts are exchanged.
fn restart(scene: &mut Scene, exchanged: bool) {
    scene.restart();
    if exchanged {
        let world = Arc::clone(&scene.view.world);
        let world = world.successor(Counted::Yes, |members| {
            for member in members.values_mut() {
                let other = if member.node == Some(node("a")) { "b" } else { "a" };
                member.node = Some(node(other));
            }
        });
        scene.enter(Arc::new(world));
    }
}

/// Returns true if a second exception is blamed after `between`, in a job on these hosts.
fn blamed(
    hosts: &[(&'static str, u32)],
    first: ErrorReport,
    between: impl FnOnce(&mut Scene, &mut ProgramErrorDetector),
    rank: u32,
    second: ErrorReport,
) -> bool {
    let (mut scene, mut programs) = (Scene::on(4, hosts), ProgramErrorDetector::new());
    assert!(scene.tell(&mut programs, 1, failed(first)).is_empty(), "never the first time");
    scene.pass(1_000);
    between(&mut scene, &mut programs);
    let found = scene.tell(&mut programs, rank, failed(second));
    if found.is_empty() {
        return false;
    }
    let fault = fault(&found);
    if let Some(advice) = &fault.advice {
        assert_eq!(
            (advice.as_str(), &fault.primary_suspect().domain),
            ("restart", &rank_domain(rank)),
            "it is to be moved"
        );
        assert!(fault.primary_suspect().damage.program != Health::Faulty && fault.incarnation().is_some());
        return false;
    }
    assert_eq!((&fault.primary_suspect().domain, &fault.primary_suspect().class), (&Domain::Job, &FaultClass::Program));
    assert_eq!(fault.primary_suspect().damage, Damage::PROGRAM_BROKEN);
    assert!(fault.primary_suspect().is_cause() && fault.error.is_some() && fault.evidence.len() == 4);
    true
}

fn stay(scene: &mut Scene, _: &mut ProgramErrorDetector) {
    restart(scene, false);
}

fn exchange(scene: &mut Scene, _: &mut ProgramErrorDetector) {
    restart(scene, true);
}

#[test]
fn the_same_exception_twice_elsewhere_is_the_programs() {
    let e = || at_step(17);
    assert!(blamed(HERE, e(), stay, 1, e()), "there is no other place");
    assert!(blamed(HERE, e(), stay, 2, e()), "whichever rank is first");
    assert!(blamed(TWO_HOSTS, e(), exchange, 1, e()), "it ran on the other host");
    assert!(!blamed(TWO_HOSTS, e(), stay, 1, e()), "the host may be at fault: there is another one");
    assert!(!blamed(TWO_HOSTS, e(), exchange, 3, e()), "another rank, on the host of the first time");
    assert!(blamed(&[("a", 4)], e(), stay, 1, e()), "one host only");
    assert!(blamed(&[("a", 4), ("b", 1)], e(), stay, 1, e()), "the other host cannot take its ranks");
}

#[test]
fn a_recorded_exception_counts_without_an_exit_of_its_process() {
    let recorded = |error: ErrorReport| Signal::FailureRecorded(Box::new(error));
    let (mut scene, mut programs) = (Scene::of(4), ProgramErrorDetector::new());
    assert!(scene.tell(&mut programs, 1, recorded(at_step(17))).is_empty(), "never the first time");
    assert!(scene.tell(&mut programs, 1, failed(at_step(17))).is_empty(), "the same once more");
    restart(&mut scene, false);
    assert!(scene.tell(&mut programs, 2, recorded(follow_up())).is_empty());
    let found = scene.tell(&mut programs, 1, recorded(at_step(17)));
    assert_eq!(
        (&fault(&found).primary_suspect().domain, fault(&found).primary_suspect().damage),
        (&Domain::Job, Damage::PROGRAM_BROKEN)
    );
}

#[test]
fn an_exception_that_comes_back_where_it_was_is_to_be_tried_elsewhere() {
    let (mut scene, mut programs) = (Scene::on(4, TWO_HOSTS), ProgramErrorDetector::new());
    scene.tell(&mut programs, 1, failed(at_step(17)));
    scene.restart(); // in the same place, as after a recovery that replaces only lost ranks
    let found = scene.tell(&mut programs, 1, failed(at_step(17)));
    let advised = fault(&found);
    assert_eq!(
        (advised.advice.clone(), &advised.primary_suspect().domain),
        (Some(Name::new("restart")), &rank_domain(1))
    );
    restart(&mut scene, true);
    let found = scene.tell(&mut programs, 1, failed(at_step(17)));
    assert_eq!(fault(&found).primary_suspect().damage, Damage::PROGRAM_BROKEN);
}

#[test]
fn another_exception_or_step_is_not_the_same() {
    let other_code = ErrorReport { code: Name::new("KeyError"), ..at_step(17) };
    assert!(!blamed(HERE, at_step(17), stay, 1, other_code));
    assert!(!blamed(HERE, at_step(17), stay, 1, at_step(18)));
    let other_text = ErrorReport { text: "bad sampler".into(), ..at_step(17) };
    assert!(!blamed(HERE, at_step(17), stay, 1, other_text));
    assert!(!blamed(HERE, exception("bad"), stay, 1, ErrorReport { step: Some(1), ..exception("bad") }));
    assert!(blamed(HERE, exception("bad"), stay, 1, exception("bad")), "before the first step, twice");
    let (a, b) = ("at 0x7f12a0, port 4711, after 1.25 s", "at 0x55c3ff, port 29500, after 0.75 s");
    assert!(blamed(HERE, exception(a), stay, 1, exception(b)), "only figures differ");
}

#[test]
fn progress_of_the_job_beyond_the_step_in_between_forgets_the_first() {
    let until = |step| {
        move |scene: &mut Scene, programs: &mut ProgramErrorDetector| {
            scene.tell(programs, 2, Signal::Progress { step: 30 }); // late: from the first generation
            restart(scene, false);
            assert!(scene.tell(programs, 3, Signal::Progress { step }).is_empty());
        }
    };
    assert!(blamed(HERE, at_step(17), until(17), 1, at_step(17)));
    assert!(!blamed(HERE, at_step(17), until(18), 1, at_step(17)));
    assert!(!blamed(HERE, exception("bad"), until(0), 1, exception("bad")), "it had got beyond its start");
}

#[test]
fn a_killed_rank_in_between_changes_nothing() {
    let kill = |scene: &mut Scene, programs: &mut ProgramErrorDetector| {
        restart(scene, false);
        scene.tell(programs, 0, dead(KILLED));
        scene.tell(programs, 0, exited(KILLED));
        scene.tell(programs, 1, failed(exception("consequence that does not say so")));
        restart(scene, false);
    };
    assert!(blamed(HERE, at_step(17), kill, 1, at_step(17)));
}

#[test]
fn only_the_exception_of_the_rank_that_failed_first_counts() {
    let peers_first = |first: [Signal; 2]| {
        let (mut scene, mut programs) = (Scene::of(4), ProgramErrorDetector::new());
        let mut found = Vec::new();
        for _ in 0..3 {
            scene.proc(0).step = Some(16); // not a failure at the start, which has its own rules
            for signal in &first {
                found.extend(scene.tell(&mut programs, 0, signal.clone()));
            }
            found.extend(scene.tell(&mut programs, 1, failed(at_step(17))));
            scene.restart();
        }
        !found.is_empty()
    };
    assert!(!peers_first([dead(KILLED), exited(KILLED)]), "a killed rank came first");
    assert!(
        !peers_first([dead(Termination::Code(3)), exited(Termination::Code(3))]),
        "one without a report came first"
    );
    assert!(peers_first([dead(Termination::Code(1)), failed(follow_up())]), "a consequence that was seen first");
    assert!(peers_first([dead(Termination::Code(1)), failed(lost_race())]), "a lost race");
    assert!(peers_first([dead(Termination::Unknown), exited(Termination::Code(0))]), "one that finished");
    let mut by_signal = Exit::new(KILLED);
    by_signal.error = Some(Box::new(at_step(17)));
    assert!(
        !peers_first([dead(KILLED), Signal::Phase(Phase::Exited(Box::new(by_signal)))]),
        "a signal is no exception"
    );
}

#[test]
fn many_ranks_with_the_same_exception_at_once_are_one_occurrence() {
    let (mut scene, mut programs) = (Scene::of(4), ProgramErrorDetector::new());
    for rank in 0..4 {
        assert!(scene.tell(&mut programs, rank, failed(at_step(17))).is_empty());
    }
    scene.restart();
    assert_eq!(scene.tell(&mut programs, 3, failed(at_step(17))).len(), 1);
    assert!(scene.tell(&mut programs, 2, failed(at_step(17))).is_empty(), "once a generation");
}

#[test]
fn another_device_of_the_host_is_another_place() {
    let (mut scene, mut programs) = (Scene::on(2, &[("a", 2)]), ProgramErrorDetector::new());
    let seat = |scene: &mut Scene, devices: [u16; 2]| {
        let world = scene.view.world.successor(Counted::Yes, |members| {
            for (rank, member) in members {
                (member.node, member.device) = (Some(node("a")), Some(devices[rank.0 as usize]));
            }
        });
        scene.enter(Arc::new(world));
    };
    seat(&mut scene, [0, 1]);
    scene.tell(&mut programs, 0, failed(at_step(17)));
    seat(&mut scene, [0, 1]);
    let found = scene.tell(&mut programs, 0, failed(at_step(17)));
    assert_eq!(fault(&found).advice, Some(Name::new("restart")), "device 1 is left");
    seat(&mut scene, [1, 0]);
    let found = scene.tell(&mut programs, 0, failed(at_step(17)));
    let texts: Vec<&str> = fault(&found).evidence.iter().map(|c| c.text.as_str()).collect();
    assert_eq!(texts[1], "ValueError in rank 0#1 on node a, device 0, at step 17 (generation 3, at 0.000 s)");
    assert_eq!(texts[2], "ValueError in rank 0#1 on node a, device 1, at step 17 (generation 4, at 0.000 s)");
}

#[test]
fn the_gist_of_a_text_drops_words_with_digits_and_is_bounded() {
    assert_eq!(gist("shape [32, 64] at 0x7fff in tmp_x81b: no"), "shape [#, #] at # in #: no");
    assert_eq!(gist(""), "");
    assert_eq!(gist(&"é".repeat(2_000)).chars().count(), GIST_CHARS_MAX);
}
