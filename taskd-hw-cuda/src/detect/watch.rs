//! What is known of one device.
//!
//! It keeps what verdicts need, within bounds, and says nothing by itself but that something is over.

use super::rule::{Limit, Rule, SAMPLES_MAX, Way};
use super::verdict;
use crate::health::GpuIdentity;
use crate::xid::Entry;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use taskd_core::detect::{FaultClass, Findings};
use taskd_core::job::{Domain, ErrorReport, JobTime, Name, ProcId};

/// So many Xids of a device are remembered, for clues.
const XIDS_KEPT_MAX: usize = 16;

/// So many may wait to be judged, one for each process and Xid: a device has fewer of them. What comes beside is not judged.
const PENDING_MAX: usize = 64;

/// So many changes of a counter are remembered within a rule's time.
const CHANGES_KEPT_MAX: usize = 64;

/// What is known of one device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Watch {
    pub(super) identity: GpuIdentity,
    /// It was blamed, and nothing was seen since that would mend it.
    pub(super) is_broken: bool,
    /// NVML has called it lost, or in need of a reset.
    pub(super) is_lost: bool,
    /// The driver's recovery action says so.
    pub(super) by_driver: bool,
    /// The last Xids, oldest first.
    pub(super) xids: VecDeque<(u32, JobTime)>,
    pending: Vec<Pending>,
    /// Figures that others are compared with.
    limits: BTreeMap<Name, f64>,
    levels: BTreeMap<Name, Level>,
}

/// An Xid, or what NVML said.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Seen {
    /// Its number; 0 for what is no Xid.
    pub(super) code: u32,
    pub(super) at: JobTime,
    pub(super) error: ErrorReport,
    #[serde(with = "entry")]
    pub(super) entry: Option<Entry>,
}

/// Why something waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Hold {
    /// Another Xid may follow and take its place.
    Follower,
    /// The process may end by itself.
    App(ProcId),
}

/// What is to be judged later.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Pending {
    pub(super) due: JobTime,
    pub(super) seen: Seen,
    pub(super) hold: Hold,
}

/// How one rule stands.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Level {
    /// Samples, the latest in the lowest bit: whether they were beyond the limit.
    samples: u64,
    count: u32,
    /// The counter's value at each change.
    changes: VecDeque<(JobTime, f64)>,
    is_told: bool,
    /// Since when it is below its limit by more than the margin.
    calm_since: Option<JobTime>,
}

impl Watch {
    /// An Xid has come. True: it takes the place of one that waits, and that has waited for it.
    pub(super) fn arrived(&mut self, code: u32, at: JobTime) -> bool {
        if self.xids.len() >= XIDS_KEPT_MAX {
            self.xids.pop_front();
        }
        self.xids.push_back((code, at));
        let is_awaited = |p: &Pending| p.seen.entry.as_ref().and_then(|entry| entry.unless) == Some(code);
        self.pending.retain(|pending| !(matches!(pending.hold, Hold::Follower) && is_awaited(pending)));
        // The same again while it waits is one.
        self.pending.iter().any(|pending| pending.seen.code == code && matches!(pending.hold, Hold::Follower))
    }

    pub(super) fn has_seen(&self, code: u32, now: JobTime, within: Duration) -> bool {
        self.xids.iter().any(|(seen, at)| *seen == code && now.since(*at) <= within)
    }

    /// Keeps something to be judged later, once. False: there is no room for it.
    pub(super) fn hold(&mut self, pending: Pending) -> bool {
        let is_there = |p: &Pending| p.hold == pending.hold && p.seen.code == pending.seen.code;
        if self.pending.iter().any(is_there) {
            return true;
        }
        let has_room = self.pending.len() < PENDING_MAX;
        if has_room {
            self.pending.push(pending);
        }
        has_room
    }

    /// What waits for an application is explained by the device.
    pub(super) fn forget_applications(&mut self) {
        self.pending.retain(|pending| matches!(pending.hold, Hold::Follower));
    }

    pub(super) fn take_due(&mut self, now: JobTime) -> Vec<Pending> {
        self.pending.extract_if(.., |pending| pending.due <= now).collect()
    }

    pub(super) fn due(&self) -> Option<JobTime> {
        self.pending.iter().map(|pending| pending.due).min()
    }

    /// The device says who it is.
    pub(super) fn identified(&mut self, identity: GpuIdentity, about: &Domain, out: &mut Findings) {
        let is_another = !self.identity.uuid.is_empty() && self.identity.uuid != identity.uuid;
        if is_another || self.is_lost {
            self.is_well(about, out);
        }
        if is_another {
            *self = Watch::default();
        }
        self.identity = identity;
    }

    /// Something was seen that mends it.
    pub(super) fn is_well(&mut self, about: &Domain, out: &mut Findings) {
        (self.is_lost, self.by_driver) = (false, false);
        if std::mem::take(&mut self.is_broken) {
            out.clear(about.clone(), FaultClass::Device);
        }
    }

    /// Keeps a figure that others are compared with.
    pub(super) fn figure(&mut self, name: &Name, value: f64, rules: &[Rule]) {
        if rules.iter().any(|rule| matches!(&rule.limit, Limit::Metric(other) if other == name)) {
            self.limits.insert(name.clone(), value);
        }
    }

    /// A figure has come: of the rule's metric, or of another one, which says that time has passed.
    pub(super) fn apply(
        &mut self,
        rule: &Rule,
        name: &Name,
        value: f64,
        at: JobTime,
        about: &Domain,
        out: &mut Findings,
    ) {
        let limit = match &rule.limit {
            Limit::Value(limit) => Some(*limit),
            Limit::Metric(other) => self.limits.get(other).copied().filter(|limit| *limit > 0.0), // 0: the driver knows none
        };
        let is_mine = *name == rule.metric && !value.is_nan();
        let (Some(limit), true) = (limit, is_mine || self.levels.contains_key(&rule.name)) else { return };
        let level = self.levels.entry(rule.name.clone()).or_default();
        let (is_beyond, is_calm, found) = match rule.way {
            Way::Level { least, of } => {
                if !is_mine {
                    return;
                }
                let of = of.clamp(1, SAMPLES_MAX);
                level.count = (level.count + 1).min(of);
                level.samples = level.samples << 1 | u64::from(value >= limit);
                let beyond = (level.samples & (u64::MAX >> (64 - of))).count_ones();
                // With the margin, a limit of 1 for something that is 0 or 1 is still one.
                (beyond >= least.clamp(1, of), value < limit && value <= limit - rule.margin, value)
            }
            Way::Growth { within } => {
                let grown = level.grown(is_mine.then_some(value), at, within);
                (grown >= limit, grown == 0.0, grown)
            }
        };
        if is_beyond && !level.is_told {
            level.is_told = true;
            out.blame(verdict::measured(about, rule, found, limit, at, &self.identity));
        }
        if !is_calm {
            level.calm_since = None;
            return;
        }
        let since = *level.calm_since.get_or_insert(at);
        if level.is_told && !is_beyond && at.since(since) >= rule.over_after {
            (level.is_told, level.samples) = (false, 0);
            out.clear(about.clone(), FaultClass::Other(rule.name.clone()));
        }
    }
}

impl Level {
    /// How much the counter has grown within this time.
    fn grown(&mut self, value: Option<f64>, at: JobTime, within: Duration) -> f64 {
        if let Some(value) = value {
            if self.changes.back().is_some_and(|(_, last)| value < *last) {
                self.changes.clear(); // it has begun anew
            }
            if self.changes.len() >= CHANGES_KEPT_MAX {
                self.changes.remove(1); // the first is what growth is counted from
            }
            self.changes.push_back((at, value));
        }
        // What was there at the beginning of the time is what it has grown from.
        while self.changes.get(1).is_some_and(|(next, _)| at.since(*next) >= within) {
            self.changes.pop_front();
        }
        match (self.changes.front(), self.changes.back()) {
            (Some((_, from)), Some((last, to))) if at.since(*last) <= within => to - from,
            _ => 0.0,
        }
    }
}

/// An entry of the table by position: its own form leaves fields out, which is for people.
mod entry {
    use crate::xid::{Action, Entry};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    type Form = Option<(u32, String, Action, bool, Option<u32>, String)>;

    pub(super) fn serialize<S: Serializer>(entry: &Option<Entry>, s: S) -> Result<S::Ok, S::Error> {
        let form: Form = entry.clone().map(|e| (e.xid, e.name, e.action, e.application, e.unless, e.note));
        form.serialize(s)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Entry>, D::Error> {
        let form = Form::deserialize(d)?;
        Ok(form.map(|(xid, name, action, application, unless, note)| Entry {
            xid,
            name,
            action,
            application,
            unless,
            note,
        }))
    }
}
