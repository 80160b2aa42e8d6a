//! A job as a JSON document that people write, with its version.
//!
//! It never judges what is asked for: that is [`JobSpec::problems`].

use super::{GroupId, JobSpec, Name, NodeId, NotText, Policy, Rank, WorkerSpec, document_text};
use crate::secrets::SecretNames;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Version of the job documents that this program writes. It reads that and all released ones before, from 1 on.
pub const SPEC_VERSION: u32 = 1;

/// A job: what to run, how often, and under which policy.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(title = "JobSpec"))]
#[serde(deny_unknown_fields)]
pub(crate) struct Document {
    /// Version of the document's form; 1 when it is left out.
    #[serde(default = "first_version")]
    version: u32,
    /// Name of the job, for people and file names: 1 to 64 letters, digits, `-`, `_` or `.`, not starting with `.`.
    name: Name,
    /// How many ranks it has when it starts.
    ranks: u32,
    /// How each rank is started.
    worker: Arc<WorkerSpec>,
    /// Processes that the ranks need but that do not train, by name: started anew whenever all ranks are.
    #[serde(default)]
    services: BTreeMap<Name, Arc<WorkerSpec>>,
    /// The service at which ranks meet, if one of them is.
    #[serde(default)]
    meeting: Option<Name>,
    /// Hosts to use, in rank order, filled one after the other. Empty: wherever the launcher finds room.
    #[serde(default)]
    nodes: Vec<NodeId>,
    /// Communication groups, such as `"tp:0": [0, 1]`; those that a detector or strategy should know of.
    #[serde(default)]
    groups: BTreeMap<GroupId, Vec<Rank>>,
    /// What the runtime may do.
    #[serde(default)]
    policy: Policy,
    /// What is noted of the job for those who know the name, such as a cluster's labels and annotations.
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    /// Which names of variables and options are those of secrets, besides those that are known as such: their values stand in no log.
    #[serde(default)]
    secrets: SecretNames,
}

const fn first_version() -> u32 {
    1
}

/// The only thing that is read of a document before its version is known.
#[derive(Deserialize)]
struct Versioned {
    #[serde(default = "first_version")]
    version: u32,
}

/// Why a text is no job.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// It is not JSON, or not of the form of a job: what is wrong and where.
    #[error("the job cannot be read: {0}")]
    Form(#[source] serde_json::Error),
    /// It is empty, or no text in UTF-8 without a byte-order mark.
    #[error("the job cannot be read: it {0}")]
    Text(#[source] NotText),
    /// It was written for a program that is newer than this one, or there is no such version.
    #[error(
        "the job is written in version {found} of its form, this program reads up to {SPEC_VERSION}: use a newer version of \
         this program, or write the job in version {SPEC_VERSION}"
    )]
    Version {
        /// Its version.
        found: u32,
    },
    /// It holds something that JSON cannot say, such as a directory that is not UTF-8.
    #[error("the job cannot be written as JSON: {0}")]
    Unwritable(#[source] serde_json::Error),
}

impl JobSpec {
    /// Reads a job from a JSON document. What is left out has the value that the builder of the type gives it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use taskd_core::job::JobSpec;
    ///
    /// let spec = JobSpec::from_json(r#"{
    ///     "name": "demo", "ranks": 4,
    ///     "worker": {"argv": ["python", "train.py"], "env": {"OMP_NUM_THREADS": "1"}},
    ///     "policy": {"stop_grace": "30s", "strategies": {"acme.reboot": "never"}}
    /// }"#)?;
    /// assert_eq!(spec.policy.stop_grace, Duration::from_secs(30));
    ///
    /// let error = JobSpec::from_json(r#"{"name": "demo", "rank": 4}"#).unwrap_err().to_string();
    /// assert!(error.starts_with("the job cannot be read: unknown field `rank`, expected one of `version`, `name`, `ranks`"));
    /// # Ok::<(), taskd_core::job::SpecError>(())
    /// ```
    ///
    /// # Errors
    /// [`SpecError`] when it is empty or no JSON, has a field that nobody knows or lacks one, or has a version that this program
    /// does not read. Whether a job of these values can be run is not checked here, but by
    /// [`problems`](JobSpec::problems).
    pub fn from_json(text: &str) -> Result<JobSpec, SpecError> {
        document_text(text.as_bytes()).map_err(SpecError::Text)?;
        let Versioned { version } = serde_json::from_str(text).map_err(SpecError::Form)?;
        if !(first_version()..=SPEC_VERSION).contains(&version) {
            return Err(SpecError::Version { found: version });
        }
        let document = serde_json::from_str(text).map_err(SpecError::Form)?;
        let Document {
            version: _,
            name,
            ranks,
            worker,
            services,
            meeting,
            nodes,
            groups,
            policy,
            annotations,
            secrets,
        } = document;
        Ok(JobSpec { name, ranks, worker, services, meeting, nodes, groups, policy, annotations, secrets })
    }

    /// The job as a JSON document that [`from_json`](JobSpec::from_json) reads, with every value spelled out.
    ///
    /// # Errors
    /// [`SpecError::Unwritable`] when something in it is not text.
    pub fn to_json(&self) -> Result<String, SpecError> {
        let JobSpec { name, ranks, worker, services, meeting, nodes, groups, policy, annotations, secrets } =
            self.clone();
        let document = Document {
            version: SPEC_VERSION,
            name,
            ranks,
            worker,
            services,
            meeting,
            nodes,
            groups,
            policy,
            annotations,
            secrets,
        };
        serde_json::to_string_pretty(&document).map_err(SpecError::Unwritable)
    }
}
