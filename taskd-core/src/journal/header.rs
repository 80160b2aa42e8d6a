//! What stands at the head of every file: whose log it is, and with which plugins its decisions were made.
//!
//! It never judges whether two sets of plugins fit: it names the differences, and the caller decides.

use super::record::{self, FRAME_BYTES, Found, Kind};
use crate::detect::FaultDetector;
use crate::job::{JobTime, Name, Seq};
use crate::kernel::Plugins;
use crate::launch::LauncherInfo;
use crate::recover::RecoveryStrategy;
use crate::trace::SourceInfo;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Version of the format that this program writes. It reads no other.
pub const FORMAT_VERSION: u32 = 1;

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
            let of = |h: &Header| format!("{} ({})", h.job, h.job_id);
            differences.push(Difference::Job { logged: of(self), now: of(now) });
        }
        differences.extend(plugin_differences(&self.plugins, &now.plugins));
        differences
    }

    /// The same for the plugins that a replay needs.
    pub(super) fn differences_in_replay(&self, plugins: &Plugins) -> Vec<Difference> {
        let replayed = |p: &&PluginInfo| matches!(p.kind, PluginKind::Detector | PluginKind::Strategy);
        let old: Vec<PluginInfo> = self.plugins.iter().filter(replayed).cloned().collect();
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
}

/// What a plugin is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
    fn from(SourceInfo { name, version, .. }: SourceInfo) -> PluginInfo {
        PluginInfo { kind: PluginKind::Source, name, version, config: String::new() }
    }
}

impl From<LauncherInfo> for PluginInfo {
    fn from(LauncherInfo { name, version, .. }: LauncherInfo) -> PluginInfo {
        PluginInfo { kind: PluginKind::Launcher, name, version, config: String::new() }
    }
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
    /// A plugin that took part in the logged decisions is not there any more.
    Gone {
        /// The plugin.
        plugin: PluginInfo,
    },
    /// A plugin is new: it starts cold.
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
}

impl Difference {
    /// Whether the log's state must not be taken up: it is another job's.
    #[must_use]
    pub const fn is_another_job(&self) -> bool {
        matches!(self, Difference::Job { .. })
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::Job { logged, now } => {
                write!(f, "the log is that of job {logged}, not of {now}: give each job a directory of its own")
            }
            Difference::Gone { plugin } => {
                write!(f, "{plugin} wrote this log and is not there any more: add it to replay the log exactly")
            }
            Difference::Added { plugin } => write!(f, "{plugin} is new since this log was written: it starts cold"),
            Difference::Changed { logged, now } => write!(
                f,
                "the log was written with {logged}, now there is {now}: a replay may decide otherwise, use the old one to \
                 compare"
            ),
        }
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
        record::encode(&mut bytes, Kind::Head, self.after, JobTime::START, self)?;
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
        if version != FORMAT_VERSION {
            return Err(NoHead::Version(version));
        }
        match record::find(bytes, PREFIX_BYTES) {
            Found::Record(head) if head.kind == Kind::Head => {
                let decoded = record::decode(head.payload).ok_or(NoHead::NotALog)?;
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
    /// It has this version, which is not ours.
    Version(u32),
    /// The file ends within its head: its writer came no further, and wrote nothing else.
    Cut,
}
