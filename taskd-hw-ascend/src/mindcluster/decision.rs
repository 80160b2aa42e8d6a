//! Decides from all settings: the effective value of each key, the master switches, and the forbidden strategies with
//! reasons.
//!
//! Pure functions. The module `environment` determines the variables of ranks.

use super::setting::{Warnings, is_unrendered, shown};
use super::value::{Asked, Named, OperatorRetry, Tft, strategies};
use super::{Key, Setting, WarningKind};
use std::collections::{BTreeMap, BTreeSet};
use taskd_core::job::Name;

/// Number of recoveries of a job whose `max_restarts` is 0 (unlimited), as in MindCluster's patched torchrun launcher.
const RESTARTS_UNLIMITED: u32 = 32_767;

/// Strategies that need no surviving process.
static WHOLE: [Name; 2] = [Name::new("restart"), Name::new("exit")];

/// The effective setting of each key.
#[derive(Clone, Debug, Default)]
pub(super) struct Decided(BTreeMap<Key, Setting>);

impl Decided {
    /// Keeps the first setting of each key; `settings` are sorted by precedence.
    pub(super) fn of(settings: Vec<Setting>, warnings: &mut Warnings) -> Decided {
        let mut decided = BTreeMap::<Key, Setting>::new();
        for setting in settings {
            match decided.get(&setting.key) {
                None => drop(decided.insert(setting.key, setting)),
                Some(first) if first.value != setting.value => {
                    let other = format!("{} has {}", setting.place(), shown(&setting.value));
                    warnings.add(WarningKind::Overruled, format!("{first}, which takes precedence; {other}"));
                }
                Some(_) => {}
            }
        }
        Decided(decided)
    }

    pub(super) fn get(&self, key: Key) -> Option<&Setting> {
        self.0.get(&key)
    }

    pub(super) fn value(&self, key: Key) -> Option<&str> {
        self.get(key).map(|setting| setting.value.as_str())
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Setting> {
        self.0.values()
    }

    fn is(&self, key: Key, value: &str) -> bool {
        self.value(key) == Some(value)
    }
}

/// The strategies that the job names.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) named: Named,
    /// The settings that name them; the first one is used in messages.
    pub(super) by: Vec<Setting>,
}

/// Returns the strategies that are named: by `recover-strategy` or, if that is not set, by the variables of the
/// frameworks.
pub(super) fn wanted(decided: &Decided, added: &[Name], warnings: &mut Warnings) -> Option<Wanted> {
    let in_place = decided.is(Key::EnableRestartFaultProcess, "on");
    let mut wanted = Wanted { named: Named::default(), by: Vec::new() };
    if let Some(setting) = decided.get(Key::RecoverStrategy) {
        wanted = Wanted { named: strategies(&setting.value, added), by: vec![setting.clone()] };
    } else {
        if let Some(setting) = decided.get(Key::HighAvailability) {
            wanted.named = strategies(&setting.value, &[]);
            wanted.by.push(setting.clone());
        }
        if let Some(setting) = decided.get(Key::MsEnableTft) {
            wanted.named.asked.extend(Tft::read(&setting.value).asked());
            wanted.by.push(setting.clone());
        }
        if in_place && wanted.named.asked.contains(&Asked::Recover) {
            wanted.named.asked.insert(Asked::RecoverInPlace);
        }
    }
    for unknown in &wanted.named.unknown {
        let setting = &wanted.by[0];
        let text = format!("{setting}: the strategy {} is unknown; known are {}", shown(unknown), Asked::known());
        warnings.add(WarningKind::UnknownStrategy, text);
    }
    (!wanted.by.is_empty()).then_some(wanted)
}

/// Returns the reasons why only whole restarts are allowed, the decisive one first. Empty if processes may be
/// recovered.
pub(super) fn switched_off(decided: &Decided, names_strategies: bool) -> Vec<String> {
    let setting = |key| decided.get(key);
    let not_on = |key| setting(key).filter(|setting| setting.value != "on");
    // A template placeholder that was not rendered may have been meant as off.
    let off = setting(Key::ProcessEnable).filter(|setting| setting.value == "off" || is_unrendered(&setting.value));
    let causes = [not_on(Key::ProcessRecoverEnable), not_on(Key::ProcessRecover), off];
    let causes: Vec<String> = causes.into_iter().flatten().map(ToString::to_string).collect();
    let is_on = decided.is(Key::ProcessRecoverEnable, "on") || decided.is(Key::ProcessRecover, "on");
    let theirs = decided.all().find(|setting| setting.key.configures_recovery());
    match theirs {
        Some(theirs) if causes.is_empty() && !is_on && !names_strategies => {
            vec![format!("process-recover-enable is not set, but {theirs}")]
        }
        _ => causes,
    }
}

/// The forbidden strategies, each with its reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Forbidden {
    /// Forbidden by a master switch, which overrides the policy.
    pub(super) switched_off: BTreeMap<Name, String>,
    /// Forbidden because the job names other strategies; the policy can allow them.
    pub(super) unnamed: BTreeMap<Name, String>,
}

/// Determines which of the runtime's strategies are forbidden.
pub(super) fn forbidden(decided: &Decided, wanted: Option<&Wanted>, off: &[String], added: &[Name]) -> Forbidden {
    let mut forbidden = Forbidden::default();
    if let [first, ..] = off {
        let reason = format!("whole restarts only: {first}");
        let others = added.iter().filter(|name| !WHOLE.contains(name));
        forbidden.switched_off.extend(others.map(|name| (name.clone(), reason.clone())));
    } else if let Some(wanted) = wanted {
        let asked = wanted.named.asked.iter().flat_map(|asked| asked.strategies());
        let allowed: BTreeSet<&Name> = asked.chain(&wanted.named.own).chain(&WHOLE).collect();
        let by: Vec<String> = wanted.by.iter().map(ToString::to_string).collect();
        let reason = by.join(", ");
        let others = added.iter().filter(|name| !allowed.contains(name));
        forbidden.unnamed.extend(others.map(|name| (name.clone(), reason.clone())));
    }
    if let Some(setting) = decided.get(Key::FaultScheduling).filter(|setting| setting.value == "off") {
        let reason = format!("the whole job is not restarted: {setting}");
        for name in ["restart", "dump"].map(Name::new).into_iter().filter(|name| added.contains(name)) {
            forbidden.unnamed.entry(name).or_insert_with(|| reason.clone());
        }
    }
    forbidden
}

/// Returns the maximum number of recoveries and the setting that defines it, if there is one.
pub(super) fn recoveries(decided: &Decided) -> Option<(u32, Setting)> {
    let number = |key| {
        let setting = decided.get(key)?;
        Some((setting.value.parse::<u32>().ok()?, setting.clone()))
    };
    let restarts = number(Key::MaxRestarts).map(|(count, setting)| match count {
        0 => (RESTARTS_UNLIMITED, setting),
        count => (count, setting),
    });
    restarts.into_iter().chain(number(Key::FaultRetryTimes)).min_by_key(|(count, _)| *count)
}

/// Returns the parameters of HCCL's own retry, if it is on.
pub(super) fn operator_retry(decided: &Decided, warnings: &mut Warnings) -> Option<OperatorRetry> {
    let value = |key| decided.value(key).unwrap_or("");
    let (enable, params) = (Key::HcclOpRetryEnable, Key::HcclOpRetryParams);
    let (retry, levels, bounds) = OperatorRetry::read(value(enable), value(params));
    for (key, unknown, form) in
        [(enable, levels, OperatorRetry::LEVELS_FORM), (params, bounds, OperatorRetry::PARAMS_FORM)]
    {
        if let Some(setting) = decided.get(key).filter(|_| !unknown.is_empty()) {
            warnings.unknown_value(setting, form);
        }
    }
    retry
}

/// Adds warnings for invalid values.
pub(super) fn check_values(decided: &Decided, warnings: &mut Warnings) {
    for setting in decided.all() {
        let value = setting.value.as_str();
        let one_of = |values: &[&str]| values.contains(&value);
        let (is_known, expected) = match setting.key {
            Key::ProcessRecoverEnable => (one_of(&["on", "pause", "off"]), "on, pause or off"),
            Key::FaultScheduling => (one_of(&["grace", "force", "off"]), "grace, force or off"),
            Key::SubHealthyStrategy => {
                let known = ["ignore", "graceExit", "forceExit", "hotSwitch"];
                (one_of(&known), "ignore, graceExit, forceExit or hotSwitch")
            }
            Key::PodRescheduling | Key::ProcessRecover | Key::ProcessEnable | Key::EnableRestartFaultProcess => {
                (one_of(&["on", "off"]), "on or off")
            }
            Key::ElasticProcessRecoverEnable => (one_of(&["0", "1"]), "0 or 1"),
            Key::HcclAsyncErrorHandling => (one_of(&["0", "1", "2"]), "0, 1 or 2"),
            Key::FaultRetryTimes | Key::MaxRestarts => {
                (value.parse::<u32>().is_ok(), "a whole number, 0 to 4294967295")
            }
            Key::MonitorInterval => {
                (value.parse::<f64>().is_ok_and(|seconds| seconds > 0.0), "a number of seconds above 0")
            }
            Key::MsEnableTft => (Tft::read(value).unknown.is_empty(), Tft::FORM),
            // Checked where they are parsed.
            Key::RecoverStrategy | Key::HighAvailability | Key::HcclOpRetryEnable | Key::HcclOpRetryParams => continue,
        };
        if !is_known {
            warnings.unknown_value(setting, expected);
        }
    }
}
