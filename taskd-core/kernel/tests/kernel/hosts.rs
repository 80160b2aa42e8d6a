//! The history of hosts: what it changes, what a job adds to it, and what a replay needs.

use crate::bench::*;
use std::sync::Arc;
use taskd_kernel::detect::FaultClass;
use taskd_kernel::job::*;
use taskd_kernel::kernel::*;
use taskd_kernel::recover::{Action, Restart, TargetReply};
use taskd_kernel::state::*;

const NOON_MS: u64 = 1_782_907_200_000;

fn node(name: &'static str) -> NodeId {
    NodeId(Name::new(name))
}

/// A history in which these hosts had an incident, two days before noon.
fn history(hosts: &[&'static str]) -> HostHistory {
    let mut history = HostHistory::new();
    for host in hosts {
        let at = WallTime::from_unix_ms(NOON_MS - 2 * 24 * 3600 * 1000);
        let (class, job) = (Name::new("device"), Name::new("earlier"));
        history.record(&node(host), HostIncident { at, class, job, incident: IncidentId(7) });
    }
    history
}

fn plugins() -> Plugins {
    Plugins { detectors: vec![exits()], strategies: vec![Box::new(Restart::new())] }
}

/// A job with this history and a launcher with the hosts a, b and c, and the commands of its first start.
fn begun(history: Option<HostHistory>) -> (Bench, Vec<Command>) {
    let mut bench = Bench::with(2, |_| (), plugins());
    if let Some(history) = history {
        bench.give(Input::HostHistory(Box::new(history)));
    }
    bench.give(Input::WallClock { unix_ms: NOON_MS });
    let hosts = ["a", "b", "c"].map(|name| NodeStatus::new(node(name), NodeState::Ready, 1));
    let commands = bench.give(Input::Listed(Listing::new(Revision::default(), Vec::new(), hosts.to_vec())));
    (bench, commands)
}

/// The hosts on which the ranks are ordered to start; `-` if the launcher chooses.
fn ordered(commands: &[Command]) -> Vec<String> {
    let starts = commands.iter().find_map(|command| match &command.effect {
        Effect::Act(Action::Start { batch, .. }) => Some(&batch.starts),
        _ => None,
    });
    let place = |order: &StartOrder| match &order.place {
        Place::On(host) => host.0.to_string(),
        _ => "-".into(),
    };
    starts.expect("a start").iter().map(place).collect()
}

/// Lets the first world run on the hosts b and c.
fn run_on_b_and_c(bench: &mut Bench, commands: &[Command]) {
    let id = start_of(commands).expect("the first start").0;
    let results = (0..2).map(|rank| (rank_domain(rank), Ok(TargetReply::Accepted))).collect();
    bench.give(Input::Answered { id, results });
    bench.set_phase_on("b", 0, Phase::Running);
    bench.set_phase_on("c", 1, Phase::Running);
}

/// Lets the first world run on the hosts b and c, and rank 0 on b be killed.
fn killed_on_b(bench: &mut Bench, commands: &[Command]) {
    run_on_b_and_c(bench, commands);
    bench.now = 3_600_000 * MS;
    bench.set_phase_on("b", 0, killed());
}

fn recorded(kernel: &Kernel) -> Vec<(NodeId, HostIncident)> {
    kernel.recorded_host_incidents(0).cloned().collect()
}

fn incident_on_b() -> (NodeId, HostIncident) {
    let at = WallTime::from_unix_ms(NOON_MS + 3_600_020); // an hour, and the window in which faults are gathered
    (node("b"), HostIncident { at, class: Name::new("exit"), job: Name::new("test"), incident: IncidentId(1) })
}

#[test]
fn a_job_starts_on_the_hosts_without_incidents_and_says_why() {
    let (_, commands) = begun(Some(history(&["a"])));
    assert_eq!(ordered(&commands), ["b", "c"]);
    let noted = events(&commands).into_iter().find_map(|event| match event {
        Event::Noted { about, clue } => Some((about.clone(), clue.text.clone())),
        _ => None,
    });
    let text = "passed over: a: 1 incident in 14 days, last: device, 2 days ago";
    assert_eq!(noted, Some((Domain::Node(node("a")), text.to_owned())));
}

#[test]
fn a_history_that_tells_no_hosts_apart_changes_no_command() {
    let (_, plain) = begun(None);
    assert_eq!(ordered(&plain), ["-", "-"]);
    for equal in [HostHistory::new(), history(&["a", "b", "c"]), history(&["elsewhere"])] {
        assert_eq!(begun(Some(equal)).1, plain);
    }
}

#[test]
fn a_decided_incident_is_recorded_once_and_never_without_a_history() {
    let (mut bench, commands) = begun(Some(history(&["a"])));
    killed_on_b(&mut bench, &commands);
    assert_eq!(recorded(&bench.kernel), [], "nothing is decided yet");
    let commands = bench.at(3_600_020);
    assert!(decisions(&commands) == 1 && recorded(&bench.kernel) == [incident_on_b()], "{:?}", recorded(&bench.kernel));
    bench.at(3_700_000); // the stop has timed out, and the incident is decided again
    assert!(bench.kernel.report().incidents[0].class == FaultClass::Exit);
    assert_eq!(recorded(&bench.kernel).len(), 1);
    assert_eq!(bench.kernel.recorded_host_incidents(1).count(), 0);

    let (mut plain, commands) = begun(None);
    killed_on_b(&mut plain, &commands);
    plain.at(3_600_020);
    assert_eq!(recorded(&plain.kernel), []);
}

fn decisions(commands: &[Command]) -> usize {
    events(commands).iter().filter(|event| matches!(event, Event::Decided(_))).count()
}

#[test]
fn a_fault_on_a_host_with_incidents_carries_its_history() {
    let (mut bench, commands) = begun(Some(history(&["a", "b"])));
    run_on_b_and_c(&mut bench, &commands);
    let found = |commands: Vec<Command>| -> Vec<String> {
        let of = |event: &Event| match event {
            Event::Found { fault, .. } => fault.evidence.iter().map(|clue| clue.text.clone()).collect(),
            _ => Vec::new(),
        };
        events(&commands).into_iter().flat_map(of).collect()
    };
    let on_c = found(bench.set_phase_on("c", 1, killed()));
    let on_b = found(bench.set_phase_on("b", 0, killed()));
    assert_eq!((on_c.len(), on_b.len()), (1, 2), "{on_c:?} {on_b:?}");
    assert_eq!(on_b[1], "node b had 1 of the last 2 incidents of all hosts in 14 days (device 1)");
}

#[test]
fn a_later_supervisor_knows_what_was_recorded_and_records_it_no_more() {
    let (mut bench, commands) = begun(Some(history(&["a"])));
    killed_on_b(&mut bench, &commands);
    bench.at(3_600_020);
    let snapshot = bench.kernel.snapshot();
    let (mut kernel, _) = Kernel::restore(plugins(), &snapshot).map_err(|(error, _)| error).unwrap();
    assert_eq!(recorded(&kernel), [incident_on_b()]);
    let start = Start { spec: Arc::clone(&kernel.view().spec), trace: None, rendezvous_service: None, resume: None };
    let now = JobTime::from_nanos(3_600_021 * MS);
    kernel.step(now, &Input::Start(Box::new(start)));
    kernel.step(now, &Input::HostHistory(Box::new(history(&["a"])))); // the file lacks what was recorded last
    let known = kernel.view().host_history.as_ref().expect("it was given");
    assert!(known.covers(&node("b"), &incident_on_b().1) && known.len() == 2);
    kernel.step(JobTime::from_nanos(3_800_000 * MS), &Input::Deadline);
    assert_eq!(recorded(&kernel).len(), 1);
}

#[test]
fn the_same_inputs_give_the_same_commands_and_records() {
    let run = || {
        let (mut bench, mut commands) = begun(Some(history(&["a"])));
        killed_on_b(&mut bench, &commands.clone());
        commands.extend(bench.at(3_600_020));
        commands.extend(bench.at(3_700_000));
        (commands, recorded(&bench.kernel))
    };
    assert_eq!(run(), run());
}
