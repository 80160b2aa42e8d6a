//! The job as a whole: its start, its end, a new supervisor, plugins that fail.

use crate::bench::*;
use std::sync::Arc;
use taskd_kernel::detect::detector_fn;
use taskd_kernel::job::*;
use taskd_kernel::kernel::*;
use taskd_kernel::recover::*;
use taskd_kernel::state::*;
use taskd_kernel::trace::{Fact, Observation, Signal};

#[test]
fn all_ranks_that_end_well_complete_the_job() {
    let mut bench = Bench::new(2, |_| ()).up();
    assert!(finish(&bench.set_phase(0, 1, done())).is_none());
    let commands = bench.set_phase(1, 1, done());
    assert_eq!(finish(&commands), Some((true, "all 2 ranks finished")));
    assert!(bench.kernel.is_over());
    assert_eq!(bench.kernel.deadline(), None);
}

#[test]
fn a_start_that_is_refused_ends_the_job_with_its_reason() {
    let mut bench = Bench::new(1, |_| ());
    let commands = bench.give(Input::Listed(Listing::default()));
    let id = start_of(&commands).expect("the first start").0;
    let why = Failure::Refused("the program \"nope\" does not exist".into());
    let commands = bench.give(Input::Answered { id, results: vec![(rank_domain(0), Err(why))] });
    let (ok, reason) = finish(&commands).expect("nothing runs, so it ends at once");
    assert!(!ok && reason.contains("\"nope\" does not exist"), "{reason}");
}

#[test]
fn a_request_to_stop_stops_everything_within_a_bound() {
    let mut bench = Bench::new(2, |_| ()).up();
    let commands = bench.give(Input::Requested(Request::Stop { reason: "maintenance".into(), grace: None }));
    assert_eq!(stopped(&commands), [ProcId::rank(0, 1), ProcId::rank(1, 1)]);
    bench.set_phase(0, 1, killed());
    let due = bench.kernel.deadline().expect("the stop is bounded");
    bench.now = due.as_nanos();
    let commands = bench.give(Input::Deadline); // rank 1 never answered
    assert_eq!(finish(&commands), Some((false, "stopped: maintenance")));
}

#[test]
fn observations_are_not_taken_before_the_start() {
    let mut kernel = Kernel::new(Plugins { detectors: vec![exits()], strategies: vec![] });
    let o: Observation = Fact::new(Domain::Job, Signal::Heartbeat).into_observation(JobTime::START);
    assert!(kernel.step(JobTime::START, &Input::Observed(vec![o])).is_empty());
    assert_eq!(kernel.deadline(), None);
}

#[test]
fn commands_come_in_the_order_of_their_numbers_and_the_end_is_the_last() {
    let mut bench = Bench::new(1, |p| p.max_attempts = 1);
    let mut all = bench.give(Input::Listed(Listing::default()));
    all.extend(bench.set_phase(0, 1, Phase::Running));
    bench.now = 100 * MS;
    all.extend(bench.set_phase(0, 1, killed()));
    all.extend(bench.give(Input::Requested(Request::Stop { reason: "test".into(), grace: None })));
    assert!(all.windows(2).all(|pair| pair[0].id < pair[1].id));
    assert!(matches!(all.last().map(|c| &c.effect), Some(Effect::Act(Action::Finish { .. }))));
}

#[test]
fn a_kernel_restored_in_the_middle_gives_the_open_commands_again() {
    let plugins = || Plugins { detectors: vec![exits()], strategies: vec![Box::new(Replace)] };
    let mut bench = Bench::with(2, |_| (), plugins()).up();
    bench.now = 100 * MS;
    bench.set_phase(0, 1, killed());
    let (id, procs) = start_of(&bench.at(120)).expect("started");
    let snapshot = bench.kernel.snapshot();
    let spec = Arc::clone(&bench.kernel.view().spec);
    let (kernel, cold) = Kernel::restore(plugins(), &snapshot).expect("same version");
    assert_eq!(cold, [Name::new("exit")], "a closure cannot be saved");
    let mut bench = Bench { kernel, now: 5_000 * MS };
    bench.give(Input::Start(Box::new(Start { spec, trace: None, rendezvous_service: None, resume: None })));
    let instance = Name::new("i");
    let running = ProcStatus::new(ProcId::rank(1, 1), instance, Phase::Running).with_pid(1);
    let listing = Listing::default().with_procs(vec![running]);
    let commands = bench.give(Input::Listed(listing));
    assert_eq!(start_of(&commands), Some((id, procs)), "the order may never have left");
    bench.set_phase(0, 2, Phase::Running);
    assert_eq!(bench.kernel.report().incidents[0].outcome, "recovered by replace");
}

#[test]
fn a_panicking_detector_is_out_of_service_and_nothing_else_happens() {
    let jumpy = detector_fn("jumpy", |o, _, _| assert!(!matches!(o.signal, Signal::Heartbeat), "bug"));
    let plugins = Plugins { detectors: vec![Box::new(jumpy), exits()], strategies: vec![Box::new(Replace)] };
    let mut bench = Bench::with(1, |_| (), plugins).up();
    let beat = Fact::new(rank_domain(0), Signal::Heartbeat).into_observation(JobTime::START);
    bench.give(Input::Observed(vec![beat.clone()]));
    bench.at(100);
    let report = bench.kernel.report();
    assert_eq!(report.incidents[0].domain, Domain::Plugin(Name::new("jumpy")));
    assert!(report.incidents[0].outcome.starts_with("noted"));
    bench.give(Input::Observed(vec![beat]));
    assert_eq!(bench.kernel.report().incidents.len(), 1, "it is not called again");
    bench.now = 200 * MS;
    bench.set_phase(0, 1, killed());
    assert!(start_of(&bench.at(220)).is_some(), "the other detector still works");
}

#[test]
fn a_failing_plugin_does_not_disturb_a_recovery() {
    let mut bench = Bench::new(2, |_| ()).up();
    bench.now = 100 * MS;
    bench.set_phase(0, 1, killed());
    bench.at(120);
    let failed = Request::PluginFailed { plugin: Name::new("nvml"), what: "it panicked".into() };
    let commands = bench.give(Input::Requested(failed));
    assert!(start_of(&commands).is_none() && stopped(&commands).is_empty());
    bench.set_phase(0, 2, Phase::Running);
    let report = bench.kernel.report();
    assert_eq!(report.incidents[0].outcome, "recovered by replace");
    assert_eq!(bench.kernel.counts().branches.get(&Branch::Cancelled), None);
}
