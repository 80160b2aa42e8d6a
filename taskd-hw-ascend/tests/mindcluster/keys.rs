//! Every key in every place, and which place wins.

use super::{sources, spec};
use std::path::PathBuf;
use std::sync::Arc;
use taskd_core::job::JobSpec;
use taskd_hw_ascend::mindcluster::{Configured, Key, Source, Sources, WarningKind};

/// A value that the key has.
fn value(key: Key) -> &'static str {
    match key {
        Key::RecoverStrategy | Key::HighAvailability => "retry,dump",
        Key::FaultScheduling => "grace",
        Key::SubHealthyStrategy => "ignore",
        Key::MsEnableTft => "{TTP:1, HCCE:1}",
        Key::ElasticProcessRecoverEnable => "1",
        Key::HcclAsyncErrorHandling => "0",
        Key::HcclOpRetryEnable => "L0:0, L1:1, L2:1",
        Key::HcclOpRetryParams => "MaxCnt:3, HoldTime:5000, IntervalTime:1000",
        Key::FaultRetryTimes | Key::MaxRestarts => "3",
        Key::MonitorInterval => "5",
        _ => "on",
    }
}

fn in_file(path: &str) -> Source {
    Source::JobFile(Arc::new(PathBuf::from(path)))
}

fn in_downward(path: &str) -> Source {
    Source::Downward(Arc::new(PathBuf::from(path)))
}

fn yaml_of(part: &str, key: Key, value: &str) -> String {
    match part {
        "env" => format!("spec:\n  containers:\n  - env:\n    - name: {key}\n      value: \"{value}\"\n"),
        part => format!("metadata:\n  {part}:\n    {key}: \"{value}\"\n"),
    }
}

/// The key in each place, alone.
fn places(key: Key, value: &str) -> Vec<(Source, Sources)> {
    let annotated = spec().with_annotation(key.name(), value);
    let mut with_env = spec();
    Arc::make_mut(&mut with_env.worker).env.insert(key.to_string(), value.into());
    let plain = || sources(&spec());
    let yaml = |part| plain().job_text("job.yaml", &yaml_of(part, key, value)).unwrap();
    let json = format!("{{\"metadata\": {{\"labels\": {{\"{key}\": \"{value}\"}}}}}}");
    let line = format!("app=\"x\"\n{key}=\"{value}\"\nzone=\"1\"\n");
    vec![
        (Source::JobSpec, sources(&annotated)),
        (Source::JobSpec, sources(&with_env)),
        (in_file("job.yaml"), yaml("labels")),
        (in_file("job.yaml"), yaml("annotations")),
        (in_file("job.yaml"), yaml("env")),
        (in_file("job.json"), plain().job_text("job.json", &json).unwrap()),
        (in_downward("/etc/podinfo/labels"), plain().downward_text("/etc/podinfo/labels", &line).unwrap()),
        (in_downward(key.name()), plain().downward_text(key.name(), &format!("{value}\n")).unwrap()),
        (Source::Environment, plain().environment([("HOME", "/"), (key.name(), value)])),
    ]
}

#[test]
fn every_key_is_read_in_every_place() {
    for key in Key::ALL {
        for (source, sources) in places(key, value(key)) {
            let configured = sources.configured();
            let setting = configured.setting(key).unwrap_or_else(|| panic!("{key} in {source}"));
            assert_eq!((setting.value.as_str(), &setting.source), (value(key), &source), "{key}");
            for other in Key::ALL.into_iter().filter(|other| *other != key) {
                assert_eq!(configured.setting(other), None, "{other}, where only {key} is set");
            }
            let wrong = configured.warnings().iter().find(|warning| warning.kind == WarningKind::UnknownValue);
            assert_eq!(wrong, None, "{key}");
        }
    }
}

/// All places at once, from the one that wins to the one that loses, each with a value of its own.
fn everywhere(key: Key, without: usize) -> Configured {
    let value = |place: usize| format!("value-{place}");
    let has = |place: usize| place >= without;
    let mut job: JobSpec = spec();
    if has(0) {
        job = job.with_annotation(key.name(), value(0));
    }
    if has(1) {
        Arc::make_mut(&mut job.worker).env.insert(key.to_string(), value(1));
    }
    // The order in which they are added does not matter.
    let mut sources = sources(&job).environment([(key.name(), value(5))]);
    if has(4) {
        sources = sources.downward_text("labels", &format!("{key}=\"{}\"", value(4))).unwrap();
    }
    let label = if has(2) { format!("metadata: {{labels: {{{key}: {}}}}}\n", value(2)) } else { String::new() };
    let inner = if has(3) { yaml_of("env", key, &value(3)) } else { String::new() };
    let text = format!("{inner}{label}");
    let sources = if text.is_empty() { sources } else { sources.job_text("job.yaml", &text).unwrap() };
    sources.configured()
}

#[test]
fn of_places_that_differ_the_upper_one_wins_and_a_warning_names_both() {
    for key in Key::ALL {
        for winner in 0..=5 {
            let configured = everywhere(key, winner);
            let setting = configured.setting(key).unwrap();
            assert_eq!(setting.value, format!("value-{winner}"), "{key}");
            let overruled = super::warned(&configured, WarningKind::Overruled);
            assert_eq!(overruled.len(), 5 - winner, "{key}: {overruled:?}");
            for (text, loser) in overruled.iter().zip(winner + 1..) {
                assert!(text.starts_with(&setting.to_string()), "{text}");
                assert!(text.ends_with(&format!("has \"value-{loser}\"")), "{text}");
            }
        }
    }
}

#[test]
fn equal_values_in_two_places_cause_no_warning() {
    let job = spec().with_annotation("recover-strategy", "retry");
    let same = sources(&job).environment([("recover-strategy", " retry ")]).configured();
    assert_eq!(super::warned(&same, WarningKind::Overruled), Vec::<String>::new());
}

#[test]
fn torchrun_s_keys_are_read_under_all_names_that_torchrun_has_for_them() {
    for arguments in [
        vec!["torchrun", "--max_restarts=3", "--monitor-interval", "5", "train.py"],
        vec!["torchrun", "--max-restarts", "3", "--monitor_interval=5", "train.py"],
        vec!["bash", "-c", "torchrun --max-restarts 3 --monitor-interval=5 train.py && echo done"],
    ] {
        let mut job = spec();
        Arc::make_mut(&mut job.worker).argv = arguments.iter().map(ToString::to_string).collect();
        let quoted: Vec<String> = arguments.iter().map(|argument| format!("{argument:?}")).collect();
        let yaml = format!("containers:\n- command: [{}]\n", quoted.join(", "));
        let of_file = sources(&spec()).job_text("job.yaml", &yaml).unwrap();
        for configured in [sources(&job).configured(), of_file.configured()] {
            let value = |key| configured.setting(key).map(|setting| setting.value.as_str());
            assert_eq!((value(Key::MaxRestarts), value(Key::MonitorInterval)), (Some("3"), Some("5")));
        }
    }
    let variables = [("PET_MAX_RESTARTS", "3"), ("PET_MONITOR_INTERVAL", "5")];
    let configured = sources(&spec()).environment(variables).configured();
    assert_eq!(configured.setting(Key::MaxRestarts).unwrap().value, "3");
    assert_eq!(configured.setting(Key::MonitorInterval).unwrap().value, "5");
}

#[test]
fn setting_is_displayed_with_its_value_and_location() {
    let (_, first) = places(Key::ProcessRecover, "off").swap_remove(4);
    let configured = first.configured();
    assert_eq!(
        configured.setting(Key::ProcessRecover).unwrap().to_string(),
        "PROCESS_RECOVER is \"off\" in the job file job.yaml ($.spec.containers[0].env)"
    );
}
