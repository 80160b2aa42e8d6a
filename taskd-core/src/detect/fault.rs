//! Faults: symptom, suspects, what is damaged, and the evidence for it.

use crate::job::{Domain, ErrorReport, Incarnation, JobTime, Name, Rank, printable};
use crate::trace::Ask;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use std::cmp::Reverse;
use std::fmt;

/// The name under which an operator's wishes stand as faults. What comes from outside cannot use it.
pub const OPERATOR: Name = Name::new("operator");

/// The name of the clue that a fault carries which is charged to a recovery.
pub(crate) const CHARGED: Name = Name::new("charged");

/// The kind of a fault, for people and statistics. Strategies decide from [`Damage`], so a new class needs no new
/// strategy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum FaultClass {
    /// A process ended that should not have.
    Exit,
    /// A process is there but does not run: no heartbeat, or stopped.
    Silence,
    /// The job makes no progress.
    Stall,
    /// The program itself fails; another machine would not help.
    Program,
    /// The job was restarted too often in too short a time.
    RestartStorm,
    /// A rank is slower than its peers.
    Slow,
    /// An accelerator failed.
    Device,
    /// A connection failed.
    Network,
    /// A host is lost.
    NodeLost,
    /// A launcher or a start failed.
    Launch,
    /// Something is asked to leave (an operator, a scheduler).
    Leave,
    /// A plugin of the runtime panicked or failed.
    Plugin,
    /// A class of one crate.
    Other(Name),
}

impl FaultClass {
    /// All classes that are no crate's own, each with its name as it is displayed.
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

/// Whether something is still sound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Sound {
    /// It is.
    Yes,
    /// It is not.
    No,
    /// Nobody knows.
    #[default]
    Unknown,
}

/// What is still sound on a suspect: the question that a strategy decides from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Damage {
    /// Its process runs and can be talked to.
    pub process: Sound,
    /// Its training state in memory is usable.
    pub state: Sound,
    /// Its device works.
    pub device: Sound,
    /// The training program is not the cause: starting it again can help.
    pub program: Sound,
}

impl Damage {
    /// A process that is gone, with the state it held; nothing is known of device and program.
    pub const PROCESS_GONE: Damage =
        Damage { process: Sound::No, state: Sound::No, device: Sound::Unknown, program: Sound::Unknown };

    /// Whether process and state are known to be sound, and nothing else is known to be broken: it is slow, for instance.
    /// Starting it again where it is would mend nothing.
    #[must_use]
    pub const fn still_trains(&self) -> bool {
        matches!((self.process, self.state), (Sound::Yes, Sound::Yes))
            && !matches!(self.device, Sound::No)
            && !matches!(self.program, Sound::No)
    }

    /// A program that fails wherever it runs.
    pub const PROGRAM_BROKEN: Damage =
        Damage { process: Sound::No, state: Sound::No, device: Sound::Unknown, program: Sound::No };
}

/// A reason that can be checked: which figure, of whom, against which peers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Clue {
    /// What was looked at, unit last, such as `heartbeat_age_ms`.
    pub what: Name,
    /// What was found, if that is a number.
    pub value: Option<f64>,
    /// What is usual, where something is: the bound, or the peers' figure.
    pub usual: Option<f64>,
    /// With whom it was compared.
    pub peers: Vec<Rank>,
    /// The finding in words.
    pub text: String,
}

impl Clue {
    /// A finding in words only. It is made [printable]: it may repeat a text of others.
    pub fn text(what: impl Into<Name>, text: impl Into<String>) -> Clue {
        Clue { what: what.into(), value: None, usual: None, peers: Vec::new(), text: shown(text.into()) }
    }

    /// A figure beside the usual one, where there is one. NaN is no figure: a clue equals itself.
    pub fn figure(what: impl Into<Name>, value: f64, usual: impl Into<Option<f64>>, text: impl Into<String>) -> Clue {
        let number = |n: &f64| !n.is_nan();
        let (value, usual) = (Some(value).filter(number), usual.into().filter(number));
        Clue { what: what.into(), value, usual, peers: Vec::new(), text: shown(text.into()) }
    }
}

fn shown(text: String) -> String {
    match printable(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(shown) => shown,
    }
}

/// Whom a fault may come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Suspect {
    /// Where.
    pub domain: Domain,
    /// Of what kind.
    pub class: FaultClass,
    /// What is still sound there.
    pub damage: Damage,
    /// How sure the detector is, in thousandths. Below [`Suspect::BLAME_PERMILLE_MIN`] it names a victim: something
    /// happened there, but the cause lies elsewhere.
    pub confidence_permille: u16,
}

impl Suspect {
    /// From this confidence on a suspect counts as a cause.
    pub const BLAME_PERMILLE_MIN: u16 = 500;

    /// The confidence with which a victim is named.
    const VICTIM_PERMILLE: u16 = 100;

    /// Someone who is to blame for certain.
    #[must_use]
    pub const fn certain(domain: Domain, class: FaultClass, damage: Damage) -> Suspect {
        Suspect { domain, class, damage, confidence_permille: 1000 }
    }

    /// Someone to whom it happened: a peer, or a connection, failed first.
    #[must_use]
    pub const fn victim(domain: Domain, class: FaultClass, damage: Damage) -> Suspect {
        Suspect { domain, class, damage, confidence_permille: Suspect::VICTIM_PERMILLE }
    }

    /// Whether there is no doubt.
    #[must_use]
    pub const fn is_certain(&self) -> bool {
        self.confidence_permille >= 1000
    }

    /// Whether this suspect counts as a cause, not as a victim.
    #[must_use]
    pub const fn is_cause(&self) -> bool {
        self.confidence_permille >= Suspect::BLAME_PERMILLE_MIN
    }
}

/// One symptom with at least one suspect, most likely first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Fault {
    /// The detector that found it.
    pub by: Name,
    /// Since when, as far as the detector can tell.
    pub onset: JobTime,
    #[serde(deserialize_with = "at_least_one")]
    suspects: Vec<Suspect>,
    of: Option<Incarnation>,
    /// Why the detector thinks so.
    pub clues: Vec<Clue>,
    /// The error behind it, in its reporter's words.
    pub error: Option<Box<ErrorReport>>,
    /// The strategy that the detector thinks right; it is taken when it is allowed and proposes.
    pub advice: Option<Name>,
}

fn at_least_one<'de, D: Deserializer<'de>>(form: D) -> Result<Vec<Suspect>, D::Error> {
    let suspects = Vec::deserialize(form)?;
    if suspects.is_empty() { Err(D::Error::custom("a fault names at least one suspect")) } else { Ok(suspects) }
}

impl Fault {
    /// A fault with one suspect and no evidence yet. The kernel adds which incarnation of the suspect's role is meant,
    /// unless [`of`](Fault::of) said so: the death of a replacement is a new fault, not the old one again.
    pub fn new(by: Name, onset: JobTime, suspect: Suspect) -> Fault {
        Fault { by, onset, suspects: vec![suspect], of: None, clues: Vec::new(), error: None, advice: None }
    }

    /// Adds another hypothesis.
    #[must_use]
    pub fn or(mut self, other: Suspect) -> Fault {
        self.suspects.push(other);
        self.suspects.sort_by_key(|s| Reverse(s.confidence_permille));
        self
    }

    /// Adds a reason.
    #[must_use]
    pub fn because(mut self, clue: Clue) -> Fault {
        self.clues.push(clue);
        self
    }

    /// Adds the error behind it.
    #[must_use]
    pub fn with_error(mut self, error: Option<Box<ErrorReport>>) -> Fault {
        self.error = error;
        self
    }

    /// Names the strategy that the detector thinks right.
    #[must_use]
    pub fn advising(mut self, strategy: Name) -> Fault {
        self.advice = Some(strategy);
        self
    }

    /// Says which start of the suspect's role is meant.
    #[must_use]
    pub const fn of(mut self, incarnation: Option<Incarnation>) -> Fault {
        self.of = incarnation;
        self
    }

    /// The same, known to be something else's doing: no suspect counts as a cause, and the reason comes first.
    #[must_use]
    pub(crate) fn charged(mut self, why: Clue) -> Fault {
        for suspect in &mut self.suspects {
            suspect.confidence_permille = suspect.confidence_permille.min(Suspect::VICTIM_PERMILLE);
        }
        self.clues.retain(|clue| clue.what != why.what);
        self.clues.insert(0, why);
        self
    }

    /// Whether it is charged to a recovery: it is no rank's doing, and has happened all the same.
    pub(crate) fn is_charged(&self) -> bool {
        self.clues.iter().any(|clue| clue.what == CHARGED)
    }

    /// The most likely suspect.
    #[must_use]
    pub fn prime(&self) -> &Suspect {
        &self.suspects[0] // never empty: `new` puts one in, nothing takes one out
    }

    /// All suspects, most likely first.
    #[must_use]
    pub fn suspects(&self) -> &[Suspect] {
        &self.suspects
    }

    /// Whether nothing is wrong, and a detector only knows what would be better. It is taken while nothing is being mended; meanwhile
    /// it is dropped and counted, so its detector has to give it again.
    #[must_use]
    pub fn is_mere_advice(&self) -> bool {
        self.advice.is_some()
            && self.by != OPERATOR
            && self.suspects.iter().all(|suspect| suspect.damage.still_trains())
    }

    /// Which start of the prime suspect's role this is about, if that is a process.
    #[must_use]
    pub const fn incarnation(&self) -> Option<Incarnation> {
        self.of
    }

    /// Whether two faults name the same thing: a repeat of one is dropped and counted.
    #[must_use]
    pub fn same_as(&self, other: &Fault) -> bool {
        self.prime().domain == other.prime().domain && self.prime().class == other.prime().class && self.of == other.of
    }
}

/// One thing that a detector says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finding {
    /// Something is wrong.
    Blame(Fault),
    /// What was blamed before is well again; an incident for which nothing was begun yet and that has nothing else is closed.
    Clear(Domain, FaultClass),
    /// More must be known first.
    Ask(Ask),
    /// Something that people should hear of, and that is no fault: it opens no incident and changes nothing.
    Note(Domain, Clue),
}

/// Where a detector puts what it finds.
///
/// A decorator makes one of its own, calls the inner detector with it, and passes on what it likes.
#[derive(Debug, Default)]
pub struct Findings(Vec<Finding>);

impl Findings {
    /// Something is wrong.
    pub fn blame(&mut self, fault: Fault) {
        self.0.push(Finding::Blame(fault));
    }

    /// What was blamed before is well again.
    pub fn clear(&mut self, domain: Domain, class: FaultClass) {
        self.0.push(Finding::Clear(domain, class));
    }

    /// More must be known first.
    pub fn ask(&mut self, ask: Ask) {
        self.0.push(Finding::Ask(ask));
    }

    /// Something that people should hear of, and that is no fault.
    pub fn note(&mut self, about: Domain, clue: Clue) {
        self.0.push(Finding::Note(about, clue));
    }

    /// Adds a finding as it is.
    pub fn push(&mut self, finding: Finding) {
        self.0.push(finding);
    }

    /// Whether nothing was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes what was found, in order.
    pub fn drain(&mut self) -> impl Iterator<Item = Finding> + '_ {
        self.0.drain(..)
    }
}
