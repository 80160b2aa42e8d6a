//! Which strategies are allowed: by name, by the master switches, and what else a job says of its recovery.

use super::{ALL, WHOLE, allowed, allowed_in, configured, names, noted, sources, spec, warned};
use std::collections::BTreeMap;
use std::time::Duration;
use taskd_core::detect;
use taskd_core::job::{BudgetSpec, JobSpec, Name, Permission};
use taskd_core::recover;
use taskd_hw_ascend::mindcluster::{Sources, WarningKind};

#[test]
fn a_job_that_sets_nothing_has_every_strategy_and_stays_as_it_is() {
    let configured = sources(&spec()).environment([("PATH", "/bin")]).configured();
    let mut job = spec();
    configured.apply(&mut job);
    assert_eq!((job, allowed(&configured)), (spec(), ALL.map(String::from).into()));
    assert_eq!(configured.summary(), "every strategy is allowed: none is named");
    assert_eq!(configured.warnings(), []);
}

#[test]
fn settings_unrelated_to_recovery_leave_all_strategies_allowed() {
    for setting in
        [("TASKD_PROCESS_ENABLE", "on"), ("HCCL_OP_RETRY_ENABLE", "L1:1"), ("HCCL_OP_RETRY_PARAMS", "MaxCnt:2")]
    {
        assert_eq!(allowed(&configured(&[setting])), ALL, "{setting:?}");
    }
}

#[test]
fn strategies_are_allowed_in_every_combination() {
    let asked = ["retry", "recover-in-place", "recover", "dump", "exit"];
    for combination in 0_u32..1 << asked.len() {
        let picked: Vec<&str> =
            (0..).zip(asked).filter(|(bit, _)| combination >> bit & 1 == 1).map(|(_, name)| name).collect();
        let configured = configured(&[("recover-strategy", &picked.join(", "))]);
        let is_picked = |name: &&str| match *name {
            "restart" | "exit" => true,
            "dump-exit" => picked.contains(&"dump"),
            name => picked.contains(&name),
        };
        let expected: Vec<&str> = ALL.into_iter().filter(|name| is_picked(name)).collect();
        assert_eq!(allowed(&configured), expected, "{picked:?}");
    }
}

#[test]
fn elastic_training_is_shrink_and_grow() {
    let shrink = |name: &'static str| -> Box<dyn recover::RecoveryStrategy> { Box::new(super::ladder::Named(name, 1)) };
    let strategies = vec![shrink("retry"), shrink("shrink"), shrink("grow"), shrink("restart")];
    let forbidden = |list: &str| {
        let configured = Sources::of(&noted(&[("recover-strategy", list)]), &strategies).configured();
        let names = names(&strategies);
        names
            .into_iter()
            .filter(|name| configured.forbids(name).is_some())
            .map(|name| name.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(forbidden("elastic-training"), ["retry"]);
    assert_eq!(forbidden("downgrade"), ["retry", "grow"]);
    assert_eq!(forbidden("upgrade"), ["retry", "shrink"]);
    assert_eq!(forbidden("shrink"), ["retry", "grow"], "by the name that it has here");
    assert_eq!(forbidden("retry"), ["shrink", "grow"]);
}

/// The permissions of the usual ladder, as the start line says them.
fn line(job: &JobSpec, sources: Sources) -> String {
    let mut job = job.clone();
    sources.configured().apply(&mut job);
    job.policy.permissions(&names(&recover::defaults()), &BTreeMap::new())
}

#[test]
fn master_switch_off_allows_only_restarts_and_is_logged_at_start() {
    for (key, value, expected) in [
        ("process-recover-enable", "off", "process-recover-enable is \"off\""),
        ("process-recover-enable", "pause", "process-recover-enable is \"pause\""),
        ("process-recover-enable", "ON", "process-recover-enable is \"ON\""),
        ("process-recover-enable", "", "process-recover-enable is \"\""),
        ("PROCESS_RECOVER", "off", "PROCESS_RECOVER is \"off\""),
        ("PROCESS_RECOVER", "true", "PROCESS_RECOVER is \"true\""),
        ("TASKD_PROCESS_ENABLE", "off", "TASKD_PROCESS_ENABLE is \"off\""),
    ] {
        for others in [&[][..], &[("recover-strategy", "retry,recover,dump")], &[("fault-scheduling", "force")]] {
            let job = noted(others);
            let with = || sources(&job).environment([(key, value)]);
            let configured = with().configured();
            assert_eq!(allowed_in(&job, &configured), WHOLE, "{key}={value} {others:?}");
            assert!(configured.restarts_only());
            assert_eq!(configured.summary(), format!("whole restarts only: {expected} in the environment"));
            let expected = format!(
                "allowed: restart, exit; not allowed: retry, recover-in-place, recover, shrink, grow, dump, dump-exit (whole restarts \
                 only: {expected} in the environment)"
            );
            assert_eq!(line(&job, with()), expected);
        }
    }
}

#[test]
fn summary_with_several_switches_off_names_all_of_them() {
    let job = noted(&[("process-recover-enable", "pause")]);
    let configured =
        sources(&job).environment([("TASKD_PROCESS_ENABLE", "off"), ("PROCESS_RECOVER", "on")]).configured();
    assert_eq!(
        configured.summary(),
        "whole restarts only: process-recover-enable is \"pause\" in the job's specification (annotations); \
         TASKD_PROCESS_ENABLE is \"off\" in the environment"
    );
}

#[test]
fn a_job_of_mindcluster_s_that_turns_nothing_on_has_whole_restarts_only() {
    for setting in [
        ("fault-scheduling", "grace"),
        ("fault-retry-times", "3"),
        ("pod-rescheduling", "on"),
        ("max_restarts", "3"),
        ("monitor_interval", "5"),
        ("ELASTIC_PROCESS_RECOVER_ENABLE", "1"),
        ("HCCL_ASYNC_ERROR_HANDLING", "0"),
    ] {
        let configured_so = configured(&[setting]);
        assert_eq!(allowed(&configured_so), WHOLE, "{setting:?}");
        let (key, value) = setting;
        let expected = format!(
            "whole restarts only: process-recover-enable is not set, but {key} is \"{value}\" in the job's \
             specification (annotations)"
        );
        assert_eq!(configured_so.summary(), expected);
        for on in ["process-recover-enable", "PROCESS_RECOVER"] {
            assert_eq!(allowed(&configured(&[setting, (on, "on")])), ALL, "{setting:?} {on}");
        }
        let names = configured(&[setting, ("recover-strategy", "retry")]);
        assert_eq!(allowed(&names), ["retry", "restart", "exit"], "who names strategies has turned them on");
    }
}

#[test]
fn script_variables_allow_strategies_if_no_annotation_does() {
    let tft = ("MS_ENABLE_TFT", "{TTP:1, HCCE:1}");
    assert_eq!(allowed(&configured(&[tft])), ["retry", "dump", "restart", "dump-exit", "exit"]);
    assert_eq!(
        allowed(&configured(&[("MS_ENABLE_TFT", "{ARF:1}")])),
        ["recover", "dump", "restart", "dump-exit", "exit"]
    );
    assert_eq!(allowed(&configured(&[("MS_ENABLE_TFT", "{RSC:1}")])), WHOLE);
    assert_eq!(
        allowed(&configured(&[("HIGH_AVAILABILITY", "recover,retry")])),
        ["retry", "recover", "restart", "exit"]
    );
    let in_place = configured(&[("HIGH_AVAILABILITY", "recover"), ("ENABLE_RESTART_FAULT_PROCESS", "on")]);
    assert_eq!(allowed(&in_place), ["recover-in-place", "recover", "restart", "exit"]);
    assert_eq!(allowed(&configured(&[tft, ("recover-strategy", "recover")])), ["recover", "restart", "exit"]);
    let reason = configured(&[tft]);
    let reason = reason.forbids(&Name::new("recover")).unwrap();
    assert_eq!(reason, "MS_ENABLE_TFT is \"{TTP:1, HCCE:1}\" in the job's specification (annotations)");
}

#[test]
fn without_fault_scheduling_nothing_starts_the_whole_job_again() {
    let off = ("fault-scheduling", "off");
    assert_eq!(allowed(&configured(&[off, ("recover-strategy", "retry,dump")])), ["retry", "dump-exit", "exit"]);
    let only = configured(&[off]);
    assert_eq!(allowed(&only), ["exit"]);
    let reason = only.forbids(&Name::new("restart")).unwrap();
    assert!(reason.starts_with("the whole job is not restarted: fault-scheduling is \"off\""), "{reason}");
}

#[test]
fn spec_permissions_override_named_strategies_but_not_switches() {
    let mut job = noted(&[("recover-strategy", "dump")]);
    job.policy.strategies.insert(Name::new("retry"), Permission::Ask);
    job.policy.strategies.insert(Name::new("dump"), Permission::Never);
    let mut named = job.clone();
    sources(&job).configured().apply(&mut named);
    let permission = |job: &JobSpec, name| job.policy.permission(&Name::new(name));
    assert_eq!(permission(&named, "retry"), Permission::Ask, "nobody else names it");
    assert_eq!(permission(&named, "dump"), Permission::Never, "a name in a list does not undo it");
    assert_eq!(permission(&named, "recover"), Permission::Never);
    let mut off = job.clone();
    sources(&job).environment([("PROCESS_RECOVER", "off")]).configured().apply(&mut off);
    assert_eq!(permission(&off, "retry"), Permission::Never);
}

#[test]
fn a_runtime_can_be_built_with_fewer_strategies_than_a_job_knows_of() {
    use taskd_core::testing::doubles::{FakeLauncher, FakeProgram};
    let strategies = || -> Vec<Box<dyn recover::RecoveryStrategy>> {
        vec![Box::new(recover::Restart::new()), Box::new(recover::ExitStrategy::new())]
    };
    let mut job = JobSpec::new("job", 1, FakeProgram::Runs.spec()).with_annotation("recover-strategy", "retry,dump");
    let configured = Sources::of(&job, &strategies()).environment([("PROCESS_RECOVER", "off")]).configured();
    configured.apply(&mut job);
    let builder = taskd_core::runtime::Runtime::builder().job(job).launcher(FakeLauncher::new());
    builder.detectors(configured.detectors()).strategies(strategies()).build().unwrap();
}

#[test]
fn recoveries_are_limited_by_the_smaller_number_and_none_comes_back() {
    let budget = |annotations: &[(&str, &str)]| {
        let mut job = noted(annotations);
        sources(&job).configured().apply(&mut job);
        job.policy.budget
    };
    assert_eq!(budget(&[("max_restarts", "3")]), BudgetSpec::fixed(3));
    assert_eq!(budget(&[("fault-retry-times", "4")]), BudgetSpec::fixed(4));
    assert_eq!(budget(&[("fault-retry-times", "4"), ("max_restarts", "9")]), BudgetSpec::fixed(4));
    assert_eq!(budget(&[("max_restarts", "0")]), BudgetSpec::fixed(32_767), "as MindCluster's torchrun reads it");
    assert_eq!(budget(&[("fault-retry-times", "0")]), BudgetSpec::fixed(0));
    assert_eq!(budget(&[("max_restarts", "many")]), BudgetSpec::default());
    assert_eq!(configured(&[("max_restarts", "3")]).recoveries(), Some(3));
    assert_eq!(configured(&[]).recoveries(), None);
    let mut own = noted(&[("max_restarts", "3")]);
    own.policy.budget.recoveries_max = 7;
    sources(&own).configured().apply(&mut own);
    assert_eq!(own.policy.budget.recoveries_max, 7, "the specification says it in its own terms");
}

#[test]
fn forced_scheduling_stops_without_grace() {
    let grace = |value: &str, own: Option<u64>| {
        let mut job = noted(&[("fault-scheduling", value)]);
        job.policy.termination_grace_period = own.map_or(job.policy.termination_grace_period, Duration::from_secs);
        sources(&job).configured().apply(&mut job);
        job.policy.termination_grace_period.as_secs()
    };
    assert_eq!((grace("force", None), grace("grace", None), grace("force", Some(60))), (0, 10, 60));
}

#[test]
fn detectors_leave_hccl_the_time_for_its_own_retry() {
    let levels = ("HCCL_OP_RETRY_ENABLE", "L0:0, L1:1, L2:1");
    let params = ("HCCL_OP_RETRY_PARAMS", "MaxCnt:10, HoldTime:60000, IntervalTime:60000");
    let configured_so = configured(&[levels, params]);
    let retry = configured_so.operator_retry().unwrap();
    assert_eq!((retry.pauses, retry.levels.len()), (Duration::from_secs(660), 2));
    assert_eq!(configured_so.environment().get(levels.0).map(String::as_str), Some(levels.1), "it is passed on");
    let config = |detectors: &[Box<dyn detect::FaultDetector>]| -> Vec<String> {
        detectors.iter().map(|detector| format!("{}: {}", detector.name(), detector.config())).collect()
    };
    let (usual, patient) = (config(&detect::defaults()), config(&configured_so.detectors()));
    assert_eq!(config(&configured(&[params, ("HCCL_OP_RETRY_ENABLE", "L1:0")]).detectors()), usual, "it is off");
    let differ: Vec<_> = usual.iter().zip(&patient).filter(|(usual, patient)| usual != patient).collect();
    let [(_, stall), (_, hang)] = &differ[..] else { panic!("{differ:?}") };
    assert_eq!(stall.as_str(), "stall: bound_ms=1260000");
    assert!(hang.starts_with("hang: ") && hang.contains("960000"), "{hang}");
    assert_eq!(warned(&configured_so, WarningKind::UnknownValue), Vec::<String>::new());
}
