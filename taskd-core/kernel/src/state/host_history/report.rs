//! A history of hosts as text, for people.

use super::{HostHistory, HostIncident, MS_PER_DAY, PERIOD_DAYS, WEIGHT_NOW, age_ms};
use crate::job::{Name, NodeId, WallTime};
use std::collections::BTreeMap;
use std::fmt::Write as _;

const MS_PER_MINUTE: u64 = 60_000;
const MS_PER_HOUR: u64 = 60 * MS_PER_MINUTE;

impl HostHistory {
    /// Returns one line about a host: its incidents of the last 14 days, and the last one. `None` if it had no incident.
    #[must_use]
    pub fn line(&self, host: &NodeId, now: WallTime) -> Option<String> {
        let last = self.hosts.get(host)?.last()?;
        let recent = self.recent(host, now).len();
        let all = self.hosts.get(host)?.len();
        let count = match recent {
            0 => format!("{all} {}, none in {PERIOD_DAYS} days", incidents(all)),
            recent => format!("{recent} {} in {PERIOD_DAYS} days", incidents(recent)),
        };
        Some(format!("{}: {count}, last: {}, {}", host.0, last.class, ago(age_ms(last, now))))
    }

    /// Returns a table of the `k` hosts with the most incidents, and their share of all incidents, for an engineer on
    /// call. Hosts with equally many incidents are ordered by their score at `now`.
    #[must_use]
    pub fn report(&self, k: usize, now: WallTime) -> String {
        let mut hosts: Vec<(&NodeId, &Vec<HostIncident>)> = self.hosts.iter().collect();
        hosts.sort_by_key(|(host, of)| std::cmp::Reverse((of.len(), self.score(host, now))));
        let known = hosts.len();
        hosts.truncate(k);
        let Some(first) = self.iter().map(|(_, incident)| incident.at).min() else {
            return "no host had an incident\n".into();
        };
        let top: usize = hosts.iter().map(|(_, of)| of.len()).sum();
        let mut text = format!(
            "{} {} on {known} hosts since {first}; the first {} of them had {}\n",
            self.count,
            incidents(self.count),
            hosts.len(),
            share(top, self.count),
        );
        if self.dropped > 0 {
            let _ = writeln!(text, "{} older incidents were dropped at a limit", self.dropped);
        }
        let width = hosts.iter().map(|(host, _)| host.0.as_str().len()).max().unwrap_or(0).max(4);
        let heads = format!("{:<width$}  incidents   share  in {PERIOD_DAYS} days  score  last, classes", "host");
        let _ = writeln!(text, "{heads}");
        for (host, of) in hosts {
            let recent = self.recent(host, now).len();
            let (all, part) = (of.len(), share(of.len(), self.count));
            let (whole, hundredths) = parts(self.score(host, now));
            let last = of.last().map(|last| format!("{}, {}", last.class, ago(age_ms(last, now)))).unwrap_or_default();
            let classes = classes(of);
            let name = host.0.as_str();
            let _ = writeln!(
                text,
                "{name:<width$}  {all:>9}  {part:>6}  {recent:>10}  {whole:>2}.{hundredths:02}  {last} ({classes})"
            );
        }
        text
    }
}

/// Returns the whole and the hundredths of a score.
const fn parts(score: u64) -> (u64, u64) {
    (score / WEIGHT_NOW, score % WEIGHT_NOW * 100 / WEIGHT_NOW)
}

/// Returns a part of all incidents in percent.
fn share(part: usize, all: usize) -> String {
    format!("{} %", (part * 100 + all / 2).checked_div(all).unwrap_or(0))
}

/// Returns the number of incidents of each class.
pub(crate) fn classes(incidents: &[HostIncident]) -> String {
    let mut classes: BTreeMap<&Name, usize> = BTreeMap::new();
    incidents.iter().for_each(|incident| *classes.entry(&incident.class).or_default() += 1);
    let classes: Vec<String> = classes.into_iter().map(|(class, count)| format!("{class} {count}")).collect();
    classes.join(", ")
}

const fn incidents(count: usize) -> &'static str {
    if count == 1 { "incident" } else { "incidents" }
}

/// Returns an age in its largest unit.
fn ago(age_ms: u64) -> String {
    let units = [(MS_PER_DAY, "day"), (MS_PER_HOUR, "hour"), (MS_PER_MINUTE, "minute")];
    match units.into_iter().find(|(unit, _)| age_ms >= *unit) {
        None => "just now".into(),
        Some((unit, name)) if age_ms / unit == 1 => format!("1 {name} ago"),
        Some((unit, name)) => format!("{} {name}s ago", age_ms / unit),
    }
}
