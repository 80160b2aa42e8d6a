//! Builds the faults: suspect, damage and evidence.
//!
//! The functions keep no state.

use super::rule::{Rule, Way};
use super::watch::{Seen, Watch};
use super::{APP_WITHIN, NAME};
use crate::health::GpuIdentity;
use crate::xid::{Action, XID};
use taskd_core::detect::{Damage, Evidence, Fault, FaultClass, Findings, Health, Suspect};
use taskd_core::job::{Domain, JobTime, Name, ProcId};
use taskd_core::state::View;

/// Class of an Xid that is reported and not acted upon.
const XID_TOLD: Name = Name::new("gpu-xid");

/// Name of the strategy that restarts ranks.
const RESTART: Name = Name::new("restart");

/// Confidence of faults that are reported without blame.
const TOLD_PERMILLE: u16 = 600;

/// Damage of a process whose device no longer works.
const GONE: Damage =
    Damage { process: Health::Faulty, state: Health::Faulty, device: Health::Faulty, program: Health::Unknown };

/// Damage of a fault that does not stop the job from training.
const TRAINS: Damage =
    Damage { process: Health::Healthy, state: Health::Healthy, device: Health::Unknown, program: Health::Unknown };

/// Blames a device that does not work.
pub(super) fn broken(about: &Domain, seen: &Seen, action: Action, watch: &mut Watch, view: &View, out: &mut Findings) {
    if !is_used(about, view) {
        let fault = told(about, seen, Some(action), watch);
        return out.blame(fault.with_evidence(Evidence::text("use", "no rank of the job is known to use it")));
    }
    watch.is_broken = true;
    watch.forget_applications();
    let suspect = Suspect::certain(about.clone(), FaultClass::Device, GONE);
    out.blame(explained(Fault::new(NAME, seen.at, suspect), seen, Some(action), watch));
}

/// Returns true if the job may use the device. A rank whose device is unknown may use any device of its host. A device
/// on a host without ranks counts as used too, since that host is a spare that ranks should not move to. Reports about
/// a whole host concern a device that is not watched, so they return false.
fn is_used(about: &Domain, view: &View) -> bool {
    let Domain::Device(node, _) = about else { return false };
    let mut here = view.world.members().keys().filter(|rank| {
        let role = taskd_core::job::Role::Rank(**rank);
        view.node_of(&Domain::Process(role)) == Some(node)
    });
    let Some(first) = here.next() else { return true };
    let may_use = |rank| view.device_of(rank).is_none_or(|device| device == *about);
    may_use(*first) || here.any(|rank| may_use(*rank))
}

/// Builds a fault that needs an operator's attention but does not stop training.
pub(super) fn told(about: &Domain, seen: &Seen, action: Option<Action>, watch: &Watch) -> Fault {
    let class = FaultClass::Other(XID_TOLD);
    let suspect = Suspect::new(about.clone(), class, TRAINS, TOLD_PERMILLE);
    explained(Fault::new(NAME, seen.at, suspect), seen, action, watch)
}

/// Blames a rank that the driver named and that neither ended nor completed a step in time.
pub(super) fn application(id: &ProcId, seen: &Seen, view: &View, out: &mut Findings) {
    let Some(proc) = view.proc(&id.role).filter(|p| p.incarnation == id.incarnation) else { return };
    let goes_on = proc.step.is_some() && proc.progress_at > seen.at;
    if !proc.wanted || proc.phase.is_over() || goes_on {
        return;
    }
    let is_own = seen.entry.as_ref().is_some_and(|entry| entry.application);
    let class = if is_own { FaultClass::Program } else { FaultClass::Device };
    let damage =
        Damage { process: Health::Faulty, state: Health::Faulty, device: Health::Healthy, program: Health::Unknown };
    let suspect = Suspect::certain(Domain::Process(id.role.clone()), class, damage);
    let text = format!(
        "the driver named its process, which neither ended nor completed a step within {} s",
        APP_WITHIN.as_secs()
    );
    let fault = Fault::new(NAME, seen.at, suspect).with_incarnation(Some(id.incarnation)).with_advice(RESTART);
    out.blame(
        explained(fault, seen, Some(Action::RestartApp), &Watch::default())
            .with_evidence(Evidence::text("process", text)),
    );
}

/// Builds a fault for a metric that violates its rule.
pub(super) fn measured(
    about: &Domain,
    rule: &Rule,
    found: f64,
    limit: f64,
    at: JobTime,
    identity: &GpuIdentity,
) -> Fault {
    let class = FaultClass::Other(rule.name.clone());
    let suspect = Suspect::new(about.clone(), class, TRAINS, TOLD_PERMILLE);
    let text = match &rule.way {
        Way::Level { least, of } => {
            format!("{} is {found}, and at {limit} or beyond in {least} of {of} samples", rule.metric)
        }
        Way::Growth { within } => {
            format!("{} has grown by {found} within {} s; the limit is {limit}", rule.metric, within.as_secs())
        }
    };
    let fault = Fault::new(NAME, at, suspect).with_evidence(Evidence::figure(rule.metric.clone(), found, limit, text));
    who(fault.with_evidence(Evidence::text("to_do", rule.advice.clone())), identity)
}

/// Builds a fault that reports that the detector has no room for more devices.
pub(super) fn full(about: &Domain, now: JobTime) -> Fault {
    let suspect = Suspect::certain(Domain::Plugin(NAME), FaultClass::Plugin, Damage::default());
    let text = format!("reports about {about}, and about others beyond the detector's bounds, are ignored");
    Fault::new(NAME, now, suspect).with_evidence(Evidence::text("bound", text))
}

/// Adds the evidence for a fault: the Xid or error, the recommended action, and Xids that came before it.
fn explained(fault: Fault, seen: &Seen, action: Option<Action>, watch: &Watch) -> Fault {
    let what = match &seen.entry {
        Some(entry) => format!("Xid {}, {}: {}", seen.code, entry.name, seen.error.text),
        None if seen.error.family == XID => {
            format!("Xid {}, which is not in the table: {}", seen.code, seen.error.text)
        }
        None => format!("{} {}: {}", seen.error.family, seen.error.code, seen.error.text),
    };
    let to_do = action.map_or("no action is known: the error is reported only", Action::sentence);
    let fault = fault.with_evidence(Evidence::text("said", what)).with_evidence(Evidence::text("to_do", to_do));
    let note = seen.entry.as_ref().map(|entry| entry.note.as_str()).filter(|note| !note.is_empty());
    let fault = note.into_iter().fold(fault, |fault, note| fault.with_evidence(Evidence::text("note", note)));
    let before = watch.xids.iter().filter(|(code, at)| *code != seen.code && *at <= seen.at);
    let before: Vec<String> =
        before.map(|(code, at)| format!("{code} ({:.1} s before)", seen.at.since(*at).as_secs_f64())).collect();
    let fault =
        if before.is_empty() { fault } else { fault.with_evidence(Evidence::text("xids_before", before.join(", "))) };
    who(fault.with_error(Some(Box::new(seen.error.clone()))), &watch.identity)
}

fn who(fault: Fault, identity: &GpuIdentity) -> Fault {
    if identity.uuid.is_empty() {
        return fault;
    }
    let GpuIdentity { uuid, pci, model, .. } = identity;
    fault.with_evidence(Evidence::text("card", format!("{model}, {uuid}, at {pci}")))
}
