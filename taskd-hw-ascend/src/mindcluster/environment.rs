//! Environment variables of ranks: the job's own settings, and those that each named strategy needs.
//!
//! Pure functions. The mapping is the same as that of MindCluster's operator.

use super::decision::{Decided, Wanted};
use super::setting::Warnings;
use super::value::{Asked, Tft};
use super::{Framework, Key, WarningKind};
use std::collections::{BTreeMap, BTreeSet};

/// Flags that a script may require to take part in a strategy.
const FLAGS: [(Asked, &str); 5] = [
    (Asked::Dump, "--enable-high-availability"),
    (Asked::Retry, "--enable-hbmfault-repair"),
    (Asked::RecoverInPlace, "--enable-worker-reboot"),
    (Asked::Recover, "--enable-worker-reboot"),
    (Asked::ElasticTraining, "--enable-elastic-training"),
];

/// Returns the variables of ranks. `wanted` contains the named strategies if processes may be recovered.
pub(super) fn of_ranks(
    decided: &Decided,
    wanted: Option<&Wanted>,
    framework: Option<Framework>,
    warnings: &mut Warnings,
) -> BTreeMap<String, String> {
    let said = decided.all().filter(|setting| setting.key.is_for_ranks());
    let mut env: BTreeMap<String, String> =
        said.map(|setting| (setting.key.to_string(), setting.value.clone())).collect();
    let Some(wanted) = wanted.filter(|wanted| !wanted.named.asked.is_empty()) else {
        if framework == Some(Framework::MindSpore) && decided.value(Key::PodRescheduling) == Some("on") {
            env.insert(Key::MsEnableTft.to_string(), tft(decided, &BTreeSet::new(), warnings));
        }
        return env;
    };
    let asked = &wanted.named.asked;
    let mut set = |key: &str, value: &str| {
        env.entry(key.to_owned()).or_insert_with(|| value.to_owned());
    };
    set("PROCESS_RECOVER", "on");
    if asked.iter().any(|asked| !matches!(asked, Asked::ElasticTraining | Asked::Downgrade | Asked::Upgrade)) {
        set("ELASTIC_PROCESS_RECOVER_ENABLE", "1");
    }
    if asked.contains(&Asked::RecoverInPlace) {
        set("ENABLE_RESTART_FAULT_PROCESS", "on");
    }
    let is_named_here = |key| wanted.by.iter().any(|setting| setting.key == key); // passed on unchanged
    match framework {
        Some(Framework::PyTorch) => {
            set("HCCL_ASYNC_ERROR_HANDLING", "0");
            if !is_named_here(Key::HighAvailability) {
                env.insert(Key::HighAvailability.to_string(), high_availability(decided, asked));
            }
        }
        Some(Framework::MindSpore) => {
            set("MINDIO_FOR_MINDSPORE", "1");
            set("MS_ENABLE_THM", "{HCCL_WATCHDOG:0}");
            if !is_named_here(Key::MsEnableTft) {
                env.insert(Key::MsEnableTft.to_string(), tft(decided, asked, warnings));
            }
        }
        None => {
            let text = "the job names strategies and no framework: neither HIGH_AVAILABILITY nor MS_ENABLE_TFT is set for its \
                        ranks; name the framework, or give the job the label framework: pytorch or mindspore";
            warnings.add(WarningKind::Hinders, text);
        }
    }
    env
}

/// Returns the value of the variable `HIGH_AVAILABILITY` for the strategies of the job, sorted and merged with the
/// value that the job sets.
fn high_availability(decided: &Decided, asked: &BTreeSet<Asked>) -> String {
    let there = decided.value(Key::HighAvailability).unwrap_or("");
    let mut all: BTreeSet<&str> = there.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    all.extend(asked.iter().filter_map(|asked| match asked {
        Asked::Recover | Asked::RecoverInPlace | Asked::Exit => Some("recover"),
        Asked::Retry => Some("retry"),
        Asked::Dump => Some("dump"),
        Asked::ElasticTraining | Asked::Downgrade | Asked::Upgrade => Some("elastic-training"),
        Asked::Rescheduling => None,
    }));
    all.into_iter().collect::<Vec<_>>().join(",")
}

/// Returns the value of the variable `MS_ENABLE_TFT` for the strategies of the job, sorted and merged with the value
/// that the job sets, which takes precedence.
fn tft(decided: &Decided, asked: &BTreeSet<Asked>, warnings: &mut Warnings) -> String {
    let mut tft = Tft::read(decided.value(Key::MsEnableTft).unwrap_or(""));
    let pods = (decided.value(Key::PodRescheduling) == Some("on")).then_some(("RSC", Asked::Rescheduling));
    let needed = asked.iter().flat_map(|asked| {
        let options: &[&str] = match asked {
            Asked::Recover | Asked::RecoverInPlace | Asked::Exit => &["ARF"],
            Asked::Retry => &["UCE", "HCCE"],
            Asked::Dump => &["TTP"],
            Asked::Rescheduling => &["RSC"],
            Asked::ElasticTraining | Asked::Downgrade | Asked::Upgrade => &[],
        };
        options.iter().map(|option| (*option, *asked))
    });
    for (option, asked) in needed.chain(pods) {
        if *tft.options.entry(option).or_insert(1) == 0
            && let Some(setting) = decided.get(Key::MsEnableTft)
        {
            let text = format!("{setting}: {} needs {option}:1, and fails without it", asked.name());
            warnings.add(WarningKind::Hinders, text);
        }
    }
    tft.text()
}

/// Adds warnings for settings that keep named strategies from working, where that is visible in the configuration.
pub(super) fn check_needs(
    decided: &Decided,
    wanted: &Wanted,
    framework: Option<Framework>,
    arguments: &[String],
    warnings: &mut Warnings,
) {
    let asked = &wanted.named.asked;
    if framework == Some(Framework::MindSpore) {
        if asked.contains(&Asked::ElasticTraining) {
            let text = format!("{}: MindSpore's ranks take no part in elastic-training", wanted.by[0]);
            warnings.add(WarningKind::Hinders, text);
        }
    } else {
        let words: BTreeSet<&str> = arguments.iter().flat_map(|argument| words(argument)).collect();
        let has = |flag: &str| words.iter().any(|word| word.split('=').next() == Some(flag));
        for (asked, flag) in FLAGS.into_iter().filter(|(of, flag)| asked.contains(of) && !has(flag)) {
            let text = format!(
                "{} is allowed, and the program's arguments have no {flag}: a script that reads this flag, and not \
                 HIGH_AVAILABILITY, does not take part",
                asked.name()
            );
            warnings.add(WarningKind::MissingFlag, text);
        }
    }
    let watchdog = decided.get(Key::HcclAsyncErrorHandling).filter(|setting| setting.value != "0");
    if let Some(setting) = watchdog.filter(|_| asked.iter().any(|asked| *asked < Asked::Dump)) {
        let text = format!("{setting}: HCCL's watchdog ends processes that a recovery would keep; 0 turns it off");
        warnings.add(WarningKind::Hinders, text);
    }
    if let Some(setting) = decided.get(Key::ElasticProcessRecoverEnable).filter(|setting| setting.value == "0") {
        let text = format!("{setting}, which has no effect here: PROCESS_RECOVER and recover-strategy apply");
        warnings.add(WarningKind::NoEffect, text);
    }
}

/// Splits an argument, which may be a whole shell command, into words.
pub(super) fn words(argument: &str) -> impl Iterator<Item = &str> {
    argument
        .split(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | ';' | '&' | '|' | '\\'))
        .filter(|w| !w.is_empty())
}
