//! Allowed strategies in the kernel: each failure leads to the next dearer one, and every step says why.

use super::noted;
use std::sync::Arc;
use std::time::Duration;
use taskd_core::detect;
use taskd_core::job::*;
use taskd_core::kernel::Effect;
use taskd_core::kernel::{Decision, Event, Input, Kernel, Plugins, Start};
use taskd_core::launch::{Change, Listing, Phase, ProcStatus};
use taskd_core::recover::{
    Action, Advance, Cost, Incident, PlanExecution, Proposal, RecoveryStrategy, RefusalError, Stage, TargetReply,
};
use taskd_core::state::View;
use taskd_core::trace::{Fact, Probe, Signal};
use taskd_hw_ascend::mindcluster::Sources;

/// A strategy with a name and a cost in seconds, which never recovers a job.
#[derive(Debug)]
pub(crate) struct Named(pub(crate) &'static str, pub(crate) u64);

impl RecoveryStrategy for Named {
    fn name(&self) -> Name {
        Name::new(self.0)
    }
    fn propose(&self, _: &Incident, _: &View) -> Result<Proposal, RefusalError> {
        let (what, within) = (Name::new("anything"), Duration::from_millis(10));
        let ask = Probe::new(self.name(), what, vec![Domain::Job], within).with_tag(1);
        let look = Stage::new("look", Duration::from_secs(1), vec![Action::Collect(ask)]);
        Ok(Proposal::new(
            vec![look.clone(), look],
            vec![Domain::Job],
            Cost::downtime(Duration::from_secs(self.1)),
            Counted::Yes,
            "it might help",
        ))
    }
    fn advance(&self, _: &PlanExecution, _: &View) -> Advance {
        Advance::Fail(format!("{} did not help", self.0))
    }
}

fn strategies() -> Vec<Box<dyn RecoveryStrategy>> {
    let ladder = ["retry", "recover-in-place", "recover", "shrink", "grow", "dump", "restart"];
    let mut strategies: Vec<Box<dyn RecoveryStrategy>> = Vec::new();
    for (name, cost) in ladder.into_iter().zip(1..) {
        strategies.push(Box::new(Named(name, cost)));
    }
    strategies.push(Box::new(taskd_core::recover::ExitStrategy::new()));
    strategies
}

/// A job of one rank, which is killed: what is decided, until the job ends.
fn decisions(mut spec: JobSpec, adjust: impl FnOnce(Sources) -> Sources) -> Vec<Decision> {
    adjust(Sources::of(&spec, &strategies())).configured().apply(&mut spec);
    spec.policy.max_attempts = 1;
    spec.ranks = 1;
    let mut kernel = Kernel::new(Plugins { detectors: detect::defaults(), strategies: strategies() });
    let (proc, mut now, mut decided) = (ProcId::rank(0, 1), JobTime::START, Vec::new());
    let told = |phase| {
        let proc = ProcStatus::new(proc.clone(), "1", phase).with_pid(1);
        Input::Changed(Change::Proc(proc))
    };
    let killed = Exit::new(Termination::Signal { number: 9, core_dumped: false });
    let mut inputs = vec![
        Input::Start(Box::new(Start { spec: Arc::new(spec), trace: None, rendezvous_service: None, resume: None })),
        Input::Listed(Listing::default()),
        told(Phase::Running),
        told(Phase::Exited(Box::new(killed))),
    ];
    inputs.reverse();
    for _ in 0..200 {
        let input = match inputs.pop() {
            Some(input) => input,
            None if kernel.is_over() => return decided,
            None => {
                now = now.max(kernel.deadline().unwrap_or(now));
                Input::Deadline
            }
        };
        for command in kernel.step(now, &input) {
            match command.effect {
                Effect::Publish(event) => {
                    if let Event::Decided(decision) = *event {
                        decided.push(*decision);
                    }
                }
                Effect::Act(Action::Collect(ask)) => {
                    let results = ask.about.into_iter().map(|domain| (domain, Ok(TargetReply::Accepted))).collect();
                    inputs.insert(0, Input::Answered { id: command.id, results });
                }
                _ => {}
            }
        }
    }
    panic!("the job does not end: {decided:?}");
}

fn chosen(decisions: &[Decision]) -> Vec<&str> {
    decisions.iter().filter_map(|decision| decision.chosen.as_ref()).map(|chosen| chosen.strategy.as_str()).collect()
}

fn refusal<'a>(decision: &'a Decision, strategy: &str) -> &'a str {
    let refused = decision.refused.iter().find(|refusal| refusal.strategy == *strategy);
    refused.map_or("", |refusal| refusal.reason.as_str())
}

#[test]
fn job_without_settings_degrades_through_the_whole_ladder() {
    let decided = decisions(noted(&[]), |sources| sources);
    assert_eq!(chosen(&decided), ["retry", "recover-in-place", "recover", "shrink", "grow", "dump", "restart", "exit"]);
}

#[test]
fn strategy_combinations_degrade_in_order_with_reasons() {
    let ladder = ["retry", "recover-in-place", "recover", "elastic-training", "dump"];
    for combination in 0_u32..1 << ladder.len() {
        let picked: Vec<&str> =
            (0..).zip(ladder).filter(|(bit, _)| combination >> bit & 1 == 1).map(|(_, name)| name).collect();
        let list = picked.iter().rev().copied().collect::<Vec<_>>().join(","); // the order in the list is none
        let decided = decisions(noted(&[("recover-strategy", &list)]), |sources| sources);
        let mut expected = Vec::new();
        for name in picked.iter().copied().chain(["restart", "exit"]) {
            if name == "elastic-training" { expected.extend(["shrink", "grow"]) } else { expected.push(name) }
        }
        assert_eq!(chosen(&decided), expected);
        let last = decided.last().unwrap();
        for name in expected.iter().filter(|name| **name != "exit") {
            assert_eq!(refusal(last, name), format!("failed 1 times in this incident, last: {name} did not help"));
        }
        for name in ["retry", "recover-in-place", "recover", "shrink", "grow", "dump"] {
            let allowed = expected.contains(&name);
            let expected = format!(
                "not in the allowed set: recover-strategy is {list:?} in the job's specification (annotations)"
            );
            assert!(allowed || refusal(&decided[0], name) == expected, "{}", refusal(&decided[0], name));
        }
    }
}

#[test]
fn a_switch_that_is_off_stands_in_every_decision() {
    let decided = decisions(noted(&[("recover-strategy", "retry,dump")]), |sources| {
        sources.environment([("PROCESS_RECOVER", "off")])
    });
    assert_eq!(chosen(&decided), ["restart", "exit"]);
    let expected = "not in the allowed set: whole restarts only: PROCESS_RECOVER is \"off\" in the environment";
    assert!(decided.iter().all(|decision| refusal(decision, "retry") == expected), "{decided:?}");
}

/// When a job is first decided on that completes a step and no more, if it is within an hour.
fn blamed_after(mut spec: JobSpec) -> Option<Duration> {
    let configured = Sources::of(&spec, &strategies()).configured();
    spec.ranks = 1;
    let mut kernel = Kernel::new(Plugins { detectors: configured.detectors(), strategies: strategies() });
    let proc = ProcStatus::new(ProcId::rank(0, 1), "1", Phase::Running).with_pid(1);
    let step = Fact::new(Domain::Process(Role::Rank(Rank(0))), Signal::Progress { step: 1 });
    let mut now = JobTime::START;
    let start = Start { spec: Arc::new(spec), trace: None, rendezvous_service: None, resume: None };
    kernel.step(now, &Input::Start(Box::new(start)));
    kernel.step(now, &Input::Listed(Listing::default()));
    kernel.step(now, &Input::Changed(Change::Proc(proc)));
    kernel.step(now, &Input::Observed(vec![step.into_observation(now)]));
    while let Some(due) = kernel.deadline().filter(|due| due.since(JobTime::START) < Duration::from_secs(3600)) {
        now = now.max(due);
        for command in kernel.step(now, &Input::Deadline) {
            if matches!(&command.effect, Effect::Publish(event) if matches!(**event, Event::Decided(_))) {
                return Some(now.since(JobTime::START));
            }
        }
    }
    None
}

#[test]
fn stall_detection_waits_for_hccl_operator_retries() {
    let params = ("HCCL_OP_RETRY_PARAMS", "MaxCnt:10, HoldTime:60000, IntervalTime:60000"); // 660 s of pauses
    let after = |annotations: &[(&str, &str)]| blamed_after(noted(annotations)).expect("it stalls").as_secs();
    assert_eq!(after(&[params]), 600, "it is off: ten minutes without a step are a stall");
    assert_eq!(after(&[("HCCL_OP_RETRY_ENABLE", "L0:0, L1:1, L2:1"), params]), 1_260);
}
