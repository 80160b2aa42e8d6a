//! What is said: whom a fault blames, what is still sound there, and why.
//!
//! It keeps nothing.

use super::rule::{Rule, Way};
use super::watch::{Seen, Watch};
use super::{APP_WITHIN, NAME};
use crate::health::GpuIdentity;
use crate::xid::{Action, XID};
use taskd_core::detect::{Clue, Damage, Fault, FaultClass, Findings, Sound, Suspect};
use taskd_core::job::{Domain, JobTime, Name, ProcId};
use taskd_core::kernel::View;

/// The class of what is told of an Xid and not acted upon.
const XID_TOLD: Name = Name::new("gpu-xid");

/// The strategy that starts ranks again.
const RESTART: Name = Name::new("restart");

/// How sure one is of what is only told.
const TOLD_PERMILLE: u16 = 600;

/// A process that has lost its device, with the device.
const GONE: Damage = Damage { process: Sound::No, state: Sound::No, device: Sound::No, program: Sound::Unknown };

/// Nothing is known that would keep the job from training.
const TRAINS: Damage =
    Damage { process: Sound::Yes, state: Sound::Yes, device: Sound::Unknown, program: Sound::Unknown };

/// A device does not work.
pub(super) fn broken(about: &Domain, seen: &Seen, action: Action, watch: &mut Watch, view: &View, out: &mut Findings) {
    if !is_used(about, view) {
        let fault = told(about, seen, Some(action), watch);
        return out.blame(fault.because(Clue::text("use", "no rank of the job is known to use it")));
    }
    watch.is_broken = true;
    watch.forget_applications();
    let suspect = Suspect::certain(about.clone(), FaultClass::Device, GONE);
    out.blame(explained(Fault::new(NAME, seen.at, suspect), seen, Some(action), watch));
}

/// Whether the job may use a device. A rank whose device nobody knows may use any of its host; a host without ranks is a
/// spare, and to be left as well. What is said of a whole host is of a device that is not watched.
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

/// Something is said that somebody should look after, and that keeps nobody from training.
pub(super) fn told(about: &Domain, seen: &Seen, action: Option<Action>, watch: &Watch) -> Fault {
    let class = FaultClass::Other(XID_TOLD);
    let suspect = Suspect { domain: about.clone(), class, damage: TRAINS, confidence_permille: TOLD_PERMILLE };
    explained(Fault::new(NAME, seen.at, suspect), seen, action, watch)
}

/// An application was to be started again, and has had the time to end by itself.
pub(super) fn application(id: &ProcId, seen: &Seen, view: &View, out: &mut Findings) {
    let Some(proc) = view.proc(&id.role).filter(|p| p.incarnation == id.incarnation) else { return };
    let goes_on = proc.step.is_some() && proc.progress_at > seen.at;
    if !proc.wanted || proc.phase.is_over() || goes_on {
        return;
    }
    let is_own = seen.entry.as_ref().is_some_and(|entry| entry.application);
    let class = if is_own { FaultClass::Program } else { FaultClass::Device };
    let damage = Damage { process: Sound::No, state: Sound::No, device: Sound::Yes, program: Sound::Unknown };
    let suspect = Suspect::certain(Domain::Process(id.role.clone()), class, damage);
    let text = format!(
        "the driver named its process, which neither ended nor completed a step within {} s",
        APP_WITHIN.as_secs()
    );
    let fault = Fault::new(NAME, seen.at, suspect).of(Some(id.incarnation)).advising(RESTART);
    out.blame(explained(fault, seen, Some(Action::RestartApp), &Watch::default()).because(Clue::text("process", text)));
}

/// A figure is beyond its rule's limit.
pub(super) fn measured(
    about: &Domain,
    rule: &Rule,
    found: f64,
    limit: f64,
    at: JobTime,
    identity: &GpuIdentity,
) -> Fault {
    let class = FaultClass::Other(rule.name.clone());
    let suspect = Suspect { domain: about.clone(), class, damage: TRAINS, confidence_permille: TOLD_PERMILLE };
    let text = match &rule.way {
        Way::Level { least, of } => {
            format!("{} is {found}, and at {limit} or beyond in {least} of {of} samples", rule.metric)
        }
        Way::Growth { within } => {
            format!("{} has grown by {found} within {} s; {limit} is much", rule.metric, within.as_secs())
        }
    };
    let fault = Fault::new(NAME, at, suspect).because(Clue::figure(rule.metric.clone(), found, limit, text));
    who(fault.because(Clue::text("to_do", rule.advice.clone())), identity)
}

/// This detector has no room for more.
pub(super) fn full(about: &Domain, now: JobTime) -> Fault {
    let suspect = Suspect::certain(Domain::Plugin(NAME), FaultClass::Plugin, Damage::default());
    let text =
        format!("what is said of {about} is not judged, nor what is said of others beyond the detector's bounds");
    Fault::new(NAME, now, suspect).because(Clue::text("bound", text))
}

/// A fault with its reasons.
fn explained(fault: Fault, seen: &Seen, action: Option<Action>, watch: &Watch) -> Fault {
    let what = match &seen.entry {
        Some(entry) => format!("Xid {}, {}: {}", seen.code, entry.name, seen.error.text),
        None if seen.error.family == XID => {
            format!("Xid {}, which is not in the table: {}", seen.code, seen.error.text)
        }
        None => format!("{} {}: {}", seen.error.family, seen.error.code, seen.error.text),
    };
    let to_do = action.map_or("nothing is known to do: it is told, and not acted upon", Action::sentence);
    let fault = fault.because(Clue::text("said", what)).because(Clue::text("to_do", to_do));
    let note = seen.entry.as_ref().map(|entry| entry.note.as_str()).filter(|note| !note.is_empty());
    let fault = note.into_iter().fold(fault, |fault, note| fault.because(Clue::text("note", note)));
    let before = watch.xids.iter().filter(|(code, at)| *code != seen.code && *at <= seen.at);
    let before: Vec<String> =
        before.map(|(code, at)| format!("{code} ({:.1} s before)", seen.at.since(*at).as_secs_f64())).collect();
    let fault = if before.is_empty() { fault } else { fault.because(Clue::text("xids_before", before.join(", "))) };
    who(fault.with_error(Some(Box::new(seen.error.clone()))), &watch.identity)
}

fn who(fault: Fault, identity: &GpuIdentity) -> Fault {
    if identity.uuid.is_empty() {
        return fault;
    }
    let GpuIdentity { uuid, pci, model, .. } = identity;
    fault.because(Clue::text("card", format!("{model}, {uuid}, at {pci}")))
}
