//! State of one watched device.
//!
//! The state is bounded. The only findings that it produces by itself are violations of rules, and the ends of faults.

use super::rule::{Limit, Rule, SAMPLES_MAX, Way};
use super::verdict;
use crate::health::GpuIdentity;
use crate::xid::Entry;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use taskd_core::detect::{FaultClass, Findings};
use taskd_core::job::{Domain, ErrorReport, JobTime, Name, ProcId};

/// Maximum number of Xids that are remembered per device, as evidence.
const XIDS_KEPT_MAX: usize = 16;

/// Maximum number of pending items per device, one per process and Xid: real devices have fewer. Further ones are not
/// judged.
const PENDING_MAX: usize = 64;

/// Maximum number of changes of a counter that are remembered within a rule's time.
const CHANGES_KEPT_MAX: usize = 64;

/// State of one device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Watch {
    pub(super) identity: GpuIdentity,
    /// True if the device was blamed, and nothing observed since then indicates a repair.
    pub(super) is_broken: bool,
    /// True if NVML has reported the device as lost or in need of a reset.
    pub(super) is_lost: bool,
    /// True while the driver's recovery action asks for a reset of the device or a reboot.
    pub(super) by_driver: bool,
    /// Most recent Xids, oldest first.
    pub(super) xids: VecDeque<(u32, JobTime)>,
    pending: Vec<Pending>,
    /// Latest values of the metrics that serve as limits of other metrics.
    limits: BTreeMap<Name, f64>,
    levels: BTreeMap<Name, Level>,
}

/// An Xid, or an error that NVML reported.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Seen {
    /// Xid number; 0 for other errors.
    pub(super) code: u32,
    pub(super) at: JobTime,
    pub(super) error: ErrorReport,
    #[serde(with = "entry")]
    pub(super) entry: Option<Entry>,
}

/// Reason why an item is pending.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Hold {
    /// Another Xid may follow and replace the pending one.
    Follower,
    /// The process that the Xid is about may end by itself.
    App(ProcId),
}

/// An item to be judged later.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Pending {
    pub(super) due: JobTime,
    pub(super) seen: Seen,
    pub(super) hold: Hold,
}

/// State of one rule.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Level {
    /// Latest samples of the metric as bits, the newest in the lowest bit: 1 if the sample was at or beyond the limit.
    samples: u64,
    count: u32,
    /// Value of the metric at each change, with the time, for a rule about growth.
    changes: VecDeque<(JobTime, f64)>,
    is_told: bool,
    /// Time since which the metric is below its limit by at least the margin, or has not grown.
    calm_since: Option<JobTime>,
}

impl Watch {
    /// Records an Xid and drops the pending Xids that it replaces. Returns true if the same Xid is pending already.
    pub(super) fn arrived(&mut self, code: u32, at: JobTime) -> bool {
        if self.xids.len() >= XIDS_KEPT_MAX {
            self.xids.pop_front();
        }
        self.xids.push_back((code, at));
        let is_awaited = |p: &Pending| p.seen.entry.as_ref().and_then(|entry| entry.unless) == Some(code);
        self.pending.retain(|pending| !(matches!(pending.hold, Hold::Follower) && is_awaited(pending)));
        // A repetition of a pending Xid is judged together with it.
        self.pending.iter().any(|pending| pending.seen.code == code && matches!(pending.hold, Hold::Follower))
    }

    pub(super) fn has_seen(&self, code: u32, now: JobTime, within: Duration) -> bool {
        self.xids.iter().any(|(seen, at)| *seen == code && now.since(*at) <= within)
    }

    /// Adds a pending item unless it is there already. Returns false if there is no room for it.
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

    /// Drops the pending application errors: the fault of the device explains them.
    pub(super) fn forget_applications(&mut self) {
        self.pending.retain(|pending| matches!(pending.hold, Hold::Follower));
    }

    pub(super) fn take_due(&mut self, now: JobTime) -> Vec<Pending> {
        self.pending.extract_if(.., |pending| pending.due <= now).collect()
    }

    pub(super) fn due(&self) -> Option<JobTime> {
        self.pending.iter().map(|pending| pending.due).min()
    }

    /// Takes the device's identity: another card, or an answer after a loss, clears the blame.
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

    /// Clears the blame after an observation that indicates a repair.
    pub(super) fn is_well(&mut self, about: &Domain, out: &mut Findings) {
        (self.is_lost, self.by_driver) = (false, false);
        if std::mem::take(&mut self.is_broken) {
            out.clear(about.clone(), FaultClass::Device);
        }
    }

    /// Stores the metric if it serves as the limit of another one.
    pub(super) fn figure(&mut self, name: &Name, value: f64, rules: &[Rule]) {
        if rules.iter().any(|rule| matches!(&rule.limit, Limit::Metric(other) if other == name)) {
            self.limits.insert(name.clone(), value);
        }
    }

    /// Applies a rule to a new sample, which may be of another metric: that one shows that time has passed.
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
            Limit::Metric(other) => self.limits.get(other).copied().filter(|limit| *limit > 0.0), // 0: no limit
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
                // With a margin of 0, a value at the limit must not count as calm.
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
    /// Returns the growth of the counter within this time.
    fn grown(&mut self, value: Option<f64>, at: JobTime, within: Duration) -> f64 {
        if let Some(value) = value {
            if self.changes.back().is_some_and(|(_, last)| value < *last) {
                self.changes.clear(); // the counter restarted
            }
            if self.changes.len() >= CHANGES_KEPT_MAX {
                self.changes.remove(1); // the first one is the base of the growth
            }
            self.changes.push_back((at, value));
        }
        // The value at the start of the time is the base of the growth.
        while self.changes.get(1).is_some_and(|(next, _)| at.since(*next) >= within) {
            self.changes.pop_front();
        }
        match (self.changes.front(), self.changes.back()) {
            (Some((_, from)), Some((last, to))) if at.since(*last) <= within => to - from,
            _ => 0.0,
        }
    }
}

/// Serializes a table entry as a tuple: its JSON form omits default values, which a positional format cannot read back.
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
