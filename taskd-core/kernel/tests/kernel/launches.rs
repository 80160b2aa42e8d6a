//! Starts and stops that come late, twice, in part, or not at all.

use crate::bench::*;
use std::sync::Arc;
use taskd_kernel::job::*;
use taskd_kernel::kernel::*;
use taskd_kernel::recover::*;
use taskd_kernel::state::*;

#[test]
fn a_start_that_fails_in_part_leaves_the_rest_to_its_own_answer() {
    let mut bench = Bench::new(2, |_| ());
    let commands = bench.give(Input::Listed(Listing::default()));
    let id = start_of(&commands).expect("the first start").0;
    bench.give(Input::Answered { id, results: vec![(rank_domain(1), Ok(TargetReply::Accepted))] });
    let why = Failure::Unreachable("the host does not answer".into());
    bench.give(Input::Answered { id, results: vec![(rank_domain(0), Err(why))] });
    let procs = &bench.kernel.view().procs;
    assert!(procs[&Role::Rank(Rank(0))].phase.is_exited(), "it was never there");
    assert!(!procs[&Role::Rank(Rank(1))].phase.is_over());
}

#[test]
fn a_start_that_is_accepted_after_its_stop_is_stopped_again() {
    let mut bench = Bench::new(2, |_| ()).up();
    bench.now = 100 * MS;
    bench.set_phase(0, 1, killed());
    let (slow, _) = start_of(&bench.at(120)).expect("the launcher takes its time with this start");
    bench.give(asked_to_look_into(0, 2));
    assert_eq!(stopped(&bench.at(140)), [ProcId::rank(0, 2)], "the launcher passes over it: it is not there yet");
    let commands = bench.give(Input::Answered { id: slow, results: accepted(0) });
    assert_eq!(stopped(&commands), [ProcId::rank(0, 2)]);
}

#[test]
fn an_answer_after_its_time_is_counted_as_such() {
    let mut bench = Bench::new(1, |p| p.max_attempts = 1).up();
    bench.now = 100 * MS;
    bench.set_phase(0, 1, killed());
    let (id, _) = start_of(&bench.at(120)).expect("started");
    bench.at(1120); // the stage's time is over
    bench.give(Input::Answered { id, results: accepted(0) });
    assert_eq!((count(&bench, DropReason::TimedOutAnswer), count(&bench, DropReason::LateAnswer)), (1, 0));
}

#[test]
fn a_sleep_of_the_supervisor_extends_the_time_of_a_start() {
    let mut bench = Bench::new(1, |p| p.max_attempts = 1).up();
    bench.now = 100 * MS;
    bench.set_phase(0, 1, killed());
    let (id, _) = start_of(&bench.at(120)).expect("started");
    bench.give(Input::Slept { nanos: 500_000_000 });
    bench.at(1120); // without the sleep the stage's time would be over
    bench.give(Input::Answered { id, results: accepted(0) });
    assert_eq!(count(&bench, DropReason::TimedOutAnswer), 0);
}

#[test]
fn a_second_exit_report_of_a_process_is_dropped() {
    let mut bench = Bench::new(2, |_| ()).up();
    bench.set_phase(0, 1, killed());
    let commands = bench.set_phase(0, 1, Phase::Exited(Box::new(Exit::new(Termination::Unknown))));
    assert!(events(&commands).is_empty());
    assert_eq!(count(&bench, DropReason::RepeatedChange), 1);
}

#[test]
fn a_late_process_of_a_lost_supervisor_is_stopped() {
    let plugins = || Plugins { detectors: vec![exits()], strategies: vec![Box::new(Replace)] };
    let mut bench = Bench::with(2, |_| (), plugins()).up();
    bench.now = 100 * MS;
    bench.set_phase(0, 1, killed());
    bench.at(120);
    bench.give(asked_to_look_into(0, 2));
    let snapshot = bench.kernel.snapshot();
    let spec = Arc::clone(&bench.kernel.view().spec);
    let (kernel, _) = Kernel::restore(plugins(), &snapshot).expect("same version");
    let mut bench = Bench { kernel, now: 5_000 * MS };
    bench.give(Input::Start(Box::new(Start { spec, trace: None, rendezvous_service: None, resume: None })));
    let instance = Name::new("i");
    let running = ProcStatus::new(ProcId::rank(1, 1), instance, Phase::Running).with_pid(1);
    let commands = bench.give(Input::Listed(Listing::default().with_procs(vec![running])));
    let (_, started) = start_of(&commands).expect("rank 0's second process was never there: no stop is waited for");
    assert!(started.contains(&ProcId::rank(0, 3)), "{started:?}");
    let commands = bench.set_phase(0, 2, Phase::Running);
    assert_eq!(stopped(&commands), [ProcId::rank(0, 2)]);
}

#[test]
fn a_process_lost_between_supervisors_is_not_ordered_again() {
    let mut bench = Bench::new(3, |_| ());
    bench.give(Input::Listed(Listing::default()));
    bench.set_phase(0, 1, Phase::Pending("accepted".into()));
    let plugins = Plugins { detectors: vec![exits()], strategies: vec![Box::new(Replace)] };
    bench.kernel = Kernel::restore(plugins, &bench.kernel.snapshot()).expect("the same version").0;
    let spec = Arc::clone(&bench.kernel.view().spec);
    bench.give(Input::Start(Box::new(Start { spec, trace: None, rendezvous_service: None, resume: None })));
    let again = bench.give(Input::Listed(Listing::default()));
    let (_, ordered) = start_of(&again).expect("the others may never have reached the launcher");
    assert_eq!(ordered, [ProcId::rank(1, 1), ProcId::rank(2, 1)], "rank 0's process was there and is gone");
}

#[test]
fn a_refusal_of_what_runs_already_is_void() {
    let mut bench = Bench::new(2, |_| {}).up();
    bench.set_phase(1, 1, killed());
    let (id, started) = start_of(&bench.at(1_000)).expect("a replacement");
    assert_eq!(started, [ProcId::rank(1, 2)]);
    bench.set_phase(1, 2, Phase::Pending("queued".into()));
    let snapshot = bench.kernel.snapshot();
    let plugins = Plugins { detectors: vec![exits()], strategies: vec![Box::new(Replace)] };
    bench.kernel = Kernel::restore(plugins, &snapshot).expect("its own snapshot").0;
    let spec = Arc::clone(&bench.kernel.view().spec);
    bench.give(Input::Start(Box::new(Start { spec, trace: None, rendezvous_service: None, resume: None })));
    let running = |rank, incarnation, phase| ProcStatus::new(ProcId::rank(rank, incarnation), "i", phase);
    let procs = vec![running(0, 1, Phase::Running), running(1, 2, Phase::Pending("queued".into()))];
    let again = bench.give(Input::Listed(Listing::default().with_procs(procs)));
    assert_eq!(
        start_of(&again).map(|s| s.0),
        Some(id),
        "the order is repeated: it is unknown whether it was carried out"
    );
    let refused = vec![(rank_domain(1), Err(Failure::Unreachable("connection refused".into())))];
    let commands = bench.give(Input::Answered { id, results: refused });
    assert!(commands.is_empty(), "{commands:?}");
    bench.set_phase(1, 2, Phase::Running);
    assert_eq!(taken(&bench, Branch::Recovered), 1);
    assert_eq!(count(&bench, DropReason::RepeatedAnswer), 1);
}

#[test]
fn a_process_started_after_its_stop_gets_the_full_stop_time() {
    let mut bench = Bench::new(2, |_| {}).up();
    bench.set_phase(1, 1, killed());
    let (id, _) = start_of(&bench.at(1_000)).expect("a replacement");
    bench.give(asked_to_look_into(1, 2)); // its plan is void, and the next one begins with its stop
    let stop = bench.at(1_900);
    assert_eq!(stopped(&stop), [ProcId::rank(1, 2)]);
    bench.now = 2_800 * MS;
    let again = bench.give(Input::Answered { id, results: accepted(1) });
    assert_eq!(stopped(&again), [ProcId::rank(1, 2)], "its stop was quicker than its start");
    assert!(bench.at(2_950).is_empty(), "the stage has 1 s, which is not over for a stop that begins now");
    bench.set_phase(1, 2, killed());
    assert_eq!(taken(&bench, Branch::StageTimedOut), 0);
}
