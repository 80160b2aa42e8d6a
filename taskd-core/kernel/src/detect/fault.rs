//! Faults: the symptom, the suspects, the damage, and the evidence.

use crate::job::{Domain, ErrorReport, Incarnation, JobTime, Name, ParseIdError, Rank, printable};
use crate::trace::Probe;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;

/// Name in `Fault::by` for a fault that represents an operator's order: no detector found it. If a fault that was
/// detected outside the runtime has this name, the kernel replaces the name.
pub const OPERATOR: Name = Name::new("operator");

/// Name of the evidence that marks a fault as charged to a recovery.
pub(crate) const CHARGED: Name = Name::new("charged");

/// The kind of a fault, for people and statistics. Strategies decide based on [`Damage`], so a new class needs no new
/// strategy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum FaultClass {
    /// A process ended unexpectedly.
    Exit,
    /// A process exists but does not run: its heartbeats have stopped, or it is stopped.
    Silence,
    /// The job makes no progress.
    Stall,
    /// The training program itself is defective: it would fail on another host as well.
    Program,
    /// The job was restarted too often within a short time.
    RestartStorm,
    /// A rank is slower than its peers.
    Slow,
    /// An accelerator failed.
    Device,
    /// A connection failed.
    Network,
    /// A host is lost, with its devices and the processes on it.
    NodeLost,
    /// A launcher failed, or a process or the job could not be started.
    Launch,
    /// An operator or a scheduler requests that a domain, such as a host, leaves the job.
    Leave,
    /// A plugin of the runtime, such as a detector or a strategy, panicked or failed.
    Plugin,
    /// A class that another crate or a single detector defines; the field is the name of the class.
    Other(Name),
}

impl FaultClass {
    /// All built-in classes: every variant except `Other`. The `Display` of a class is its name.
    pub const BUILT_IN: [FaultClass; 12] = [
        FaultClass::Exit,
        FaultClass::Silence,
        FaultClass::Stall,
        FaultClass::Program,
        FaultClass::RestartStorm,
        FaultClass::Slow,
        FaultClass::Device,
        FaultClass::Network,
        FaultClass::NodeLost,
        FaultClass::Launch,
        FaultClass::Leave,
        FaultClass::Plugin,
    ];
}

impl fmt::Display for FaultClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            FaultClass::Exit => "exit",
            FaultClass::Silence => "silence",
            FaultClass::Stall => "stall",
            FaultClass::Program => "program",
            FaultClass::RestartStorm => "restart-storm",
            FaultClass::Slow => "slow",
            FaultClass::Device => "device",
            FaultClass::Network => "network",
            FaultClass::NodeLost => "node-lost",
            FaultClass::Launch => "launch",
            FaultClass::Leave => "leave",
            FaultClass::Plugin => "plugin",
            FaultClass::Other(name) => name.as_str(),
        })
    }
}

impl FromStr for FaultClass {
    type Err = ParseIdError;

    /// Reads the name in `Display`; any other name is [`FaultClass::Other`].
    fn from_str(text: &str) -> Result<FaultClass, ParseIdError> {
        let built_in = FaultClass::BUILT_IN.into_iter().find(|class| class.to_string() == text);
        let other = || text.parse().map(FaultClass::Other);
        let error = |_| ParseIdError::new(text, "a class of faults", "its name, such as exit or silence");
        built_in.map_or_else(other, Ok).map_err(error)
    }
}

/// Health of one part of a suspect, such as its process or its device (see `Damage`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Health {
    /// The part of the suspect, such as its process or its device, is known to be healthy.
    #[serde(alias = "yes")]
    Healthy,
    /// The part of the suspect, such as its process or its device, is known to be faulty.
    #[serde(alias = "no")]
    Faulty,
    /// The health of this part of the suspect, such as its process or its device, is unknown.
    #[default]
    Unknown,
}

/// Health of each part of a suspect (possible origin of a fault): its process, training state, device and program.
/// Recovery strategies propose a recovery based on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Damage {
    /// Health of the suspect's process. Healthy: it runs and accepts directives of the supervisor.
    pub process: Health,
    /// Health of the training state in the memory of the suspect's process. Healthy: a recovery can use it.
    pub state: Health,
    /// Health of the suspect's device, an accelerator. Healthy: it works.
    pub device: Health,
    /// Health of the training program. Healthy: it is not the cause of the fault, so a restart can help.
    pub program: Health,
}

impl Damage {
    /// Damage of a process that is gone: the process and its state are lost, and nothing is known about the device and
    /// the program.
    pub const PROCESS_GONE: Damage =
        Damage { process: Health::Faulty, state: Health::Faulty, device: Health::Unknown, program: Health::Unknown };

    /// Returns true if the process and its state are known to be healthy and nothing else is known to be faulty, for
    /// example for a slow rank. A restart in the same place would not help.
    #[must_use]
    pub const fn is_still_training(&self) -> bool {
        matches!((self.process, self.state), (Health::Healthy, Health::Healthy))
            && !matches!(self.device, Health::Faulty)
            && !matches!(self.program, Health::Faulty)
    }

    /// Damage of a suspect whose training program is faulty: it fails on every host.
    pub const PROGRAM_BROKEN: Damage =
        Damage { process: Health::Faulty, state: Health::Faulty, device: Health::Unknown, program: Health::Faulty };
}

/// A verifiable reason for a fault: a measured value, its usual value, and the ranks with which it was compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Evidence {
    /// Name of the measured quantity with its unit last, such as `heartbeat_age_ms`.
    pub what: Name,
    /// The measured value, if it is a number.
    pub value: Option<f64>,
    /// The value with which the measured one was compared, if there is one: a limit, or the value of the other ranks.
    pub usual: Option<f64>,
    /// Ranks with which the value was compared.
    pub peers: Vec<Rank>,
    /// The evidence as a sentence, for people.
    pub text: String,
}

impl Evidence {
    /// Creates evidence that consists of the name `what` and a text, without values. Control characters in the text are
    /// made [printable], because it may repeat text of a process or a peer.
    pub fn text(what: impl Into<Name>, text: impl Into<String>) -> Evidence {
        Evidence { what: what.into(), value: None, usual: None, peers: Vec::new(), text: shown(text.into()) }
    }

    /// Creates evidence with a value and, if there is one, the usual value. A NaN becomes `None`, so that the evidence
    /// is equal to itself.
    pub fn figure(
        what: impl Into<Name>,
        value: f64,
        usual: impl Into<Option<f64>>,
        text: impl Into<String>,
    ) -> Evidence {
        let number = |n: &f64| !n.is_nan();
        let (value, usual) = (Some(value).filter(number), usual.into().filter(number));
        Evidence { what: what.into(), value, usual, peers: Vec::new(), text: shown(text.into()) }
    }

    /// Sets the ranks with which the value was compared.
    #[must_use]
    pub fn with_peers(mut self, peers: Vec<Rank>) -> Evidence {
        self.peers = peers;
        self
    }
}

fn shown(text: String) -> String {
    match printable(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(shown) => shown,
    }
}

/// A possible origin of a fault: where it lies, what is damaged there, and how certain that is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Suspect {
    /// Where the fault may originate, for example a process, a device or a host.
    pub domain: Domain,
    /// The kind of the fault.
    pub class: FaultClass,
    /// Which parts of the suspect are healthy, faulty or unknown.
    pub damage: Damage,
    /// Confidence of the detector that this suspect is the cause of the fault, in thousandths. Below
    /// [`Suspect::BLAME_PERMILLE_MIN`] the suspect is a victim: it is affected, but the cause lies elsewhere.
    pub confidence_permille: u16,
}

impl Suspect {
    /// Minimum confidence, in permille, with which a suspect counts as a cause and not as a victim.
    pub const BLAME_PERMILLE_MIN: u16 = 500;

    /// Confidence of victims.
    const VICTIM_PERMILLE: u16 = 100;

    /// Creates a suspect with this confidence, in thousandths.
    #[must_use]
    pub const fn new(domain: Domain, class: FaultClass, damage: Damage, confidence_permille: u16) -> Suspect {
        Suspect { domain, class, damage, confidence_permille }
    }

    /// Creates a suspect with full confidence, 1000 permille.
    #[must_use]
    pub const fn certain(domain: Domain, class: FaultClass, damage: Damage) -> Suspect {
        Suspect { domain, class, damage, confidence_permille: 1000 }
    }

    /// Creates a suspect that counts as a victim: it is affected, but a peer or a connection failed first.
    #[must_use]
    pub const fn victim(domain: Domain, class: FaultClass, damage: Damage) -> Suspect {
        Suspect { domain, class, damage, confidence_permille: Suspect::VICTIM_PERMILLE }
    }

    /// Sets the class of the fault.
    #[must_use]
    pub fn with_class(mut self, class: FaultClass) -> Suspect {
        self.class = class;
        self
    }

    /// Sets the confidence, in thousandths.
    #[must_use]
    pub const fn with_confidence_permille(mut self, confidence_permille: u16) -> Suspect {
        self.confidence_permille = confidence_permille;
        self
    }

    /// Returns true if the confidence is at least 1000 permille.
    #[must_use]
    pub const fn is_certain(&self) -> bool {
        self.confidence_permille >= 1000
    }

    /// Returns true if the suspect counts as a cause: its confidence is at least `BLAME_PERMILLE_MIN`.
    #[must_use]
    pub const fn is_cause(&self) -> bool {
        self.confidence_permille >= Suspect::BLAME_PERMILLE_MIN
    }
}

/// A fault that a detector found: one symptom with at least one suspect, the most likely first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Fault {
    /// Name of the detector that found the fault.
    pub by: Name,
    /// Time at which the fault began, as precisely as the detector knows it.
    pub onset: JobTime,
    #[serde(deserialize_with = "at_least_one")]
    suspects: Vec<Suspect>,
    of: Option<Incarnation>,
    /// Evidence for the fault.
    #[serde(alias = "clues")]
    pub evidence: Vec<Evidence>,
    /// The error behind the fault, as a framework, a driver or a process reported it.
    pub error: Option<Box<ErrorReport>>,
    /// Name of the recovery strategy that the detector recommends. The decision kernel chooses the proposal of this
    /// strategy, even if another proposal is cheaper, if the policy allows the strategy and the strategy does not
    /// refuse.
    pub advice: Option<Name>,
}

fn at_least_one<'de, D: Deserializer<'de>>(form: D) -> Result<Vec<Suspect>, D::Error> {
    let suspects = Vec::deserialize(form)?;
    if suspects.is_empty() { Err(D::Error::custom("a fault names at least one suspect")) } else { Ok(suspects) }
}

impl Fault {
    /// Creates a fault with one suspect and no evidence. The kernel adds the incarnation (number of the start) of the
    /// suspected process, unless [`with_incarnation`](Fault::with_incarnation) has set it: the death of a replacement
    /// is a new fault, not a repeat of the old one.
    pub fn new(by: Name, onset: JobTime, suspect: Suspect) -> Fault {
        Fault { by, onset, suspects: vec![suspect], of: None, evidence: Vec::new(), error: None, advice: None }
    }

    /// Adds another suspect. The suspects are ordered by confidence, highest first.
    #[must_use]
    pub fn with_suspect(mut self, other: Suspect) -> Fault {
        self.suspects.push(other);
        self.suspects.sort_by_key(|s| Reverse(s.confidence_permille));
        self
    }

    /// Adds a piece of evidence.
    #[must_use]
    pub fn with_evidence(mut self, clue: Evidence) -> Fault {
        self.evidence.push(clue);
        self
    }

    /// Sets the underlying error, as a framework, a driver or a process reported it.
    #[must_use]
    pub fn with_error(mut self, error: Option<Box<ErrorReport>>) -> Fault {
        self.error = error;
        self
    }

    /// Sets the name of the strategy that the detector recommends.
    #[must_use]
    pub fn with_advice(mut self, strategy: Name) -> Fault {
        self.advice = Some(strategy);
        self
    }

    /// Sets the incarnation (number of the start) of the suspected process.
    #[must_use]
    pub const fn with_incarnation(mut self, incarnation: Option<Incarnation>) -> Fault {
        self.of = incarnation;
        self
    }

    /// Marks the fault as caused by something else: no suspect counts as a cause any more, and `why` becomes the first
    /// evidence.
    #[must_use]
    pub(crate) fn charged(mut self, why: Evidence) -> Fault {
        for suspect in &mut self.suspects {
            suspect.confidence_permille = suspect.confidence_permille.min(Suspect::VICTIM_PERMILLE);
        }
        self.evidence.retain(|clue| clue.what != why.what);
        self.evidence.insert(0, why);
        self
    }

    /// Returns true if the fault is charged to an earlier recovery: it did occur, but no rank is blamed for it.
    #[doc(hidden)]
    pub fn is_charged(&self) -> bool {
        self.evidence.iter().any(|clue| clue.what == CHARGED)
    }

    /// Returns the most likely suspect.
    #[must_use]
    pub fn primary_suspect(&self) -> &Suspect {
        &self.suspects[0] // never empty: `new` adds one, and none is ever removed
    }

    /// Returns all suspects, the most likely first.
    #[must_use]
    pub fn suspects(&self) -> &[Suspect] {
        &self.suspects
    }

    /// Returns true if nothing is broken and the detector only recommends a strategy. The decision kernel accepts this
    /// advice only while no recovery is in progress; otherwise the kernel drops and counts the advice, and the detector
    /// has to repeat it.
    #[must_use]
    pub fn is_mere_advice(&self) -> bool {
        self.advice.is_some()
            && self.by != OPERATOR
            && self.suspects.iter().all(|suspect| suspect.damage.is_still_training())
    }

    /// Returns the incarnation (number of the start) of the primary suspect, if it is a process.
    #[must_use]
    pub const fn incarnation(&self) -> Option<Incarnation> {
        self.of
    }

    /// Returns true if the primary suspects of both faults have the same domain, class and incarnation. If the new
    /// fault adds no information to the known one, the kernel drops and counts it.
    #[must_use]
    pub fn is_duplicate_of(&self, other: &Fault) -> bool {
        self.primary_suspect().domain == other.primary_suspect().domain
            && self.primary_suspect().class == other.primary_suspect().class
            && self.of == other.of
    }
}

/// One result of a fault detector: a fault, the withdrawal of faults, a request for evidence, or a note.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finding {
    /// Reports a fault.
    Blame(Fault),
    /// Withdraws all faults of this domain and class, whichever detector reported them: the domain is healthy again.
    /// Faults of an incident whose recovery is in progress stay. An incident that has no other fault, and for which no
    /// process was stopped or started, is closed.
    Clear(Domain, FaultClass),
    /// Requests evidence about domains, such as the state of a process, before the detector blames anything. The
    /// detector receives the replies as observations.
    #[serde(alias = "ask")]
    Probe(Probe),
    /// Reports a fact about a domain to people. It is not a fault: it opens no incident and changes nothing.
    Note(Domain, Evidence),
}

/// Collects the findings of a fault detector.
///
/// A detector that wraps another one creates its own `Findings`, passes it to the inner detector, and forwards
/// selected findings.
#[derive(Debug, Default)]
pub struct Findings(Vec<Finding>);

impl Findings {
    /// Reports a fault.
    pub fn blame(&mut self, fault: Fault) {
        self.0.push(Finding::Blame(fault));
    }

    /// Withdraws all faults of this domain and class, whichever detector reported them: the domain is healthy again.
    pub fn clear(&mut self, domain: Domain, class: FaultClass) {
        self.0.push(Finding::Clear(domain, class));
    }

    /// Requests evidence about domains, such as the state of a process. The detector receives the replies as
    /// observations.
    pub fn probe(&mut self, ask: Probe) {
        self.0.push(Finding::Probe(ask));
    }

    /// Reports a fact about a domain to people. It is not a fault, and opens no incident.
    pub fn note(&mut self, about: Domain, clue: Evidence) {
        self.0.push(Finding::Note(about, clue));
    }

    /// Adds an existing finding unchanged, for example one that a wrapped detector has made.
    pub fn push(&mut self, finding: Finding) {
        self.0.push(finding);
    }

    /// Returns true if there are no findings.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes and returns the findings, in order.
    pub fn drain(&mut self) -> impl Iterator<Item = Finding> + '_ {
        self.0.drain(..)
    }
}
