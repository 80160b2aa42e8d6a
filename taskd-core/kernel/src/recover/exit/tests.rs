use super::*;
use crate::detect::fixture::{Scene, exception, rank_domain};
use crate::detect::{Damage, Evidence, FaultClass, Suspect};
use crate::job::{IncidentId, JobTime, ProcId};
use crate::recover::{Action, Quorum};
use crate::state::Phase;

fn suspect(rank: u32, confidence_permille: u16) -> Suspect {
    let (domain, class) = (rank_domain(rank), FaultClass::Exit);
    Suspect { domain, class, damage: Damage::PROCESS_GONE, confidence_permille }
}

fn fault(rank: u32, confidence_permille: u16, why: &str) -> Fault {
    let by = Name::new("exit");
    Fault::new(by, JobTime::START, suspect(rank, confidence_permille)).with_evidence(Evidence::text("ended", why))
}

fn reason(faults: Vec<Fault>, attempts: &[(&'static str, &str)]) -> String {
    let attempts = attempts.iter().map(|(name, why)| (Name::new(name), (*why).to_owned())).collect();
    let incident = Incident { id: IncidentId(1), opened: JobTime::START, faults, attempts };
    let proposal = ExitStrategy::new().propose(&incident, &Scene::on(4, &[("a", 4)]).view).expect("it never refuses");
    assert_eq!(proposal.final_reason().as_ref(), Some(&proposal.reason));
    proposal.reason
}

#[test]
fn the_reason_names_the_root_with_its_evidence_first() {
    let faults = vec![fault(0, 100, "a victim"), fault(1, 800, "exit code 1"), fault(2, 1000, "signal 9 (SIGKILL)")];
    let expected = "exit in rank 2 on node a, signal 9 (SIGKILL); also exit in rank 1 on node a; restart failed: stage \
                    start: rank 1: no answer in time";
    assert_eq!(reason(faults, &[("restart", "stage start: rank 1: no answer in time")]), expected);
}

#[test]
fn an_exception_of_the_program_is_named_once_in_the_reason() {
    let with_error = fault(3, 900, "exit code 1").with_error(Some(Box::new(exception("bad batch"))));
    assert_eq!(
        reason(vec![with_error.clone()], &[]),
        "exit in rank 3 on node a, exit code 1, python ValueError: bad batch"
    );
    let told = with_error.with_evidence(Evidence::text("error", "python ValueError: bad batch"));
    assert_eq!(reason(vec![told], &[]).matches("bad batch").count(), 1);
}

#[test]
fn victims_alone_explain_nothing_and_many_causes_are_counted() {
    let victim = reason(vec![fault(0, 100, "connection closed by peer")], &[]);
    assert_eq!(victim, "exit in rank 0 on node a, connection closed by peer; the first failure is not known");
    let many = reason((0..4).chain(0..4).map(|r| fault(r, 1000, "")).collect(), &[]);
    assert!(many.starts_with("exit in rank 0 on node a; also exit in rank 1"), "{many}");
    assert!(many.ends_with("; and 3 more"), "{many}");
    assert_eq!(reason(vec![], &[]), "no failure is known");
}

#[test]
fn exit_stops_all_running_processes_and_always_ends_the_job() {
    let mut scene = Scene::of(2);
    scene.proc(0).phase = Phase::Exited(Box::new(crate::job::Exit::new(crate::job::Termination::Unknown)));
    let faults = vec![fault(0, 1000, "")];
    let incident = Incident { id: IncidentId(1), opened: JobTime::START, faults, attempts: Vec::new() };
    let proposal = ExitStrategy::new().propose(&incident, &scene.view).expect("it never refuses");
    let grace = scene.view.spec.policy.termination_grace_period;
    assert_eq!(proposal.stages[0].actions, [Action::Stop { procs: vec![ProcId::rank(1, 1)], grace, exact: true }]);
    assert_eq!(proposal.stages[0].quorum, Quorum::AtLeast(0));
    assert!(matches!(&proposal.stages[1].actions[..], [Action::Finish { ok: false, .. }]));
    assert!(proposal.cost.ends_job && proposal.counted == Counted::No);
}
