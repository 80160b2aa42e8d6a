//! Warnings for the user: unknown values and strategies, missing flags, settings without effect.

use super::{allowed, configured, noted, sources, spec, warned};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use taskd_core::recover;
use taskd_hw_ascend::mindcluster::{Framework, Key, Sources, WarningKind};

#[test]
fn unknown_value_of_a_key_is_warned_about_with_the_valid_ones() {
    for (key, value, expected) in [
        (Key::ProcessRecoverEnable, "yes", "on, pause or off"),
        (Key::FaultScheduling, "gentle", "grace, force or off"),
        (Key::FaultRetryTimes, "-1", "a whole number, 0 to 4294967295"),
        (Key::MaxRestarts, "3.5", "a whole number, 0 to 4294967295"),
        (Key::MonitorInterval, "0", "a number of seconds above 0"),
        (Key::MonitorInterval, "NaN", "a number of seconds above 0"),
        (Key::PodRescheduling, "1", "on or off"),
        (Key::SubHealthyStrategy, "panic", "ignore, graceExit, forceExit or hotSwitch"),
        (Key::ProcessRecover, "1", "on or off"),
        (Key::ProcessEnable, "OFF", "on or off"),
        (Key::EnableRestartFaultProcess, "1", "on or off"),
        (Key::ElasticProcessRecoverEnable, "on", "0 or 1"),
        (Key::HcclAsyncErrorHandling, "3", "0, 1 or 2"),
        (Key::MsEnableTft, "{TTP:1, HCCE:7}", "a list such as {TTP:1, HCCE:1}"),
        (Key::HcclOpRetryEnable, "L1", "a list such as L0:0, L1:1, L2:1"),
        (Key::HcclOpRetryParams, "MaxCnt:11", "a list such as MaxCnt:3"),
    ] {
        let configured = configured(&[(key.name(), value)]);
        let told = warned(&configured, WarningKind::UnknownValue);
        let start = format!("{key} is {value:?} in the job's specification (annotations), but must be {expected}");
        assert!(told.len() == 1 && told[0].starts_with(&start), "{told:?}");
    }
}

#[test]
fn unknown_strategy_is_warned_about_and_the_others_are_allowed() {
    for key in ["recover-strategy", "HIGH_AVAILABILITY"] {
        let configured = configured(&[(key, "retry,restrat,,migration")]);
        assert_eq!(allowed(&configured), ["retry", "restart", "exit"]);
        let told = warned(&configured, WarningKind::UnknownStrategy);
        assert_eq!(told.len(), 2);
        assert!(told[0].contains("the strategy \"restrat\" is unknown; known are retry, recover-in-place"), "{told:?}");
    }
}

#[test]
fn strategy_without_its_flag_is_warned_about() {
    for (strategy, flag) in [
        ("dump", "--enable-high-availability"),
        ("retry", "--enable-hbmfault-repair"),
        ("recover", "--enable-worker-reboot"),
        ("elastic-training", "--enable-elastic-training"),
    ] {
        let told = |arguments: &[&str], framework: Option<Framework>| {
            let mut job = noted(&[("recover-strategy", strategy)]);
            Arc::make_mut(&mut job.worker).argv.extend(arguments.iter().map(ToString::to_string));
            let sources = sources(&job);
            let sources = framework.into_iter().fold(sources, |sources, framework| sources.framework(framework));
            warned(&sources.configured(), WarningKind::MissingFlag)
        };
        let expected = format!("{strategy} is allowed, and the program's arguments have no {flag}: ");
        for framework in [None, Some(Framework::PyTorch)] {
            let without = told(&["--enable-something-else"], framework);
            assert!(without.len() == 1 && without[0].starts_with(&expected), "{without:?}");
            let none: [String; 0] = [];
            assert_eq!(told(&[flag], framework), none);
            assert_eq!(told(&[&format!("{flag}=true")], framework), none);
            assert_eq!(told(&["-c", &format!("python train.py {flag} --x 1")], framework), none);
        }
        assert_eq!(told(&[], Some(Framework::MindSpore)).len(), 0, "its scripts have no such flags");
    }
    let yaml = "metadata: {annotations: {recover-strategy: dump}}\n\
                spec: {containers: [{args: [bash train.sh --enable-high-availability]}]}\n";
    let of_file = sources(&spec()).job_text("job.yaml", yaml).unwrap().configured();
    assert_eq!(warned(&of_file, WarningKind::MissingFlag).len(), 0);
    let all = sources(&spec()).framework(Framework::PyTorch).configured();
    assert_eq!(all.warnings(), [], "who names no strategy is not told what they need");
}

#[test]
fn allowed_strategy_missing_from_the_runtime_is_warned_about() {
    let mut strategies = recover::defaults();
    strategies.retain(|strategy| !["shrink", "grow"].contains(&strategy.name().as_str()));
    let job = noted(&[("recover-strategy", "elastic-training")]);
    let told = warned(&Sources::of(&job, &strategies).configured(), WarningKind::NotAdded);
    let expected = |name| format!("elastic-training is allowed, but the runtime has no strategy {name}");
    assert_eq!(told, ["shrink", "grow"].map(expected));
}

#[test]
fn obstacles_to_an_allowed_strategy_are_warned_about() {
    let hinders = |annotations: &[(&str, &str)], framework| {
        warned(&sources(&noted(annotations)).framework(framework).configured(), WarningKind::Hinders)
    };
    let watchdog = hinders(&[("recover-strategy", "retry"), ("HCCL_ASYNC_ERROR_HANDLING", "1")], Framework::PyTorch);
    assert!(watchdog[0].contains("HCCL's watchdog ends processes that a recovery would keep"), "{watchdog:?}");
    let dump = hinders(&[("recover-strategy", "dump")], Framework::PyTorch);
    assert!(dump[0].contains("policy.checkpoint_dir names no directory"), "{dump:?}");
    let elastic = hinders(&[("recover-strategy", "elastic-training")], Framework::MindSpore);
    assert!(elastic[0].contains("MindSpore's ranks take no part in elastic-training"), "{elastic:?}");
    let mut job = noted(&[("recover-strategy", "dump")]);
    job.policy.checkpoint_dir = Some("/dumps".into());
    let configured = sources(&job).framework(Framework::PyTorch).configured();
    assert_eq!(warned(&configured, WarningKind::Hinders).len(), 0);
}

#[test]
fn settings_without_effect_are_warned_about() {
    for (key, value) in [("monitor_interval", "5"), ("subHealthyStrategy", "hotSwitch")] {
        let told = warned(&configured(&[(key, value), ("PROCESS_RECOVER", "on")]), WarningKind::NoEffect);
        assert!(told.len() == 1 && told[0].contains("which has no effect here"), "{told:?}");
    }
    let elastic = configured(&[("ELASTIC_PROCESS_RECOVER_ENABLE", "0"), ("recover-strategy", "retry")]);
    assert_eq!(warned(&elastic, WarningKind::NoEffect).len(), 1);
    assert_eq!(allowed(&elastic), ["retry", "restart", "exit"]);
}

#[test]
fn warnings_are_bounded_and_the_rest_is_counted() {
    let list: Vec<String> = (0..150).map(|n| format!("s{n}")).collect();
    let configured = configured(&[("recover-strategy", &list.join(","))]);
    assert_eq!(configured.warnings().len(), 100);
    assert!(configured.more_warnings() >= 50);
    let long = configured.warnings()[0].to_string().len();
    assert!(long < 2_000, "a value is shown in part: {long} bytes");
    let mut job = spec();
    configured.apply(&mut job);
    assert_eq!(job.problems(), [], "its reasons fit into the specification");
}

/// Keeps the messages of all warnings of one thread. It is the subscriber of the whole program: `tracing` caches for
/// each call site whether there is a subscriber, and another thread could cache that there is none.
#[derive(Clone)]
struct Logged(Arc<Mutex<Vec<String>>>, ThreadId);

impl tracing::Subscriber for Logged {
    fn enabled(&self, of: &tracing::Metadata<'_>) -> bool {
        *of.level() == tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        if thread::current().id() != self.1 {
            return;
        }
        struct Message(String);
        impl tracing::field::Visit for Message {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().unwrap().push(message.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn warnings_are_logged_when_a_configuration_is_applied() {
    let logged = Logged(Arc::default(), thread::current().id());
    tracing::subscriber::set_global_default(logged.clone()).expect("it is the only one here");
    let list: Vec<String> = (0..150).map(|n| format!("s{n}")).collect();
    let configured = configured(&[("recover-strategy", &list.join(","))]);
    assert!(logged.0.lock().unwrap().is_empty(), "nobody starts a job with it yet");
    configured.apply(&mut spec());
    let told = logged.0.lock().unwrap();
    let each: Vec<String> = configured.warnings().iter().map(ToString::to_string).collect();
    assert_eq!(told[..each.len()], each);
    let more = format!("there are {} more warnings about its configuration", configured.more_warnings());
    assert_eq!(told[each.len()..], [more]);
}
