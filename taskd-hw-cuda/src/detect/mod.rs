//! From what GPUs say to faults, with what NVIDIA says to do.
//!
//! It reads no device and no clock, and does nothing about a fault: strategies decide from the damage.

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
use taskd_core::kernel::View;
use taskd_core::trace::{Malformed, Observation, Signal};
use watch::{Hold, Pending, Seen, Watch};

const NAME: Name = Name::new("gpu");
const SNAPSHOT_VERSION: u8 = 1;

/// Most devices and nodes that are watched. What is said of more is not judged, and that is told once, as a fault of this plugin.
pub const DEVICES_MAX: usize = 1 << 17;

/// An error that its application may survive, or end of by itself and with a report, is judged after this time.
pub const APP_WITHIN: Duration = Duration::from_secs(10);

/// Of two Xids of one event the second follows within this time.
const FOLLOWS_WITHIN: Duration = Duration::from_secs(2);

/// Blames GPUs that do not work, and tells of those that are in trouble.
///
/// # Xids
/// What is to be done stands in the [`XidTable`]. A GPU that does not work until somebody resets it or reboots its node
/// (`reset-gpu`, `drain-and-reset`, `reboot-node`; also one that NVML calls lost or in need of a reset, and one for which the
/// driver's own recovery action says so) is blamed for certain, class `device`, with process, state and device not sound:
/// the built-in restart leaves such a host. If the job is known not to use the GPU, it is only told.
///
/// An error after which the application is to be started again (`restart-app`: 13, 31, 94, ...) is never blamed on the GPU.
/// The driver names the process; if that is a rank of the job, the rank has ten seconds ([`APP_WITHIN`]) to end by itself,
/// with a report that says more, or to complete a step. If it does neither, the rank is blamed. A process that is none of the
/// job's blames nobody.
///
/// What comes of something else (43, 45) blames nobody, and neither does information. Everything else, and an Xid that is
/// not in the table, is *told*: a fault of a class of its own (`gpu-xid`) whose damage says that process and state are
/// sound, so that it stands in the log with what NVIDIA says to do, and nobody is restarted for it.
///
/// Which rank sits on which device is what the world says ([`Member::device`](taskd_core::job::Member)), by NVML's indices: jobs
/// that name devices start with `CUDA_DEVICE_ORDER=PCI_BUS_ID`. Of a rank whose device nobody knows any GPU of its host may be.
/// Process ids are those of the kernel; in a container with a namespace of its own no rank is found by them, and what then
/// ends or hangs is for other detectors to find.
///
/// # Figures
/// [`Rule`]s bound what is measured: so many of so many samples over a limit, or so much growth within a time. What they
/// find is told in the same way, under the rule's name, and taken back when the figure has stayed below the limit by a
/// margin for a while.
///
/// # What takes blame back
/// The device is another card, answers again after it was lost, has its counters back at the beginning (it was reset), or the
/// driver asks for nothing any more.
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
    /// When the first thing that waits is to be judged.
    due: Option<JobTime>,
    /// A bound was reached, and that was told.
    is_full: bool,
}

impl Default for GpuDetector {
    fn default() -> GpuDetector {
        GpuDetector::new()
    }
}

impl GpuDetector {
    /// A detector with NVIDIA's table and the usual rules.
    #[must_use]
    pub fn new() -> GpuDetector {
        GpuDetector { table: Arc::new(XidTable::built_in()), rules: rule::usual().into(), state: State::default() }
    }

    /// Judges Xids by another table.
    #[must_use]
    pub fn with_table(mut self, table: XidTable) -> GpuDetector {
        self.table = Arc::new(table);
        self
    }

    /// Judges figures by other rules ([`Rule::usual`] are those that there are). Of two with one name the last counts.
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

    /// A bound is reached: something about this device is not judged.
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
            return; // the other one is judged
        }
        if entry.unless.is_some() {
            let due = view.now + FOLLOWS_WITHIN;
            return self.hold(&o.about, Pending { due, seen, hold: Hold::Follower }, view, out);
        }
        self.judge(&o.about, &seen, view, out);
    }

    /// Judges an Xid of the table.
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

    /// What NVML says of a device.
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

/// The driver says what is to be done about a device.
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
    let error = ErrorReport {
        family: NVML,
        code: Name::new("recovery-action"),
        text,
        follow_up: false,
        retry_free: false,
        step: None,
    };
    let seen = Seen { code: 0, at: o.at.min(view.now), error, entry: None };
    match action {
        Some(action) if action.takes_the_gpu() => {
            watch.by_driver = true;
            verdict::broken(&o.about, &seen, action, watch, view, out);
        }
        action => out.blame(verdict::told(&o.about, &seen, action, watch)),
    }
}

/// The rank of the job that runs as this process on the host of this device, where that can be.
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

    fn restore(&mut self, saved: &[u8]) -> Result<(), Malformed> {
        let state = match saved.split_first() {
            Some((&SNAPSHOT_VERSION, state)) => postcard::take_from_bytes(state),
            _ => return Err(Malformed),
        };
        match state {
            Ok((state, [])) => self.state = state,
            _ => return Err(Malformed),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
