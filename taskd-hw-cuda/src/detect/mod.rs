//! The GPU fault detector: turns Xids and NVML metrics into faults, with the action that NVIDIA recommends.
//!
//! The detector reads neither devices nor clocks. It only reports faults; recovery strategies decide from the damage.

mod rule;
mod verdict;
mod watch;

pub use rule::{Limit, Rule, Way};

use crate::health::{COUNTER_WENT_BACK, GPU_LOST, GpuIdentity, NVML, RESET_REQUIRED, metric};
use crate::xid::{Action, Line, SXID, XID, XidTable};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use taskd_core::detect::{FaultDetector, Findings};
use taskd_core::job::{Domain, ErrorReport, JobTime, Name, ProcId};
use taskd_core::state::View;
use taskd_core::trace::{DecodeError, Observation, Signal};
use watch::{Hold, Pending, Seen, Watch};

const NAME: Name = Name::new("gpu");
const SNAPSHOT_VERSION: u8 = 1;

/// Maximum number of devices and nodes that the GPU detector watches. The detector ignores facts about further devices
/// and nodes, and reports once, as a plugin fault, that the maximum is reached.
pub const DEVICES_MAX: usize = 1 << 17;

/// Time after an Xid with the action [`RestartApp`](Action::RestartApp) within which the rank that the driver names has
/// to end by itself or to complete a step. If the rank does neither, the GPU detector blames it.
pub const APP_WITHIN: Duration = Duration::from_secs(10);

/// Maximum time between two Xids of the same event.
const FOLLOWS_WITHIN: Duration = Duration::from_secs(2);

/// Fault detector for GPUs: blames GPUs that do not work, and reports GPUs whose problems do not stop training.
///
/// # Xids
/// What the detector does about an Xid depends on the [`Action`] that the [`XidTable`] recommends for it:
///
/// - **The GPU does not work until it is reset or its node is rebooted** (`reset-gpu`, `drain-and-reset`,
///   `reboot-node`): the detector blames the GPU with certainty. The fault has the class `device`, and its damage
///   states that the rank's process, its training state in memory and the device are faulty, so that the built-in
///   restart moves ranks off that host. The detector does the same if NVML reports the GPU as lost or in need of a
///   reset, or if the driver recommends one of these actions for the GPU. If the job is known not to use the GPU, the
///   Xid is reported without blame (see below).
/// - **The application has to be restarted** (`restart-app`: Xids 13, 31, 94, ...): the detector does not blame the
///   GPU. The Xid names a process. If this process is a rank of the job, the rank has ten seconds ([`APP_WITHIN`]) to
///   exit, in which case the fault of its exit has more detail, or to complete a step. If the rank does neither, the
///   detector blames the rank. If the process is not a rank of the job, or the GPU is blamed already, there is no
///   fault.
/// - **Nothing has to be done about this Xid** (`ignore`, such as Xid 43; `follow-other`, such as Xid 45, which follows
///   another error): there is no fault.
/// - **All other actions, and Xids without an entry in the table**: the detector reports the Xid *without blame*. The
///   fault has a class of its own (`gpu-xid`), and its damage states that process and training state are healthy. The
///   fault is logged with NVIDIA's recommended action, and no rank is restarted for it.
///
/// The world (the ranks that train together) states which rank uses which device
/// ([`Member::device`](taskd_core::job::Member)), by NVML index, so jobs that assign devices have to start with
/// `CUDA_DEVICE_ORDER=PCI_BUS_ID`. A rank whose device is unknown may use any GPU of its host. The process ids in Xids
/// are those of the initial pid namespace of Linux. In a container with its own pid namespace they identify no rank;
/// then only other detectors handle ranks that end or hang.
///
/// # Metrics
/// Each [`Rule`] limits one metric: it is violated if the metric is at or above the limit in k of the last n samples,
/// or grows by at least the limit within a time. The detector reports a violation without blame, as a fault whose class
/// is the name of the rule. It clears the fault when the metric has stayed below the limit by the rule's margin, or has
/// not grown, for the rule's time [`over_after`](Rule::over_after).
///
/// # When blame is cleared
/// The detector clears the blame of a GPU when
/// - another card has the GPU's device index (the card was replaced),
/// - the GPU answers again after NVML reported it as lost or in need of a reset,
/// - one of the GPU's counters is smaller than before (the GPU was reset), or
/// - the driver no longer recommends an action for the GPU, if the blame came from the driver's recommendation.
///
/// ```
/// use taskd_core::detect::{FaultDetector, defaults};
/// use taskd_hw_cuda::detect::GpuDetector;
///
/// let mut detectors = defaults();
/// detectors.push(Box::new(GpuDetector::new()));
/// # assert_eq!(detectors.last().map(|d| d.name().to_string()).as_deref(), Some("gpu"));
/// ```
#[derive(Debug)]
pub struct GpuDetector {
    table: Arc<XidTable>,
    rules: Arc<[Rule]>,
    state: State,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    watches: BTreeMap<Domain, Watch>,
    /// Time at which the first of the Xids that wait to be judged is due.
    due: Option<JobTime>,
    /// True if a bound of the detector, such as the number of devices, was reached and reported.
    is_full: bool,
}

impl Default for GpuDetector {
    fn default() -> GpuDetector {
        GpuDetector::new()
    }
}

impl GpuDetector {
    /// Creates a detector with NVIDIA's table of Xids and the default rules for metrics.
    #[must_use]
    pub fn new() -> GpuDetector {
        GpuDetector { table: Arc::new(XidTable::built_in()), rules: rule::usual().into(), state: State::default() }
    }

    /// Sets the table of recommended actions by which the detector judges Xids. Default: [`XidTable::built_in`].
    #[must_use]
    pub fn with_table(mut self, table: XidTable) -> GpuDetector {
        self.table = Arc::new(table);
        self
    }

    /// Sets the rules for metrics. Of several rules with the same name only the last one applies. Default:
    /// [`Rule::usual`].
    #[must_use]
    pub fn with_rules(mut self, rules: impl IntoIterator<Item = Rule>) -> GpuDetector {
        let rules: BTreeMap<Name, Rule> = rules.into_iter().map(|rule| (rule.name.clone(), rule)).collect();
        self.rules = rules.into_values().collect();
        self
    }

    fn watch(&mut self, about: &Domain, view: &View, out: &mut Findings) -> Option<&mut Watch> {
        if !self.state.watches.contains_key(about) && self.state.watches.len() >= DEVICES_MAX {
            self.full(about, view, out);
            return None;
        }
        Some(self.state.watches.entry(about.clone()).or_default())
    }

    /// Reports, once, that a bound of the detector is reached and that facts about this device are not judged.
    fn full(&mut self, about: &Domain, view: &View, out: &mut Findings) {
        if !std::mem::replace(&mut self.state.is_full, true) {
            out.blame(verdict::full(about, view.now));
        }
    }

    fn xid(&mut self, o: &Observation, error: &ErrorReport, view: &View, out: &mut Findings) {
        let Ok(code) = error.code.as_str().parse::<u32>() else { return };
        let at = o.at.min(view.now);
        let entry = self.table.get(code).cloned();
        let Some(watch) = self.watch(&o.about, view, out) else { return };
        let pending = watch.arrived(code, at);
        let seen = Seen { code, at, error: error.clone(), entry };
        let Some(entry) = &seen.entry else { return out.blame(verdict::told(&o.about, &seen, None, watch)) };
        if pending || entry.unless.is_some_and(|other| watch.has_seen(other, at, FOLLOWS_WITHIN)) {
            return; // the other Xid is judged
        }
        if entry.unless.is_some() {
            let due = view.now + FOLLOWS_WITHIN;
            return self.hold(&o.about, Pending { due, seen, hold: Hold::Follower }, view, out);
        }
        self.judge(&o.about, &seen, view, out);
    }

    /// Judges an Xid that is in the table: blames the GPU, reports the Xid, waits, or does nothing.
    fn judge(&mut self, about: &Domain, seen: &Seen, view: &View, out: &mut Findings) {
        let Some(entry) = &seen.entry else { return };
        let action = match entry.action {
            Action::RecoveryAction => {
                Line::recovery_action_in(&seen.error.text).and_then(Action::of_driver).unwrap_or(entry.action)
            }
            action => action,
        };
        let Some(watch) = self.state.watches.get_mut(about) else { return };
        match action {
            Action::Ignore | Action::FollowOther => {}
            Action::RestartApp => {
                let proc = Line::pid_in(&seen.error.text).and_then(|pid| rank_of(about, pid, view));
                if let Some(proc) = proc.filter(|_| !watch.is_broken) {
                    let hold = Hold::App(proc);
                    let due = view.now + APP_WITHIN;
                    self.hold(about, Pending { due, seen: seen.clone(), hold }, view, out);
                }
            }
            action if action.takes_the_gpu() => verdict::broken(about, seen, action, watch, view, out),
            action => out.blame(verdict::told(about, seen, Some(action), watch)),
        }
    }

    fn hold(&mut self, about: &Domain, pending: Pending, view: &View, out: &mut Findings) {
        let due = pending.due;
        match self.state.watches.get_mut(about).map(|watch| watch.hold(pending)) {
            Some(true) => self.state.due = Some(self.state.due.map_or(due, |first| first.min(due))),
            _ => self.full(about, view, out),
        }
    }

    /// Handles an error that NVML reports about a device.
    fn nvml(&mut self, o: &Observation, error: &ErrorReport, view: &View, out: &mut Findings) {
        let action = match &error.code {
            code if *code == GPU_LOST => Action::RebootNode,
            code if *code == RESET_REQUIRED => Action::ResetGpu,
            code if *code == COUNTER_WENT_BACK => {
                if let Some(watch) = self.watch(&o.about, view, out) {
                    watch.is_well(&o.about, out);
                }
                return;
            }
            _ => return,
        };
        let seen = Seen { code: 0, at: o.at.min(view.now), error: error.clone(), entry: None };
        let Some(watch) = self.watch(&o.about, view, out) else { return };
        watch.is_lost = true;
        verdict::broken(&o.about, &seen, action, watch, view, out);
    }

    fn measured(&mut self, o: &Observation, name: &Name, value: f64, view: &View, out: &mut Findings) {
        let (rules, at) = (Arc::clone(&self.rules), o.at.min(view.now));
        let Some(watch) = self.watch(&o.about, view, out) else { return };
        if *name == metric::RECOVERY_ACTION {
            return recovery_action(o, value, watch, view, out);
        }
        watch.figure(name, value, &rules);
        for rule in rules.iter() {
            watch.apply(rule, name, value, at, &o.about, out);
        }
    }
}

/// Handles the driver's recommended recovery action for a device.
fn recovery_action(o: &Observation, value: f64, watch: &mut Watch, view: &View, out: &mut Findings) {
    let code = (0..=255_u32).find(|code| f64::from(*code) == value);
    let action = code.and_then(Action::of_driver);
    if action == Some(Action::Ignore) {
        if std::mem::take(&mut watch.by_driver) {
            watch.is_well(&o.about, out);
        }
        return;
    }
    let text = format!("the GPU's recovery action is {value}");
    let error = ErrorReport::new(NVML, "recovery-action", text);
    let seen = Seen { code: 0, at: o.at.min(view.now), error, entry: None };
    match action {
        Some(action) if action.takes_the_gpu() => {
            watch.by_driver = true;
            verdict::broken(&o.about, &seen, action, watch, view, out);
        }
        action => out.blame(verdict::told(&o.about, &seen, action, watch)),
    }
}

/// Returns the rank that runs as process `pid` on the host of this device, if it may use the device.
fn rank_of(about: &Domain, pid: u32, view: &View) -> Option<ProcId> {
    let node = view.node_of(about)?;
    let is_here = |role: &taskd_core::job::Role| {
        let sits = role.rank().and_then(|rank| view.device_of(rank));
        sits.is_none_or(|device| device == *about)
    };
    let mut procs = view.procs.iter();
    let (role, proc) = procs.find(|(role, proc)| {
        proc.pid == Some(pid) && proc.node.as_ref() == Some(node) && proc.wanted && is_here(role)
    })?;
    Some(ProcId { role: role.clone(), incarnation: proc.incarnation })
}

impl FaultDetector for GpuDetector {
    fn name(&self) -> Name {
        NAME
    }

    fn config(&self) -> String {
        let rules: Vec<String> = self.rules.iter().map(ToString::to_string).collect();
        format!("table={:016x} rules=[{}]", self.table.fingerprint(), rules.join(", "))
    }

    fn observe(&mut self, o: &Observation, view: &View, out: &mut Findings) {
        let is_device = matches!(o.about, Domain::Device(..));
        match &o.signal {
            Signal::Error(error) if error.family == XID => self.xid(o, error, view, out),
            Signal::Error(error) if error.family == SXID => {
                let seen = Seen { code: 0, at: o.at.min(view.now), error: (**error).clone(), entry: None };
                if let Some(watch) = self.watch(&o.about, view, out) {
                    out.blame(verdict::told(&o.about, &seen, Some(Action::CheckFabric), watch));
                }
            }
            Signal::Error(error) if error.family == NVML && is_device => self.nvml(o, error, view, out),
            Signal::Metric { name, value } if is_device && name.as_str().starts_with("gpu.") => {
                self.measured(o, name, *value, view, out);
            }
            Signal::Ext(ext) if is_device => {
                if let Some(Ok(identity)) = ext.get::<GpuIdentity>()
                    && let Some(watch) = self.watch(&o.about, view, out)
                {
                    watch.identified(identity, &o.about, out);
                }
            }
            _ => {}
        }
    }

    fn deadline(&self) -> Option<JobTime> {
        self.state.due
    }

    fn expire(&mut self, view: &View, out: &mut Findings) {
        let mut due = Vec::new();
        for (about, watch) in &mut self.state.watches {
            due.extend(watch.take_due(view.now).into_iter().map(|pending| (about.clone(), pending)));
        }
        self.state.due = self.state.watches.values().filter_map(Watch::due).min();
        for (about, pending) in due {
            match pending.hold {
                Hold::Follower => self.judge(&about, &pending.seen, view, out),
                Hold::App(proc) => verdict::application(&proc, &pending.seen, view, out),
            }
        }
    }

    fn snapshot(&self) -> Option<Bytes> {
        postcard::to_stdvec(&(SNAPSHOT_VERSION, &self.state)).ok().map(Bytes::from)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), DecodeError> {
        let state = match saved.split_first() {
            Some((&SNAPSHOT_VERSION, state)) => postcard::take_from_bytes(state),
            _ => return Err(DecodeError),
        };
        match state {
            Ok((state, [])) => self.state = state,
            _ => return Err(DecodeError),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
