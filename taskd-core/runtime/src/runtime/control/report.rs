//! Fault reports from external programs and operators, and their conversion to faults.
//!
//! The conversion never assumes that a component is healthy, and assumes damage only where the fault class implies it.

use super::protocol::ControlErrorBody;
use super::protocol::ControlErrorKind::Refused;
use crate::detect::{Damage, Evidence, Fault, FaultClass, Health, Suspect};
use crate::job::seconds::Seconds;
use crate::job::{Domain, GroupId, Name, NodeId, Rank, Role};
use crate::kernel::JobStatus;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Confidence of a report that states none: high enough to act on, but not certain.
const CONFIDENCE: f64 = 0.9;
/// Longest name and longest text of a report, in bytes. They are bounded because an incident keeps hundreds of faults.
const NAME_BYTES_MAX: usize = 64;
const TEXT_BYTES_MAX: usize = 2048;

/// A fault that was found outside the runtime: by DCGM, an exporter, a watchdog or a person.
///
/// A fault has one location: a device of a host (`node` and `device`), a host (`node`), a rank (`rank`), a group
/// (`group`), or, if none of these is given, the whole job.
///
/// ```
/// use taskd_core::runtime::control::FaultReport;
///
/// let report: FaultReport = serde_json::from_str(r#"{
///     "by": "dcgm", "node": "node-7", "device": 3, "class": "device",
///     "text": "Xid 79: GPU has fallen off the bus", "confidence": 0.9
/// }"#)?;
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FaultReport {
    /// Name of the program or person that found and reports the fault, at most 64 bytes.
    pub by: Name,
    /// Fault class, at most 64 bytes: `exit`, `silence`, `stall`, `program`, `restart-storm`, `slow`, `device`,
    /// `network`, `node-lost`, `launch`, `leave`, `plugin`, or any other word as a class of its own.
    pub class: String,
    /// Description of the finding, for operators; at most 2048 bytes.
    #[serde(default)]
    pub text: String,
    /// Host at which the fault is located; with `device`, the host of the faulty device.
    #[serde(default)]
    pub node: Option<NodeId>,
    /// Index of the device on the host `node`.
    #[serde(default)]
    pub device: Option<u16>,
    /// Rank at which the fault is located.
    #[serde(default)]
    pub rank: Option<Rank>,
    /// Communication group at which the fault is located, such as `tp:3`.
    #[serde(default)]
    pub group: Option<GroupId>,
    /// Confidence of the reporter in the fault's location, from 0 to 1. Default: 0.9. Below 0.5, the location counts as
    /// a symptom, and the cause is assumed elsewhere.
    #[serde(default)]
    pub confidence: Option<f64>,
    /// Time since the fault began. Default: 0, that is, the fault begins now.
    #[serde(default, with = "Seconds")]
    pub age: Duration,
    /// Health of the components at the location, such as `{"process":"no","device":"yes"}` (`yes` is healthy). Defaults
    /// by fault class: the device is faulty (`device`); process, state and device are lost (`node-lost`); process and
    /// state are lost (`exit`, `program`), and a restart does not help (`program`); everything else is unknown.
    #[serde(default)]
    pub damage: Option<DamageReport>,
    /// Recovery strategy that the reporter recommends.
    #[serde(default)]
    pub advice: Option<Name>,
}

/// Health of the components at a fault's location, where the reporter knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DamageReport {
    /// Health of the process; healthy if it runs and responds. `None`: the default of the fault class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Health>,
    /// Health of the training state in memory; healthy if it is usable. `None`: the default of the fault class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Health>,
    /// Health of the device; healthy if it works. `None`: the default of the fault class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Health>,
    /// Health of the training program; healthy if it is not the cause, so that a restart can help. `None`: the default
    /// of the fault class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<Health>,
}

impl DamageReport {
    /// Fills in the damage that the fault class implies, for components that the report leaves out.
    fn over(self, meant: Damage) -> Damage {
        Damage {
            process: self.process.unwrap_or(meant.process),
            state: self.state.unwrap_or(meant.state),
            device: self.device.unwrap_or(meant.device),
            program: self.program.unwrap_or(meant.program),
        }
    }
}

impl FaultReport {
    /// Converts the report to a fault of the given job. Validates all fields and the location.
    pub(super) fn fault(self, job: &JobStatus) -> Result<Fault, ControlErrorBody> {
        let class = class(&self.class)?;
        let confidence = self.confidence.unwrap_or(CONFIDENCE);
        if !(0.0..=1.0).contains(&confidence) {
            return Err(ControlErrorBody::bad("\"confidence\" must be 0 to 1"));
        }
        let names = [Some(self.by.as_str()), Some(&*self.class), self.advice.as_ref().map(Name::as_str)];
        if names.into_iter().flatten().any(|name| name.len() > NAME_BYTES_MAX) || self.text.len() > TEXT_BYTES_MAX {
            return Err(ControlErrorBody::bad(format!(
                "a fault's \"by\", \"class\" and \"advice\" have at most {NAME_BYTES_MAX} bytes, its \"text\" \
                 {TEXT_BYTES_MAX}"
            )));
        }
        if self.by.as_str().is_empty() {
            return Err(ControlErrorBody::bad("\"by\" of a fault must name its reporter"));
        }
        let domain = self.domain()?;
        known(&domain, job)?;
        let damage = self.damage.unwrap_or_default().over(meant_by(&class));
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // range 0 to 1000
        let confidence_permille = (confidence * 1000.0).round() as u16;
        let suspect = Suspect::new(domain, class, damage, confidence_permille);
        let mut fault = Fault::new(self.by, job.at.before(self.age), suspect);
        if !self.text.is_empty() {
            fault = fault.with_evidence(Evidence::text("report", self.text));
        }
        Ok(match self.advice {
            Some(strategy) => fault.with_advice(strategy),
            None => fault,
        })
    }

    fn domain(&self) -> Result<Domain, ControlErrorBody> {
        match (&self.node, self.device, self.rank, &self.group) {
            (None, None, None, None) => Ok(Domain::Job),
            (Some(node), None, None, None) => Ok(Domain::Node(node.clone())),
            (Some(node), Some(device), None, None) => Ok(Domain::Device(node.clone(), device)),
            (None, None, Some(rank), None) => Ok(Domain::Process(Role::Rank(rank))),
            (None, None, None, Some(group)) => Ok(Domain::Group(group.clone())),
            (None, Some(_), ..) => Err(ControlErrorBody::bad("a \"device\" needs the \"node\" that it is in")),
            _ => Err(ControlErrorBody::bad(
                "a fault is in one place: give \"node\" (and \"device\"), \"rank\", \"group\", or none",
            )),
        }
    }
}

/// Checks that the location exists in the job. A report about another job's host or rank is refused.
fn known(domain: &Domain, job: &JobStatus) -> Result<(), ControlErrorBody> {
    match domain {
        Domain::Node(node) | Domain::Device(node, _) if !job.nodes.iter().any(|line| line.node == *node) => {
            let nodes: Vec<&str> = job.nodes.iter().map(|line| line.node.0.as_str()).collect();
            Err(ControlErrorBody::new(
                Refused,
                format!("{node} is not a host of this job; its hosts are {}", nodes.join(", ")),
            ))
        }
        Domain::Process(Role::Rank(rank)) if rank.0 >= job.ranks => {
            Err(ControlErrorBody::new(Refused, format!("{rank} is not a rank of this job; it has {}", job.ranks)))
        }
        _ => Ok(()),
    }
}

/// Returns the built-in fault class of this name; any other name is a class of its own.
fn class(name: &str) -> Result<FaultClass, ControlErrorBody> {
    if name.is_empty() {
        return Err(ControlErrorBody::bad("\"class\" must not be empty"));
    }
    let known = FaultClass::BUILT_IN.into_iter().find(|class| class.to_string() == name);
    Ok(known.unwrap_or_else(|| FaultClass::Other(Name::from(name.to_owned()))))
}

/// Returns the damage that a fault class implies.
const fn meant_by(class: &FaultClass) -> Damage {
    const UNKNOWN: Damage =
        Damage { process: Health::Unknown, state: Health::Unknown, device: Health::Unknown, program: Health::Unknown };
    match class {
        FaultClass::Device => Damage { device: Health::Faulty, ..UNKNOWN },
        FaultClass::NodeLost => Damage { device: Health::Faulty, ..Damage::PROCESS_GONE },
        FaultClass::Exit => Damage::PROCESS_GONE,
        FaultClass::Program => Damage::PROGRAM_BROKEN,
        _ => UNKNOWN,
    }
}
