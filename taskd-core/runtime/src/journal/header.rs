//! Header of every log file: the job, and the plugins that made the decisions.
//!
//! This module only lists the differences between two sets of plugins; the caller decides if they are compatible.

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

/// Version of the log format that this program writes.
///
/// This program reads all released versions from [`FORMAT_VERSION_MIN`] up to this one. It refuses a newer version,
/// which may contain information that must not be ignored. Any addition to a type in the log increases the version.
pub const FORMAT_VERSION: u32 = 10;

/// First released version of the log format. Version 1 was never released.
pub const FORMAT_VERSION_MIN: u32 = 2;

const MAGIC: [u8; 8] = *b"taskdlog";
const PREFIX_BYTES: usize = 12;

/// Largest file header, in bytes. A file with a larger one is no log.
pub(super) const HEAD_BYTES_MAX: usize = 4 << 20;

/// Header of a log file: describes the job, and the plugins that made the decisions in the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Name of the job.
    pub job: Name,
    /// Identifier of the job, which distinguishes jobs of the same name.
    pub job_id: String,
    /// Number of ranks that the job was configured with.
    pub ranks: u32,
    /// Start time of this supervisor, in milliseconds since the Unix epoch. It relates job time to wall-clock time.
    pub started_unix_ms: u64,
    /// Descriptions of all plugins of the runtime, in the order in which the runtime has them.
    pub plugins: Vec<PluginInfo>,
}

impl Header {
    /// Returns all differences between this header, which was read from a log, and `now`, the header of the current
    /// supervisor; empty if there are none.
    #[must_use]
    pub fn differences(&self, now: &Header) -> Vec<Difference> {
        let mut differences = Vec::new();
        if (&self.job, &self.job_id) != (&now.job, &now.job_id) {
            differences.push(Difference::Job { logged: self.job_name(), now: now.job_name() });
        }
        if self.ranks != now.ranks {
            differences.push(Difference::Ranks { logged: self.ranks, now: now.ranks });
        }
        differences.extend(plugin_differences(&self.plugins, &now.plugins));
        differences
    }

    /// Returns the job's name, with its id if the two differ.
    pub(super) fn job_name(&self) -> String {
        if self.job.as_str() == self.job_id { self.job_id.clone() } else { format!("{} ({})", self.job, self.job_id) }
    }

    /// Returns the differences of the plugins that a replay needs.
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

/// Returns a difference if the plugins of a kind that are in both lists have another order. The order breaks ties.
fn reordered(kind: PluginKind, logged: &[PluginInfo], now: &[PluginInfo]) -> Option<Difference> {
    let common = |of: &[PluginInfo], other: &[PluginInfo]| -> Vec<Name> {
        let stays = |p: &&PluginInfo| p.kind == kind && other.iter().any(|o| o.is_the_same_as(p));
        of.iter().filter(stays).map(|p| p.name.clone()).collect()
    };
    let (logged, now) = (common(logged, now), common(now, logged));
    (logged != now).then_some(Difference::Reordered { kind, logged, now })
}

/// Kind of a plugin of the runtime: trace source, fault detector, recovery strategy or launcher.
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
    /// Returns true if plugins of this kind make decisions. For plugins of the other kinds (sources and launchers), the
    /// log contains what they delivered, as the decision kernel received it.
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

/// Description of one plugin of the runtime (kind, name, version and settings), as the plugin itself states it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginInfo {
    /// Kind of the plugin.
    pub kind: PluginKind,
    /// Name of the plugin, unique among the plugins of its kind.
    pub name: Name,
    /// Version of the plugin.
    pub version: Name,
    /// Settings that affect the plugin's behaviour, as text.
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
        let SourceInfo { name, version, stand_in, queue_max, when_full, probes: answers } = info;
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
        let LauncherInfo { name, version, lifeline, limitations: goes_without, .. } = info;
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

/// A difference between a job's log and the runtime that is to continue from this log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference {
    /// The log belongs to another job. Continuing from it would mix two jobs.
    Job {
        /// Name and id of the job that wrote the log.
        logged: String,
        /// Name and id of the current job.
        now: String,
    },
    /// The job in the log has another number of ranks than the current job, so the log describes another world (set of
    /// ranks that train together).
    Ranks {
        /// Number of ranks of the job in the log.
        logged: u32,
        /// Number of ranks of the current job.
        now: u32,
    },
    /// A plugin with which the log was written is missing in the current runtime.
    Gone {
        /// Description, in the log, of the missing plugin.
        plugin: PluginInfo,
    },
    /// A plugin of the current runtime is not mentioned in the log.
    Added {
        /// Description of the plugin that the log does not mention.
        plugin: PluginInfo,
    },
    /// A plugin of the current runtime has another version or other settings than in the log.
    Changed {
        /// Description of the plugin in the log.
        logged: PluginInfo,
        /// Description of the plugin as it is used now.
        now: PluginInfo,
    },
    /// The plugins of one kind have another order than in the log.
    Reordered {
        /// Kind of the plugins whose order differs.
        kind: PluginKind,
        /// Names of the plugins whose order differs, in the order of the log.
        logged: Vec<Name>,
        /// Names of the plugins whose order differs, in their current order.
        now: Vec<Name>,
    },
}

impl Difference {
    /// Returns true if the log belongs to another job, so that its state must not be used.
    #[must_use]
    pub const fn is_another_job(&self) -> bool {
        matches!(self, Difference::Job { .. })
    }

    /// Returns true if, because of this difference, the inputs in the log could now lead to other decisions. A
    /// supervisor then does not continue from the log, and a replay may differ. Changed trace sources and launchers do
    /// not affect decisions that are in the log.
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
                    "the log belongs to job {logged}, not to {now}: give each job a directory of its own"
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
            true => ": restore this setting to continue from the log or replay it exactly",
            false => ": no decision in the log depends on it",
        })
    }
}

/// First record of every file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileHead {
    pub(super) header: Header,
    /// Number of the supervisor start that wrote the file, from 1.
    pub(super) start: u64,
    /// The last input of earlier starts that is part of this start's state. Their later inputs never took effect. 0 if
    /// this start began with an empty state.
    pub(super) after: Seq,
    /// The snapshot from which that state was rebuilt; `None` if it was rebuilt from the first input.
    pub(super) base: Option<Seq>,
}

impl FileHead {
    /// Encodes the first bytes of a file.
    pub(super) fn encode(&self) -> Result<Vec<u8>, record::EncodeError> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(FORMAT_VERSION.to_le_bytes());
        record::encode(&mut bytes, Kind::Head, self.after, JobTime::START, |out| form::write_named(out, self))?;
        Ok(bytes)
    }

    /// Reads the header of a file. Returns the header and the offset of the first record after it.
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

/// Reason for which a file's header cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoHead {
    /// The file is no log, or its header is damaged.
    NotALog,
    /// The file has this version of the log format, which is not supported.
    Version(u32),
    /// The file ends within its header: its writer was cut off, and wrote no record.
    Cut,
}
