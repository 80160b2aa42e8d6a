//! A fault as somebody outside writes it by hand, and what is made of it.
//!
//! It never claims that something is sound, and claims damage only where the class of the fault means just that.

use super::protocol::Trouble;
use super::protocol::TroubleKind::Refused;
use crate::detect::{Clue, Damage, Fault, FaultClass, Sound, Suspect};
use crate::job::seconds::Seconds;
use crate::job::{Domain, GroupId, Name, NodeId, Rank, Role};
use crate::kernel::JobStatus;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Confidence of a fault that does not say how sure it is: enough to be acted on, and not certain.
const CONFIDENCE: f64 = 0.9;
/// Longest name in a fault, and longest text, in bytes: an incident keeps hundreds of faults.
const NAME_BYTES_MAX: usize = 64;
const TEXT_BYTES_MAX: usize = 2048;

/// A fault that was found outside: by DCGM, an exporter, a watchdog, a person.
///
/// It is in one place: in a device of a host (`node` and `device`), a host (`node`), a rank (`rank`), a group (`group`), or,
/// without any of these, in the job as a whole.
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
    /// Who found it: the name of a program.
    pub by: Name,
    /// What kind it is: `exit`, `silence`, `stall`, `program`, `restart-storm`, `slow`, `device`, `network`, `node-lost`,
    /// `launch`, `leave`, `plugin`, or a word of one's own.
    pub class: String,
    /// The finding in words, for people.
    #[serde(default)]
    pub text: String,
    /// The host.
    #[serde(default)]
    pub node: Option<NodeId>,
    /// The number of the device on that host.
    #[serde(default)]
    pub device: Option<u16>,
    /// The rank.
    #[serde(default)]
    pub rank: Option<Rank>,
    /// The communication group, such as `tp:3`.
    #[serde(default)]
    pub group: Option<GroupId>,
    /// How sure, from 0 to 1; below 0.5 it happened there, but the cause is taken to lie elsewhere. Default: 0.9.
    #[serde(default)]
    pub confidence: Option<f64>,
    /// How long ago it began. Default: now.
    #[serde(default, with = "Seconds")]
    pub age: Duration,
    /// What is still sound there, such as `{"process":"no","device":"yes"}`. What is left out is as the class means it: the
    /// device does not work (class `device`); process, state and device are gone (`node-lost`); process and state are gone
    /// (`exit`, `program`), and starting it again does not help (`program`); everything else is unknown.
    #[serde(default)]
    pub damage: Option<DamageReport>,
    /// The strategy that would help, if the reporter knows.
    #[serde(default)]
    pub advice: Option<Name>,
}

/// What is still sound, as far as whoever reports it says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DamageReport {
    /// Its process runs and can be talked to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Sound>,
    /// Its training state in memory is usable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Sound>,
    /// Its device works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Sound>,
    /// The training program is not the cause: starting it again can help.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<Sound>,
}

impl DamageReport {
    /// With what the class of the fault means, where it says nothing.
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
    /// The fault, in a job that stands so.
    pub(super) fn fault(self, job: &JobStatus) -> Result<Fault, Trouble> {
        let class = class(&self.class)?;
        let confidence = self.confidence.unwrap_or(CONFIDENCE);
        if !(0.0..=1.0).contains(&confidence) {
            return Err(Trouble::bad("\"confidence\" must be 0 to 1"));
        }
        let names = [Some(self.by.as_str()), Some(&*self.class), self.advice.as_ref().map(Name::as_str)];
        if names.into_iter().flatten().any(|name| name.len() > NAME_BYTES_MAX) || self.text.len() > TEXT_BYTES_MAX {
            return Err(Trouble::bad(format!(
                "a fault's \"by\", \"class\" and \"advice\" have {NAME_BYTES_MAX} bytes at most, its \"text\" {TEXT_BYTES_MAX}"
            )));
        }
        if self.by.as_str().is_empty() {
            return Err(Trouble::bad("\"by\" of a fault must name who found it"));
        }
        let domain = self.domain()?;
        known(&domain, job)?;
        let damage = self.damage.unwrap_or_default().over(meant_by(&class));
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 0 to 1000
        let confidence_permille = (confidence * 1000.0).round() as u16;
        let suspect = Suspect { domain, class, damage, confidence_permille };
        let mut fault = Fault::new(self.by, job.at.before(self.age), suspect);
        if !self.text.is_empty() {
            fault = fault.because(Clue::text("report", self.text));
        }
        Ok(match self.advice {
            Some(strategy) => fault.advising(strategy),
            None => fault,
        })
    }

    fn domain(&self) -> Result<Domain, Trouble> {
        match (&self.node, self.device, self.rank, &self.group) {
            (None, None, None, None) => Ok(Domain::Job),
            (Some(node), None, None, None) => Ok(Domain::Node(node.clone())),
            (Some(node), Some(device), None, None) => Ok(Domain::Device(node.clone(), device)),
            (None, None, Some(rank), None) => Ok(Domain::Process(Role::Rank(rank))),
            (None, None, None, Some(group)) => Ok(Domain::Group(group.clone())),
            (None, Some(_), ..) => Err(Trouble::bad("a \"device\" needs the \"node\" that it is in")),
            _ => Err(Trouble::bad(
                "a fault is in one place: give \"node\" (and \"device\"), \"rank\", \"group\", or none",
            )),
        }
    }
}

/// What is nowhere in the job is somebody else's fault.
fn known(domain: &Domain, job: &JobStatus) -> Result<(), Trouble> {
    match domain {
        Domain::Node(node) | Domain::Device(node, _) if !job.nodes.iter().any(|line| line.node == *node) => {
            let nodes: Vec<&str> = job.nodes.iter().map(|line| line.node.0.as_str()).collect();
            Err(Trouble::new(Refused, format!("{node} is no host of this job; its hosts are {}", nodes.join(", "))))
        }
        Domain::Process(Role::Rank(rank)) if rank.0 >= job.ranks => {
            Err(Trouble::new(Refused, format!("{rank} is no rank of this job; it has {}", job.ranks)))
        }
        _ => Ok(()),
    }
}

/// A class by its name; any other word is a class of its own.
fn class(name: &str) -> Result<FaultClass, Trouble> {
    if name.is_empty() {
        return Err(Trouble::bad("\"class\" must not be empty"));
    }
    let known = FaultClass::BUILT_IN.into_iter().find(|class| class.to_string() == name);
    Ok(known.unwrap_or_else(|| FaultClass::Other(Name::from(name.to_owned()))))
}

/// What a class alone says of damage.
const fn meant_by(class: &FaultClass) -> Damage {
    const UNKNOWN: Damage =
        Damage { process: Sound::Unknown, state: Sound::Unknown, device: Sound::Unknown, program: Sound::Unknown };
    match class {
        FaultClass::Device => Damage { device: Sound::No, ..UNKNOWN },
        FaultClass::NodeLost => Damage { device: Sound::No, ..Damage::PROCESS_GONE },
        FaultClass::Exit => Damage::PROCESS_GONE,
        FaultClass::Program => Damage::PROGRAM_BROKEN,
        _ => UNKNOWN,
    }
}
