//! Meaning of values: MindCluster's strategy names, MindSpore's options, and HCCL's own retry.
//!
//! Pure functions that accept any text: they parse what they know and return the rest as unknown.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use taskd_core::job::Name;

/// A recovery strategy of MindCluster, as named in MindCluster's key `recover-strategy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Asked {
    /// MindCluster's strategy `retry`: the ranks repeat the failed step. It corresponds to taskd's strategy `retry`.
    Retry,
    /// MindCluster's strategy `recover-in-place`. It corresponds to taskd's strategy `recover-in-place`, which starts
    /// lost ranks on their former hosts.
    RecoverInPlace,
    /// MindCluster's strategy `recover`. It corresponds to taskd's strategy `recover`, which starts lost ranks on other
    /// hosts.
    Recover,
    /// MindCluster's strategy `elastic-training`. It corresponds to taskd's strategies `shrink` and `grow`, which
    /// continue with fewer ranks and later add them again.
    ElasticTraining,
    /// MindCluster's strategy `downgrade`. It corresponds to taskd's strategy `shrink`, which continues without the
    /// lost ranks.
    Downgrade,
    /// MindCluster's strategy `upgrade`. It corresponds to taskd's strategy `grow`, which starts the ranks again that
    /// `shrink` has left out.
    Upgrade,
    /// MindCluster's strategy `dump`. It corresponds to taskd's strategies `dump` and `dump-exit`, with which the
    /// surviving ranks save a checkpoint.
    Dump,
    /// MindCluster's strategies `pod-rescheduling` and `job-rescheduling`. They correspond to taskd's strategy
    /// `restart`, which restarts the whole job.
    Rescheduling,
    /// MindCluster's strategy `exit`. It corresponds to taskd's strategy `exit`, which stops all processes and ends the
    /// job.
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

    /// Returns the names that `recover-strategy` accepts, for messages.
    pub(super) fn known() -> String {
        Asked::NAMES.map(|(name, _)| name).join(", ")
    }

    /// Returns MindCluster's name of the strategy.
    #[must_use]
    pub fn name(self) -> &'static str {
        Asked::NAMES.into_iter().find(|(_, asked)| *asked == self).map_or("", |(name, _)| name)
    }

    /// Returns the names of taskd's strategies that correspond to this strategy of MindCluster.
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

/// Result of parsing a list of strategies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) asked: BTreeSet<Asked>,
    /// Strategies of the runtime, named by their taskd names.
    pub(super) own: BTreeSet<Name>,
    pub(super) unknown: Vec<String>,
}

/// Parses a list of strategies that are separated by commas.
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

/// Result of parsing `MS_ENABLE_TFT`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tft {
    /// Values of the options that are set.
    pub(super) options: BTreeMap<&'static str, u8>,
    /// Items that are no known option or have an invalid value.
    pub(super) unknown: Vec<String>,
}

impl Tft {
    pub(super) const FORM: &'static str =
        "a list such as {TTP:1, HCCE:1}, of TTP, UCE, HCCE, ARF, TSP, TRE and RSC, each 1 or 0 (TRE: 2 as well)";

    /// Parses `{TTP:1, HCCE:1}`, with or without white space and the quotes that shells and YAML files leave around it.
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

    /// Formats the options as MindSpore expects them: sorted, without quotes.
    pub(super) fn text(&self) -> String {
        let items: Vec<String> = self.options.iter().map(|(name, number)| format!("{name}:{number}")).collect();
        format!("{{{}}}", items.join(","))
    }

    /// Returns the strategies whose options are on.
    pub(super) fn asked(&self) -> BTreeSet<Asked> {
        let on = |(name, _): (&&str, &u8)| match *name {
            "TTP" => vec![Asked::Dump],
            "UCE" | "HCCE" | "TRE" => vec![Asked::Retry],
            "ARF" => vec![Asked::Recover, Asked::Dump], // MindSpore enables TTP together with it
            "RSC" => vec![Asked::Rescheduling],
            _ => vec![], // TSP: a pause, not a recovery
        };
        self.options.iter().filter(|(_, number)| **number > 0).flat_map(on).collect()
    }
}

/// Parameters of HCCL's operator retry, with which HCCL itself repeats failed operators. Detectors and strategies
/// have to wait for this retry.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OperatorRetry {
    /// Levels at which HCCL retries operators: `L0` within a server, `L1` between servers, `L2` between super pods.
    pub levels: BTreeSet<&'static str>,
    /// Longest total duration of the pauses that HCCL makes before it reports the operator as failed; the duration of
    /// the attempts themselves is not included.
    pub pauses: Duration,
}

/// Splits a list of pairs such as `L0:0, L1:1` into names and numbers. Each result has the whole item too; an invalid
/// item has no number.
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

    /// Parses both variables. Returns `None` if the retry is off, and the items of each variable that could not be
    /// parsed.
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
    fn mindspore_options_with_spaces_and_quotes_are_normalized() {
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
    fn operator_retry_is_on_if_a_level_is_and_lasts_as_its_pauses() {
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
