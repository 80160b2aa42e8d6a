//! What stands at the head of every file: whose log it is, and with which plugins its decisions were made.
//!
//! It never judges whether two sets of plugins fit: it names the differences, and the caller decides.

use super::form;
use super::record::{self, FRAME_BYTES, Found, Kind};
use crate::detect::FaultDetector;
use crate::job::{JobTime, Name, Seq};
use crate::kernel::Plugins;
use crate::launch::LauncherInfo;
use crate::recover::RecoveryStrategy;
use crate::trace::SourceInfo;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Version of the log format that this program writes. It reads that and all released ones before, from
/// [`FORMAT_VERSION_MIN`] on, and refuses a newer one: that may hold what this program must not overlook. Whatever is
/// added to a type in the log raises it.
pub const FORMAT_VERSION: u32 = 7;

/// The first version of the log format that was released; 1 never was.
pub const FORMAT_VERSION_MIN: u32 = 2;

const MAGIC: [u8; 8] = *b"taskdlog";
const PREFIX_BYTES: usize = 12;

/// Largest head of a file in bytes; a larger one is no log of ours.
pub(super) const HEAD_BYTES_MAX: usize = 4 << 20;

/// Whose log it is, and with which plugins its decisions were made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Name of the job.
    pub job: Name,
    /// Tells two jobs of one name apart.
    pub job_id: String,
    /// Number of ranks that the job was to have.
    pub ranks: u32,
    /// When this supervisor started, in milliseconds of Unix time: it ties job time to the wall clock.
    pub started_unix_ms: u64,
    /// All plugins, in the order in which the runtime has them.
    pub plugins: Vec<PluginInfo>,
}

impl Header {
    /// Everything that a log under `self` was written with and that is otherwise in `now`; empty when nothing is.
    #[must_use]
    pub fn differences(&self, now: &Header) -> Vec<Difference> {
        let mut differences = Vec::new();
        if (&self.job, &self.job_id) != (&now.job, &now.job_id) {
            differences.push(Difference::Job { logged: self.whose(), now: now.whose() });
        }
        if self.ranks != now.ranks {
            differences.push(Difference::Ranks { logged: self.ranks, now: now.ranks });
        }
        differences.extend(plugin_differences(&self.plugins, &now.plugins));
        differences
    }

    /// The job's name, with its id where that says more.
    pub(super) fn whose(&self) -> String {
        if self.job.as_str() == self.job_id { self.job_id.clone() } else { format!("{} ({})", self.job, self.job_id) }
    }

    /// The same for the plugins that a replay needs.
    pub(super) fn differences_in_replay(&self, plugins: &Plugins) -> Vec<Difference> {
        let old: Vec<PluginInfo> = self.plugins.iter().filter(|p| p.kind.decides()).cloned().collect();
        let detectors = plugins.detectors.iter().map(|d| PluginInfo::from(&**d));
        let strategies = plugins.strategies.iter().map(|s| PluginInfo::from(&**s));
        plugin_differences(&old, &detectors.chain(strategies).collect::<Vec<_>>())
    }
}

fn plugin_differences(logged: &[PluginInfo], now: &[PluginInfo]) -> Vec<Difference> {
    let mut differences = Vec::new();
    for old in logged {
        match now.iter().find(|new| old.is_the_same_as(new)) {
            None => differences.push(Difference::Gone { plugin: old.clone() }),
            Some(new) if (&old.version, &old.config) != (&new.version, &new.config) => {
                differences.push(Difference::Changed { logged: old.clone(), now: new.clone() });
            }
            Some(_) => {}
        }
    }
    let added = now.iter().filter(|new| !logged.iter().any(|old| old.is_the_same_as(new)));
    differences.extend(added.map(|plugin| Difference::Added { plugin: plugin.clone() }));
    differences
        .extend([PluginKind::Detector, PluginKind::Strategy].into_iter().filter_map(|k| reordered(k, logged, now)));
    differences
}

/// Whether the plugins of a kind that are in both lists stand in another order: it decides among equals.
fn reordered(kind: PluginKind, logged: &[PluginInfo], now: &[PluginInfo]) -> Option<Difference> {
    let common = |of: &[PluginInfo], other: &[PluginInfo]| -> Vec<Name> {
        let stays = |p: &&PluginInfo| p.kind == kind && other.iter().any(|o| o.is_the_same_as(p));
        of.iter().filter(stays).map(|p| p.name.clone()).collect()
    };
    let (logged, now) = (common(logged, now), common(now, logged));
    (logged != now).then_some(Difference::Reordered { kind, logged, now })
}

/// What a plugin is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PluginKind {
    /// A [`TraceSource`](crate::trace::TraceSource).
    Source,
    /// A [`FaultDetector`].
    Detector,
    /// A [`RecoveryStrategy`].
    Strategy,
    /// A [`Launcher`](crate::launch::Launcher).
    Launcher,
}

impl PluginKind {
    /// Whether decisions are made by plugins of this kind. What others contribute stands in the log as it came.
    #[must_use]
    pub const fn decides(self) -> bool {
        matches!(self, PluginKind::Detector | PluginKind::Strategy)
    }
}

impl fmt::Display for PluginKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            PluginKind::Source => "source",
            PluginKind::Detector => "detector",
            PluginKind::Strategy => "strategy",
            PluginKind::Launcher => "launcher",
        })
    }
}

/// One plugin, as it says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginInfo {
    /// What it is.
    pub kind: PluginKind,
    /// Its name, unique among those of its kind.
    pub name: Name,
    /// Its version.
    pub version: Name,
    /// The settings that shape what it does.
    pub config: String,
}

impl PluginInfo {
    fn is_the_same_as(&self, other: &PluginInfo) -> bool {
        (self.kind, &self.name) == (other.kind, &other.name)
    }
}

impl fmt::Display for PluginInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} version {}", self.kind, self.name, self.version)?;
        match self.config.as_str() {
            "" => Ok(()),
            config => write!(f, " ({config})"),
        }
    }
}

impl From<&dyn FaultDetector> for PluginInfo {
    fn from(detector: &dyn FaultDetector) -> PluginInfo {
        let (name, version, config) = (detector.name(), detector.version(), detector.config());
        PluginInfo { kind: PluginKind::Detector, name, version, config }
    }
}

impl From<&dyn RecoveryStrategy> for PluginInfo {
    fn from(strategy: &dyn RecoveryStrategy) -> PluginInfo {
        let (name, version, config) = (strategy.name(), strategy.version(), strategy.config());
        PluginInfo { kind: PluginKind::Strategy, name, version, config }
    }
}

impl From<SourceInfo> for PluginInfo {
    fn from(info: SourceInfo) -> PluginInfo {
        let SourceInfo { name, version, stand_in, queue_max, when_full, answers } = info;
        let mut config = format!("queue_max={queue_max} when_full={when_full:?}");
        if !answers.is_empty() {
            config.push_str(&format!(" answers={}", listed(&answers)));
        }
        if stand_in {
            config.push_str(" stand_in");
        }
        PluginInfo { kind: PluginKind::Source, name, version, config }
    }
}

impl From<LauncherInfo> for PluginInfo {
    fn from(info: LauncherInfo) -> PluginInfo {
        let LauncherInfo { name, version, lifeline, goes_without, .. } = info;
        let mut config = format!("lifeline={lifeline}");
        for guarantee in &goes_without {
            config.push_str(&format!("; {guarantee}"));
        }
        PluginInfo { kind: PluginKind::Launcher, name, version, config }
    }
}

fn listed(names: &[Name]) -> String {
    names.iter().map(Name::as_str).collect::<Vec<_>>().join(", ")
}

/// One thing in which a log differs from the runtime that wants to go on with it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference {
    /// It is the log of another job: going on with it would mix two jobs.
    Job {
        /// Name and id of the log's job.
        logged: String,
        /// Name and id of the job that is to run.
        now: String,
    },
    /// The job has another number of ranks: the world in the log is not the one that is wanted.
    Ranks {
        /// As in the log.
        logged: u32,
        /// As it is now.
        now: u32,
    },
    /// A plugin with which the log was written is missing.
    Gone {
        /// The plugin.
        plugin: PluginInfo,
    },
    /// A plugin is new.
    Added {
        /// The plugin.
        plugin: PluginInfo,
    },
    /// A plugin has another version or other settings.
    Changed {
        /// As in the log.
        logged: PluginInfo,
        /// As it is now.
        now: PluginInfo,
    },
    /// Plugins of a kind are asked in another order.
    Reordered {
        /// Which kind.
        kind: PluginKind,
        /// As in the log.
        logged: Vec<Name>,
        /// As it is now.
        now: Vec<Name>,
    },
}

impl Difference {
    /// Whether the log's state must not be taken up: it is another job's.
    #[must_use]
    pub const fn is_another_job(&self) -> bool {
        matches!(self, Difference::Job { .. })
    }

    /// Whether what is in the log might be decided otherwise now, so that a supervisor does not go on from it and a
    /// replay need not come out the same. Other sources and launchers change no decision that is in the log.
    #[must_use]
    pub const fn changes_decisions(&self) -> bool {
        match self {
            Difference::Job { .. } | Difference::Ranks { .. } | Difference::Reordered { .. } => true,
            Difference::Gone { plugin } | Difference::Added { plugin } => plugin.kind.decides(),
            Difference::Changed { logged, .. } => logged.kind.decides(),
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::Job { logged, now } => {
                return write!(
                    f,
                    "the log is that of job {logged}, not of {now}: give each job a directory of its own"
                );
            }
            Difference::Ranks { logged, now } => {
                write!(f, "the log was written with ranks = {logged}, now it is {now}")?;
            }
            Difference::Gone { plugin } => write!(f, "the log was written with {plugin}, which is missing now")?,
            Difference::Added { plugin } => write!(f, "the log was written without {plugin}")?,
            Difference::Changed { logged, now } => {
                write!(f, "the log was written with {logged}, now there is {now}")?;
            }
            Difference::Reordered { kind, logged, now } => {
                write!(f, "the log was written with the {kind} order {}, now it is {}", listed(logged), listed(now))?;
            }
        }
        f.write_str(match self.changes_decisions() {
            true => ": to go on from it or replay it exactly, set this as it was",
            false => ": no decision in it depends on that",
        })
    }
}

/// The first record of every file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileHead {
    pub(super) header: Header,
    /// Which start of the supervisor wrote the file, from 1.
    pub(super) start: u64,
    /// The last input of earlier starts that is in this one's state. What those wrote behind it never took effect; 0:
    /// this start began from nothing.
    pub(super) after: Seq,
    /// The snapshot from which that state was rebuilt; `None`: from the first input on.
    pub(super) base: Option<Seq>,
}

impl FileHead {
    /// The first bytes of every file.
    pub(super) fn encode(&self) -> Result<Vec<u8>, record::EncodeError> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(FORMAT_VERSION.to_le_bytes());
        record::encode(&mut bytes, Kind::Head, self.after, JobTime::START, |out| form::write_named(out, self))?;
        Ok(bytes)
    }

    /// Reads the head of a file and says where its records begin.
    pub(super) fn decode(bytes: &[u8]) -> Result<(FileHead, usize), NoHead> {
        let Some(prefix) = bytes.get(..PREFIX_BYTES) else {
            let begun = bytes == &MAGIC[..bytes.len().min(MAGIC.len())] || bytes.starts_with(&MAGIC);
            return Err(if begun { NoHead::Cut } else { NoHead::NotALog });
        };
        let (magic, version) = prefix.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(NoHead::NotALog);
        }
        let version = version.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte));
        if !(FORMAT_VERSION_MIN..=FORMAT_VERSION).contains(&version) {
            return Err(NoHead::Version(version));
        }
        match record::find(bytes, PREFIX_BYTES) {
            Found::Record(head) if head.kind == Kind::Head => {
                let decoded = form::read_named(head.payload).map_err(|_| NoHead::NotALog)?;
                Ok((decoded, PREFIX_BYTES + FRAME_BYTES + head.payload.len()))
            }
            Found::Bad { at_end: true, .. } | Found::End => Err(NoHead::Cut),
            Found::Record(_) | Found::Bad { .. } => Err(NoHead::NotALog),
        }
    }
}

/// Why a file's head cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoHead {
    /// The file is no log, or its head is damaged.
    NotALog,
    /// It has this version, which we do not read.
    Version(u32),
    /// The file ends within its head: its writer came no further, and wrote nothing else.
    Cut,
}
