//! What values mean: strategies by their names elsewhere, MindSpore's options, HCCL's own retry.
//!
//! Pure, and total: whatever stands there is read as far as it can be, and the rest is told.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use taskd_core::job::Name;

/// A strategy as `recover-strategy` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Asked {
    /// `retry`.
    Retry,
    /// `recover-in-place`.
    RecoverInPlace,
    /// `recover`.
    Recover,
    /// `elastic-training`: `shrink` and `grow` here.
    ElasticTraining,
    /// `downgrade`: `shrink` here.
    Downgrade,
    /// `upgrade`: `grow` here.
    Upgrade,
    /// `dump`: `dump` and `dump-exit` here.
    Dump,
    /// `pod-rescheduling` and `job-rescheduling`: `restart` here.
    Rescheduling,
    /// `exit`.
    Exit,
}

impl Asked {
    const NAMES: [(&'static str, Asked); 10] = [
        ("retry", Asked::Retry),
        ("recover-in-place", Asked::RecoverInPlace),
        ("recover", Asked::Recover),
        ("elastic-training", Asked::ElasticTraining),
        ("downgrade", Asked::Downgrade),
        ("upgrade", Asked::Upgrade),
        ("dump", Asked::Dump),
        ("pod-rescheduling", Asked::Rescheduling),
        ("job-rescheduling", Asked::Rescheduling),
        ("exit", Asked::Exit),
    ];

    fn named(name: &str) -> Option<Asked> {
        Asked::NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, asked)| asked)
    }

    /// The names that can stand in `recover-strategy`, for messages.
    pub(super) fn known() -> String {
        Asked::NAMES.map(|(name, _)| name).join(", ")
    }

    /// Its name there.
    #[must_use]
    pub fn name(self) -> &'static str {
        Asked::NAMES.into_iter().find(|(_, asked)| *asked == self).map_or("", |(name, _)| name)
    }

    /// The strategies that it is here.
    #[must_use]
    pub const fn strategies(self) -> &'static [Name] {
        const SHRINK: Name = Name::new("shrink");
        const GROW: Name = Name::new("grow");
        match self {
            Asked::Retry => const { &[Name::new("retry")] },
            Asked::RecoverInPlace => const { &[Name::new("recover-in-place")] },
            Asked::Recover => const { &[Name::new("recover")] },
            Asked::ElasticTraining => const { &[SHRINK, GROW] },
            Asked::Downgrade => const { &[SHRINK] },
            Asked::Upgrade => const { &[GROW] },
            Asked::Dump => const { &[Name::new("dump"), Name::new("dump-exit")] },
            Asked::Rescheduling => const { &[Name::new("restart")] },
            Asked::Exit => const { &[Name::new("exit")] },
        }
    }
}

/// What a list of strategies names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) asked: BTreeSet<Asked>,
    /// By the names that they have here, of strategies that the runtime was given.
    pub(super) own: BTreeSet<Name>,
    pub(super) unknown: Vec<String>,
}

/// Reads a list of strategies with commas between them.
pub(super) fn strategies(list: &str, added: &[Name]) -> Named {
    let mut named = Named::default();
    for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        if let Some(asked) = Asked::named(name) {
            named.asked.insert(asked);
        } else if let Some(own) = added.iter().find(|own| *own == name) {
            named.own.insert(own.clone());
        } else {
            named.unknown.push(name.to_owned());
        }
    }
    named
}

/// What `MS_ENABLE_TFT` turns on and off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tft {
    /// The value of each option that there is.
    pub(super) options: BTreeMap<&'static str, u8>,
    /// What is no option, or no value of one.
    pub(super) unknown: Vec<String>,
}

impl Tft {
    pub(super) const FORM: &'static str =
        "a list such as {TTP:1, HCCE:1}, of TTP, UCE, HCCE, ARF, TSP, TRE and RSC, each 1 or 0 (TRE: 2 as well)";

    /// Reads `{TTP:1, HCCE:1}`, with or without white space, and with the quotes that shells and YAML files leave around it.
    pub(super) fn read(value: &str) -> Tft {
        let mut tft = Tft::default();
        let value = value.trim().trim_matches(['\'', '"']).trim();
        let value = value.strip_prefix('{').unwrap_or(value);
        let value = value.strip_suffix('}').unwrap_or(value);
        for item in value.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (name, number) = item.split_once(':').unwrap_or((item, ""));
            let name = name.trim().trim_matches(['\'', '"']);
            let known = ["TTP", "UCE", "HCCE", "ARF", "TSP", "TRE", "RSC"].into_iter().find(|known| *known == name);
            let number = match (number.trim(), known) {
                ("0", _) => Some(0),
                ("1", _) => Some(1),
                ("2", Some("TRE")) => Some(2),
                _ => None,
            };
            match (known, number) {
                (Some(known), Some(number)) => drop(tft.options.insert(known, number)),
                _ => tft.unknown.push(item.to_owned()),
            }
        }
        tft
    }

    /// As MindSpore wants it: in order, without quotes.
    pub(super) fn text(&self) -> String {
        let items: Vec<String> = self.options.iter().map(|(name, number)| format!("{name}:{number}")).collect();
        format!("{{{}}}", items.join(","))
    }

    /// What is on.
    pub(super) fn asked(&self) -> BTreeSet<Asked> {
        let on = |(name, _): (&&str, &u8)| match *name {
            "TTP" => vec![Asked::Dump],
            "UCE" | "HCCE" | "TRE" => vec![Asked::Retry],
            "ARF" => vec![Asked::Recover, Asked::Dump], // MindSpore turns TTP on with it
            "RSC" => vec![Asked::Rescheduling],
            _ => vec![], // TSP: a pause is no recovery
        };
        self.options.iter().filter(|(_, number)| **number > 0).flat_map(on).collect()
    }
}

/// HCCL's own retry of an operator, which nobody is to interfere with.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OperatorRetry {
    /// Where it is on: `L0` within a server, `L1` between servers, `L2` between super pods.
    pub levels: BTreeSet<&'static str>,
    /// The longest that its pauses take, before the operator is told to have failed. What the attempts take comes on top.
    pub pauses: Duration,
}

/// Pairs such as `L0:0, L1:1`; what is no pair comes back whole, without a value.
fn pairs(value: &str) -> impl Iterator<Item = (&str, Option<u32>, &str)> {
    let items = value.trim().trim_matches(['\'', '"']).split(',').map(str::trim).filter(|item| !item.is_empty());
    items.map(|item| {
        let (name, number) = item.split_once(':').unwrap_or((item, ""));
        (name.trim(), number.trim().parse().ok(), item)
    })
}

impl OperatorRetry {
    pub(super) const LEVELS_FORM: &'static str = "a list such as L0:0, L1:1, L2:1";
    pub(super) const PARAMS_FORM: &'static str =
        "a list such as MaxCnt:3, HoldTime:5000, IntervalTime:1000, with MaxCnt 1 to 10 and the others 0 to 60000 ms";

    /// Reads both variables; `None`: it is off. What is not understood is handed back.
    pub(super) fn read(enable: &str, params: &str) -> (Option<OperatorRetry>, Vec<String>, Vec<String>) {
        let (mut levels, mut unknown_levels, mut unknown_params) = (BTreeSet::new(), Vec::new(), Vec::new());
        for (name, number, item) in pairs(enable) {
            match (["L0", "L1", "L2"].into_iter().find(|level| *level == name), number) {
                (Some(level), Some(1)) => drop(levels.insert(level)),
                (Some(_), Some(0)) => {}
                _ => unknown_levels.push(item.to_owned()),
            }
        }
        let (mut count, mut hold_ms, mut interval_ms) = (1, 5_000, 1_000); // HCCL's defaults
        for (name, number, item) in pairs(params) {
            match (name, number) {
                ("MaxCnt", Some(number @ 1..=10)) => count = number,
                ("HoldTime", Some(number @ 0..=60_000)) => hold_ms = number,
                ("IntervalTime", Some(number @ 0..=60_000)) => interval_ms = number,
                _ => unknown_params.push(item.to_owned()),
            }
        }
        let pauses = Duration::from_millis(u64::from(hold_ms) + u64::from(count) * u64::from(interval_ms));
        let retry = (!levels.is_empty()).then_some(OperatorRetry { levels, pauses });
        (retry, unknown_levels, unknown_params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_mindspore_are_read_with_space_and_quotes_and_written_without() {
        for text in
            ["{TTP:1, HCCE:1}", "{TTP:1,HCCE:1}", "'{TTP:1, HCCE:1}'", "\"{ HCCE : 1 ,TTP:1,}\"", "TTP:1,HCCE:1"]
        {
            let tft = Tft::read(text);
            assert_eq!((tft.text().as_str(), tft.unknown.len()), ("{HCCE:1,TTP:1}", 0), "{text}");
            assert_eq!(tft.asked(), [Asked::Dump, Asked::Retry].into());
        }
        let odd = Tft::read("{TTP:3,TRE:2,NEW:1,ARF,RSC:0}");
        assert_eq!(odd.unknown, ["TTP:3", "NEW:1", "ARF"]);
        assert_eq!((odd.text().as_str(), odd.asked()), ("{RSC:0,TRE:2}", [Asked::Retry].into()));
        assert_eq!(Tft::read("").text(), "{}");
    }

    #[test]
    fn the_operator_retry_is_on_where_a_level_is_and_takes_as_long_as_its_pauses() {
        let (retry, levels, params) =
            OperatorRetry::read("L0:0, L1:1, L2:1", "MaxCnt:3, HoldTime:5000, IntervalTime:1000");
        let retry = retry.expect("it is on");
        assert_eq!((retry.levels, retry.pauses), (["L1", "L2"].into(), Duration::from_secs(8)));
        assert_eq!((levels.len(), params.len()), (0, 0));
        assert_eq!(OperatorRetry::read("L0:0", "").0, None);
        let (retry, levels, params) =
            OperatorRetry::read("L1:1,L9:1,L2", "MaxCnt:11,HoldTime:60001,Foo:1,IntervalTime:60000");
        assert_eq!(retry.map(|retry| retry.pauses), Some(Duration::from_secs(65)));
        assert_eq!((levels.len(), params.len()), (2, 3));
    }
}
