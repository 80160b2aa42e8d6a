//! What ranks find in their environment: what the job says of its own, and what each strategy that it names needs besides.
//!
//! Pure. The table is that of MindCluster's operator.

use super::decision::{Decided, Wanted};
use super::setting::Warnings;
use super::value::{Asked, Tft};
use super::{Framework, Key, WarningKind};
use std::collections::{BTreeMap, BTreeSet};

/// Which part of a script takes part in which strategy only with a flag.
const FLAGS: [(Asked, &str); 5] = [
    (Asked::Dump, "--enable-high-availability"),
    (Asked::Retry, "--enable-hbmfault-repair"),
    (Asked::RecoverInPlace, "--enable-worker-reboot"),
    (Asked::Recover, "--enable-worker-reboot"),
    (Asked::ElasticTraining, "--enable-elastic-training"),
];

/// The variables for ranks. `wanted`: what the job names, if processes may be recovered.
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
    let is_named_here = |key| wanted.by.iter().any(|setting| setting.key == key); // passed on as it stands
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
                        ranks; say which one it is, or give the job the label framework: pytorch or mindspore";
            warnings.add(WarningKind::Hinders, text);
        }
    }
    env
}

/// In order, with what stands there already.
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

/// In order, with what stands there already, which wins.
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
            let text = format!("{setting}: {} needs {option}:1, and will fail without", asked.name());
            warnings.add(WarningKind::Hinders, text);
        }
    }
    tft.text()
}

/// What keeps strategies that the job names from working, as far as that can be seen from here.
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
                "{} is allowed, and the program's arguments have no {flag}: a script that waits for this flag, and not for \
                 HIGH_AVAILABILITY, takes no part in it",
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
        let text = format!("{setting}, which changes nothing here: PROCESS_RECOVER and recover-strategy do");
        warnings.add(WarningKind::NoEffect, text);
    }
}

/// The words of an argument, which may be a whole command for a shell.
pub(super) fn words(argument: &str) -> impl Iterator<Item = &str> {
    argument
        .split(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | ';' | '&' | '|' | '\\'))
        .filter(|w| !w.is_empty())
}
