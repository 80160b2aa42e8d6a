//! The environment of the ranks, strategy by strategy.

use super::{configured, noted, sources, spec};
use std::collections::BTreeMap;
use taskd_core::job::WorkerSpec;
use taskd_hw_ascend::mindcluster::{Framework, WarningKind};

const COMMON: [(&str, &str); 2] = [("ELASTIC_PROCESS_RECOVER_ENABLE", "1"), ("PROCESS_RECOVER", "on")];
const PYTORCH: (&str, &str) = ("HCCL_ASYNC_ERROR_HANDLING", "0");
const MINDSPORE: [(&str, &str); 2] = [("MINDIO_FOR_MINDSPORE", "1"), ("MS_ENABLE_THM", "{HCCL_WATCHDOG:0}")];

fn environment(framework: Framework, annotations: &[(&str, &str)]) -> BTreeMap<String, String> {
    sources(&noted(annotations)).framework(framework).configured().environment().clone()
}

fn map(variables: &[(&str, &str)]) -> BTreeMap<String, String> {
    variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

#[test]
fn each_strategy_tells_ranks_what_the_operator_does() {
    for (strategy, high_availability, tft) in [
        ("recover", "recover", "{ARF:1}"),
        ("exit", "recover", "{ARF:1}"),
        ("retry", "retry", "{HCCE:1,UCE:1}"),
        ("recover-in-place", "recover", "{ARF:1}"),
        ("dump", "dump", "{TTP:1}"),
    ] {
        let mut common = COMMON.to_vec();
        if strategy == "recover-in-place" {
            common.push(("ENABLE_RESTART_FAULT_PROCESS", "on"));
        }
        let named = [("recover-strategy", strategy)];
        let torch = [&common[..], &[PYTORCH, ("HIGH_AVAILABILITY", high_availability)]].concat();
        assert_eq!(environment(Framework::PyTorch, &named), map(&torch), "{strategy}");
        let mindspore = [&common[..], &MINDSPORE, &[("MS_ENABLE_TFT", tft)]].concat();
        assert_eq!(environment(Framework::MindSpore, &named), map(&mindspore), "{strategy}");
    }
    let elastic = environment(Framework::PyTorch, &[("recover-strategy", "elastic-training")]);
    assert_eq!(elastic, map(&[("PROCESS_RECOVER", "on"), PYTORCH, ("HIGH_AVAILABILITY", "elastic-training")]));
}

#[test]
fn several_strategies_are_one_list_in_order_each_once() {
    let named = [("recover-strategy", "retry, recover,recover-in-place,dump,exit,elastic-training")];
    let torch = environment(Framework::PyTorch, &named);
    assert_eq!(torch["HIGH_AVAILABILITY"], "dump,elastic-training,recover,retry");
    assert_eq!(environment(Framework::MindSpore, &named)["MS_ENABLE_TFT"], "{ARF:1,HCCE:1,TTP:1,UCE:1}");
}

#[test]
fn pod_rescheduling_is_passed_to_mindspore_only() {
    let named = [("recover-strategy", "dump"), ("pod-rescheduling", "on")];
    assert_eq!(environment(Framework::MindSpore, &named)["MS_ENABLE_TFT"], "{RSC:1,TTP:1}");
    let alone = [("pod-rescheduling", "on")];
    assert_eq!(environment(Framework::MindSpore, &alone), map(&[("MS_ENABLE_TFT", "{RSC:1}")]));
    assert_eq!(environment(Framework::PyTorch, &alone), BTreeMap::new());
}

#[test]
fn environment_set_by_the_job_is_preserved_and_lists_are_merged() {
    let said = [
        ("recover-strategy", "retry"),
        ("HIGH_AVAILABILITY", "dump, retry"),
        ("HCCL_ASYNC_ERROR_HANDLING", "2"),
        ("MS_ENABLE_TFT", "{TTP:1, UCE:0}"),
    ];
    let torch = environment(Framework::PyTorch, &said);
    assert_eq!((&*torch["HIGH_AVAILABILITY"], &*torch["HCCL_ASYNC_ERROR_HANDLING"]), ("dump,retry", "2"));
    let configured = sources(&noted(&said)).framework(Framework::MindSpore).configured();
    assert_eq!(configured.environment()["MS_ENABLE_TFT"], "{HCCE:1,TTP:1,UCE:0}");
    let hinders = super::warned(&configured, WarningKind::Hinders);
    assert!(hinders.iter().any(|text| text.ends_with("retry needs UCE:1, and fails without it")), "{hinders:?}");
}

#[test]
fn a_list_that_names_the_strategies_is_passed_on_as_it_stands() {
    let tft = environment(Framework::MindSpore, &[("MS_ENABLE_TFT", "{TTP:1, HCCE:1}")]);
    assert_eq!(tft, map(&[&COMMON[..], &MINDSPORE, &[("MS_ENABLE_TFT", "{TTP:1, HCCE:1}")]].concat()));
    let torch = environment(Framework::PyTorch, &[("HIGH_AVAILABILITY", "retry, dump")]);
    assert_eq!(torch["HIGH_AVAILABILITY"], "retry, dump");
}

#[test]
fn environment_without_strategies_or_with_a_switch_off_is_empty() {
    for framework in [Framework::PyTorch, Framework::MindSpore] {
        assert_eq!(environment(framework, &[]), BTreeMap::new());
        assert_eq!(environment(framework, &[("process-recover-enable", "on")]), BTreeMap::new());
        let off = [("recover-strategy", "retry,dump"), ("process-recover-enable", "pause")];
        assert_eq!(environment(framework, &off), BTreeMap::new());
    }
}

#[test]
fn framework_is_read_from_the_label_unless_the_launcher_sets_it() {
    let of = |label: &str| {
        let yaml = format!("metadata: {{labels: {{framework: {label}}}, annotations: {{recover-strategy: dump}}}}");
        sources(&spec()).job_text("job.yaml", &yaml).unwrap()
    };
    assert!(of("mindspore").configured().environment().contains_key("MS_ENABLE_TFT"));
    assert!(of("pytorch").configured().environment().contains_key("HIGH_AVAILABILITY"));
    assert!(of("mindspore").framework(Framework::PyTorch).configured().environment().contains_key("HIGH_AVAILABILITY"));
    let unknown = configured(&[("recover-strategy", "dump")]);
    assert_eq!(unknown.environment(), &map(&COMMON));
    let hinders = super::warned(&unknown, WarningKind::Hinders);
    assert!(hinders[0].starts_with("the job names strategies and no framework"), "{hinders:?}");
}

#[test]
fn ranks_and_services_find_it_and_the_arguments_are_passed_on_untouched() {
    let argv = ["python", "train.py", "--enable-high-availability", "--enable-hbmfault-repair"];
    let mut job = taskd_core::job::JobSpec::new("job", 2, WorkerSpec::new(argv).with_env("MINE", "1"))
        .with_service("scheduler", WorkerSpec::new(["scheduler"]))
        .with_annotation("recover-strategy", "dump,retry");
    let before = job.clone();
    sources(&job).framework(Framework::MindSpore).configured().apply(&mut job);
    assert_eq!((&job.worker.argv, &*job.worker.env["MINE"]), (&before.worker.argv, "1"));
    let service = job.services.values().next().unwrap();
    for program in [&job.worker, service] {
        assert_eq!(program.env["MS_ENABLE_TFT"], "{HCCE:1,TTP:1,UCE:1}");
    }
    assert_eq!(job.problems(), []);
}
