use super::*;
use crate::detect::Finding;
use crate::detect::fixture::{KILLED, Scene, dead, exited, fault, question, rank_domain};
use crate::trace::ProbeResult;

const BEAT_MS: u64 = 1_000;

/// Advances the time; all ranks except `silent` send heartbeats.
fn beats(scene: &mut Scene, detector: &mut SilenceDetector, ms: u64, silent: &[u32]) -> Vec<Finding> {
    let mut found = Vec::new();
    for _ in 0..ms / BEAT_MS {
        scene.pass(BEAT_MS);
        for rank in (0..scene.view.world.size()).filter(|r| !silent.contains(r)) {
            found.extend(scene.tell(detector, rank, Signal::Heartbeat));
        }
        found.extend(scene.expire(detector));
    }
    found
}

fn state(letter: char) -> ProbeResult {
    ProbeResult::Text(format!("state={letter} wchan=0 beat_age_ms=-"))
}

fn answer(words: &str) -> ProbeResult {
    ProbeResult::Text(words.into())
}

/// Replies of busy processes, with the expected text of each note.
const BUSY: [(&str, &str); 7] = [
    ("state=R", "its process runs, or waits for a processor"),
    ("state=S runnable=1", "its process runs, or waits for a processor"),
    ("state=D wchan=nfs_wait", "its process waits for a disk or a driver (nfs_wait)"),
    ("state=S wchan=futex_do_wait uninterruptible=2", "its process waits for a disk or a driver (futex_do_wait)"),
    ("state=S ran_age_ms=5000", "its process ran 5.0 s ago"),
    ("state=S ran_age_ms=? host_cpu_pressure_percent=80", "its host is overloaded: CPU pressure 80 %"),
    ("state=S host_load_percent=400", "its host is overloaded: load 400 % of its processors"),
];

/// Returns the note among the findings.
fn noted(found: &[Finding]) -> Option<(&Domain, &str)> {
    match found {
        [Finding::Note(about, clue)] => Some((about, clue.text.as_str())),
        [] => None,
        other => panic!("{other:?}"),
    }
}

/// Hears all ranks once, then no longer the `silent` ones, until the detector probes them.
fn asked(ranks: u32, hosts: &[(&'static str, u32)], silent: &[u32]) -> (Scene, SilenceDetector, Probe) {
    let (mut scene, mut detector) = (Scene::on(ranks, hosts), SilenceDetector::default());
    assert!(beats(&mut scene, &mut detector, BEAT_MS, &[]).is_empty());
    assert!(beats(&mut scene, &mut detector, 9_000, silent).is_empty(), "within the limit");
    let ask = question(&beats(&mut scene, &mut detector, BEAT_MS, silent));
    assert_eq!((ask.what.as_str(), ask.timeout), ("process-state", ANSWER_WITHIN));
    (scene, detector, ask)
}

#[test]
fn a_silent_rank_is_asked_about_and_blamed_with_what_comes() {
    let cases = [
        (state('T'), 1000, "frozen: its process is in state T (stopped)"),
        (state('t'), 1000, "frozen: its process is in state t (stopped)"),
        (state('S'), 850, "its process is in state S"),
        (answer("state=S wchan=futex_do_wait ran_age_ms=-"), 850, "its process is in state S, asleep in futex_do_wait"),
        (answer("state=S runnable=0 uninterruptible=0 ran_age_ms=5001"), 850, "its process is in state S"),
        (answer("state=S ran_age_ms=- host_cpu_pressure_percent=99"), 850, "its process is in state S"),
        (
            answer("state=S ran_age_ms=? host_cpu_pressure_percent=79 host_load_percent=900"),
            850,
            "its process is in state S",
        ),
        (
            answer("state=D wchan=__refrigerator uninterruptible=9"),
            1000,
            "frozen: its process is in state D, asleep in __refrigerator (its control group is frozen)",
        ),
        (
            answer("state=S wchan=do_freezer_trap ran_age_ms=10"),
            1000,
            "frozen: its process is in state S, asleep in do_freezer_trap (its control group is frozen)",
        ),
        (ProbeResult::Text("no words".into()), 850, "the probe for the state of its process was not answered"),
        (ProbeResult::Unavailable("no such file".into()), 850, "the state of its process is not known: no such file"),
    ];
    for (exhibit, confidence, why) in cases {
        let (scene, mut detector, ask) = asked(4, &[], &[2]);
        assert_eq!(ask.about, [rank_domain(2)]);
        let found = scene.answer(&mut detector, &ask, 2, exhibit);
        let fault = fault(&found);
        assert_eq!(fault.primary_suspect().domain, rank_domain(2));
        assert_eq!(
            (&fault.primary_suspect().class, fault.primary_suspect().confidence_permille),
            (&FaultClass::Silence, confidence)
        );
        assert_eq!(fault.onset, JobTime::from_nanos(1_000_000_000), "since it was last heard");
        assert_eq!((fault.evidence[0].value, fault.evidence[0].usual), (Some(10_000.0), Some(10_000.0)));
        let texts: Vec<&str> = fault.evidence.iter().map(|c| c.text.as_str()).collect();
        assert_eq!(
            texts,
            ["no heartbeat for 10.0 s", why, "the latest heartbeat of the 4 processes of its host was 0.0 s old"]
        );
    }
}

#[test]
fn a_busy_process_is_reported_once_and_blamed_only_after_minutes() {
    for (words, busy) in BUSY {
        let (mut scene, mut detector, ask) = asked(4, &[], &[2]);
        let found = scene.answer(&mut detector, &ask, 2, answer(words));
        let text = format!("busy: no heartbeat for 10.0 s, and {busy}");
        assert_eq!(noted(&found), Some((&rank_domain(2), text.as_str())));
        for _ in 1..29 {
            let again = question(&beats(&mut scene, &mut detector, 10_000, &[2]));
            assert_eq!(noted(&scene.answer(&mut detector, &again, 2, answer(words))), None, "{words}: it was said");
        }
        let last = question(&beats(&mut scene, &mut detector, 10_000, &[2]));
        let found = scene.answer(&mut detector, &last, 2, answer(words));
        let prime = fault(&found).primary_suspect();
        assert_eq!((&prime.domain, prime.confidence_permille, prime.is_cause()), (&rank_domain(2), 700, true));
        assert_eq!(fault(&found).evidence[0].text, "no heartbeat for 300.0 s");
        assert_eq!(fault(&found).evidence[2].text, format!("{busy}, but the limit for a busy process is 300 s"));
    }
}

#[test]
fn a_busy_process_that_is_heard_again_may_be_busy_again() {
    let (mut scene, mut detector, ask) = asked(2, &[], &[1]);
    assert!(noted(&scene.answer(&mut detector, &ask, 1, answer("state=R"))).is_some());
    assert!(scene.tell(&mut detector, 1, Signal::Heartbeat).is_empty());
    let again = question(&beats(&mut scene, &mut detector, 11_000, &[1]));
    assert!(noted(&scene.answer(&mut detector, &again, 1, answer("state=R"))).is_some());
}

#[test]
fn a_busy_process_that_freezes_is_blamed_when_it_is_asked_about_again() {
    let (mut scene, mut detector, ask) = asked(2, &[], &[1]);
    scene.answer(&mut detector, &ask, 1, answer("state=R"));
    let again = question(&beats(&mut scene, &mut detector, 10_000, &[1]));
    let found = scene.answer(&mut detector, &again, 1, state('T'));
    assert_eq!(fault(&found).primary_suspect().confidence_permille, 1000);
}

#[test]
fn a_process_that_runs_again_is_not_blamed_any_more() {
    let (mut scene, mut detector, ask) = asked(2, &[], &[1]);
    fault(&scene.answer(&mut detector, &ask, 1, state('T')));
    let again = question(&beats(&mut scene, &mut detector, 10_000, &[1]));
    let found = scene.answer(&mut detector, &again, 1, answer("state=R"));
    let [Finding::Clear(about, FaultClass::Silence), Finding::Note(..)] = &found[..] else { panic!("{found:?}") };
    assert_eq!(*about, rank_domain(1));
}

#[test]
fn an_unanswered_probe_is_repeated_before_a_rank_is_blamed() {
    let (mut scene, mut detector, first) = asked(4, &[], &[2]);
    let second = question(&scene.answer(&mut detector, &first, 2, ProbeResult::Silence));
    assert_eq!((second.about.clone(), second.timeout), (vec![rank_domain(2)], ANSWER_WITHIN));
    assert!(scene.answer(&mut detector, &first, 2, state('T')).is_empty(), "an answer to an older question");
    scene.pass(500);
    let third = question(&scene.answer(&mut detector, &second, 2, ProbeResult::Silence));
    scene.pass(500);
    let found = scene.answer(&mut detector, &third, 2, ProbeResult::Silence);
    assert_eq!(fault(&found).primary_suspect().confidence_permille, 850);
    assert_eq!(fault(&found).evidence[1].text, "the probe for the state of its process was not answered");

    let (scene, mut detector, first) = asked(4, &[], &[2]);
    let second = question(&scene.answer(&mut detector, &first, 2, ProbeResult::Silence));
    assert!(
        noted(&scene.answer(&mut detector, &second, 2, answer("state=R"))).is_some(),
        "the host was too slow to answer"
    );
}

#[test]
fn the_bound_of_a_busy_process_can_be_set() {
    let mut scene = Scene::of(2);
    let mut detector = SilenceDetector::default().busy_for(Duration::from_secs(10));
    beats(&mut scene, &mut detector, BEAT_MS, &[]);
    let ask = question(&beats(&mut scene, &mut detector, 10_000, &[1]));
    assert_eq!(
        fault(&scene.answer(&mut detector, &ask, 1, answer("state=R"))).primary_suspect().confidence_permille,
        700
    );
}

#[test]
fn a_heartbeat_takes_suspicion_and_blame_back() {
    let (mut scene, mut detector, ask) = asked(2, &[], &[1]);
    assert!(scene.tell(&mut detector, 1, Signal::Heartbeat).is_empty());
    assert!(scene.answer(&mut detector, &ask, 1, state('T')).is_empty(), "the answer is out of date");

    let (mut scene, mut detector, ask) = asked(2, &[], &[1]);
    fault(&scene.answer(&mut detector, &ask, 1, state('T')));
    let found = scene.tell(&mut detector, 1, Signal::Heartbeat);
    assert_eq!(found, [Finding::Clear(rank_domain(1), FaultClass::Silence)]);
    assert!(scene.tell(&mut detector, 1, Signal::Heartbeat).is_empty(), "once");
}

#[test]
fn when_all_ranks_of_a_host_fall_silent_only_a_stopped_process_is_proof() {
    for (ranks, hosts, silent) in [
        (3, &[][..], &[0, 1, 2][..]),
        (1, &[], &[0]),
        (4, &[("a", 2), ("b", 2)], &[2, 3]),
        (2, &[("a", 1), ("b", 1)], &[1]),
    ] {
        let (scene, mut detector, ask) = asked(ranks, hosts, silent);
        assert_eq!(ask.about.len(), silent.len());
        let last = *silent.last().expect("somebody is silent");
        assert!(scene.answer(&mut detector, &ask, last, state('S')).is_empty(), "{ranks} {hosts:?}");
        let unavailable = ProbeResult::Unavailable("no such file".into());
        assert!(scene.answer(&mut detector, &ask, last, unavailable).is_empty(), "{ranks} {hosts:?}");
        let found = scene.answer(&mut detector, &ask, last, state('T'));
        assert_eq!(fault(&found).primary_suspect().confidence_permille, 1000);
    }
}

#[test]
fn a_stalled_source_blames_no_rank_when_heartbeats_are_staggered() {
    let (mut scene, mut detector) = (Scene::of(3), SilenceDetector::default());
    for rank in 0..3 {
        scene.pass(300);
        scene.tell(&mut detector, rank, Signal::Heartbeat);
    }
    for _ in 0..300 {
        scene.pass(100);
        for finding in scene.expire(&mut detector) {
            let Finding::Probe(ask) = finding else { panic!("{finding:?}") };
            for about in &ask.about {
                let Domain::Process(Role::Rank(rank)) = about else { panic!("{about}") };
                assert!(scene.answer(&mut detector, &ask, rank.0, state('S')).is_empty());
            }
        }
    }
    assert_eq!(detector.state.tag, 9, "each rank once every limit, for 30 s");
}

#[test]
fn an_answer_with_a_fresh_heartbeat_takes_the_suspicion_back() {
    let aged = |ms: u64| ProbeResult::Text(format!("state=T beat_age_ms={ms}"));
    let (mut scene, mut detector, ask) = asked(2, &[], &[1]);
    assert!(scene.answer(&mut detector, &ask, 1, aged(5_000)).is_empty(), "we did not hear it");
    scene.pass(4_999);
    scene.tell(&mut detector, 0, Signal::Heartbeat);
    assert!(scene.expire(&mut detector).is_empty());
    scene.pass(1);
    assert_eq!(question(&scene.expire(&mut detector)).about, [rank_domain(1)], "the limit counts from that heartbeat");

    let (scene, mut detector, ask) = asked(2, &[], &[1]);
    fault(&scene.answer(&mut detector, &ask, 1, aged(5_001)));
}

#[test]
fn a_rank_that_stays_silent_is_asked_about_again() {
    let (mut scene, mut detector, first) = asked(2, &[], &[1]);
    let second = question(&beats(&mut scene, &mut detector, 10_000, &[1]));
    assert_ne!(first.tag, second.tag);
    assert!(scene.answer(&mut detector, &first, 1, state('T')).is_empty(), "an answer to an older question");
    fault(&scene.answer(&mut detector, &second, 1, state('T')));
}

#[test]
fn only_ranks_with_heartbeats_are_watched_and_progress_counts_as_one() {
    let (mut scene, mut detector) = (Scene::of(3), SilenceDetector::default());
    scene.tell(&mut detector, 0, Signal::Progress { step: 1 });
    assert_eq!(detector.deadline(), None, "progress alone begins no watch");
    scene.tell(&mut detector, 1, Signal::Heartbeat);
    for step in 0..60 {
        scene.pass(BEAT_MS);
        scene.tell(&mut detector, 1, Signal::Progress { step });
        assert!(scene.expire(&mut detector).is_empty());
    }
    let stranger = Observation {
        at: scene.view.now,
        about: rank_domain(u32::MAX),
        incarnation: None,
        generation: None,
        signal: Signal::Heartbeat,
    };
    assert!(scene.observe(&mut detector, stranger).is_empty());
    assert_eq!(detector.state.watches.ranks.len(), 2, "the job has no such rank");
}

#[test]
fn a_sign_of_life_counts_from_when_it_was_given() {
    let (mut scene, mut detector) = (Scene::of(2), SilenceDetector::default());
    let given = |at: u64| Observation {
        at: JobTime::from_nanos(at * 1_000_000),
        about: rank_domain(0),
        incarnation: None,
        generation: None,
        signal: Signal::Heartbeat,
    };
    scene.pass(4_000);
    scene.tell(&mut detector, 1, Signal::Heartbeat);
    scene.observe(&mut detector, given(1_000));
    scene.pass(6_000);
    scene.observe(&mut detector, given(1_000)); // the same sign of life again
    scene.tell(&mut detector, 1, Signal::Heartbeat);
    assert_eq!(detector.deadline(), Some(JobTime::from_nanos(11_000_000_000)));
    scene.pass(1_000);
    let ask = question(&scene.expire(&mut detector));
    assert_eq!(ask.about, [rank_domain(0)]);
    scene.observe(&mut detector, given(1_000));
    let found = scene.answer(&mut detector, &ask, 0, state('T'));
    assert_eq!(fault(&found).onset, JobTime::from_nanos(1_000_000_000));
}

#[test]
fn ended_or_stopped_ranks_are_unwatched_until_a_new_incarnation_beats() {
    let over = [dead(KILLED), dead(Termination::Code(0)), exited(KILLED)];
    for signal in over {
        let (mut scene, mut detector) = (Scene::of(2), SilenceDetector::default());
        beats(&mut scene, &mut detector, BEAT_MS, &[]);
        scene.tell(&mut detector, 1, signal);
        scene.tell(&mut detector, 1, Signal::Heartbeat); // late
        assert!(beats(&mut scene, &mut detector, 20_000, &[1]).is_empty());
        scene.restart();
        assert!(beats(&mut scene, &mut detector, 20_000, &[1]).is_empty(), "not heard in this incarnation");
        assert_eq!(question(&beats(&mut scene, &mut detector, 10_000, &[0])).about, [rank_domain(0)]);
    }
    let (mut scene, mut detector) = (Scene::of(2), SilenceDetector::default());
    beats(&mut scene, &mut detector, BEAT_MS, &[]);
    scene.proc(1).wanted = false;
    assert!(beats(&mut scene, &mut detector, 20_000, &[1]).is_empty());
}

#[test]
fn a_death_of_which_nothing_is_known_does_not_end_the_watch() {
    let (mut scene, mut detector) = (Scene::of(2), SilenceDetector::default());
    beats(&mut scene, &mut detector, BEAT_MS, &[]);
    scene.tell(&mut detector, 1, dead(Termination::Unknown));
    question(&beats(&mut scene, &mut detector, 10_000, &[1]));
}

#[test]
fn a_suspend_resets_the_heartbeat_ages() {
    let (mut scene, mut detector, ask) = asked(2, &[], &[1]);
    scene.pass(30_000);
    scene.slept(&mut detector);
    assert!(scene.answer(&mut detector, &ask, 1, state('T')).is_empty(), "asked before the sleep");
    assert!(scene.expire(&mut detector).is_empty());
    scene.pass(9_999);
    assert!(scene.expire(&mut detector).is_empty());
    scene.pass(1);
    let ask = question(&scene.expire(&mut detector));
    assert_eq!(ask.about.len(), 2);
    let onset = scene.view.now.before(Duration::from_secs(10));
    assert_eq!(fault(&scene.answer(&mut detector, &ask, 1, state('T'))).onset, onset, "since we woke up");
}

#[test]
fn an_observation_without_incarnation_is_of_the_current_one() {
    let (mut scene, mut detector) = (Scene::of(2), SilenceDetector::default());
    scene.restart();
    let beat = |scene: &Scene, detector: &mut SilenceDetector, rank| {
        let about = rank_domain(rank);
        let o =
            Observation { at: scene.view.now, about, incarnation: None, generation: None, signal: Signal::Heartbeat };
        scene.observe(detector, o)
    };
    beat(&scene, &mut detector, 0);
    beat(&scene, &mut detector, 1);
    scene.pass(9_000);
    beat(&scene, &mut detector, 1);
    scene.pass(1_000);
    let ask = question(&scene.expire(&mut detector));
    let found = scene.answer(&mut detector, &ask, 0, state('S'));
    assert_eq!(fault(&found).incarnation(), Some(Incarnation(2)));
}

#[test]
fn a_service_is_watched_like_a_rank() {
    let role = Role::Service(Name::new("scheduler"));
    let (mut scene, mut detector) = (Scene::of(2), SilenceDetector::default());
    let service = scene.view.procs[&Role::Rank(Rank(0))].clone();
    scene.view.procs.insert(role.clone(), service);
    let about = Domain::Process(role);
    let told = |scene: &Scene, signal| Observation {
        at: scene.view.now,
        about: about.clone(),
        incarnation: Some(Incarnation(1)),
        generation: None,
        signal,
    };
    assert!(scene.observe(&mut detector, told(&scene, Signal::Heartbeat)).is_empty());
    let ask = question(&beats(&mut scene, &mut detector, 10_000, &[]));
    assert_eq!(ask.about, std::slice::from_ref(&about));
    let evidence = |ask: Probe, exhibit| {
        let Probe { by, tag, what, .. } = ask;
        Signal::ProbeReply(ProbeReply { by, tag, what, about: about.clone(), result: exhibit }.into())
    };
    let found = scene.observe(&mut detector, told(&scene, evidence(ask, state('T'))));
    assert_eq!(
        (&fault(&found).primary_suspect().domain, fault(&found).primary_suspect().confidence_permille),
        (&about, 1000)
    );
    let found = scene.observe(&mut detector, told(&scene, Signal::Heartbeat));
    assert_eq!(found, [Finding::Clear(about.clone(), FaultClass::Silence)]);
}
