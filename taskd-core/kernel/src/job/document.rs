//! Reads and writes a job as a versioned JSON document that people edit.
//!
//! This module does not validate the values; [`JobSpec::problems`] does.

use super::{GroupId, JobSpec, Name, NodeId, NotText, Policy, Rank, WorkerSpec, document_text};
use crate::redact::SecretNames;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Format version of the job documents that this program writes. The program reads all versions from 1 to this one.
pub const SPEC_VERSION: u32 = 2;

/// A job as its JSON document describes it: the program, the number of ranks, and the policy.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(title = "JobSpec"))]
#[serde(deny_unknown_fields)]
#[doc(hidden)]
pub struct Document {
    /// Version of the document's format; 1 if omitted.
    #[serde(default = "first_version")]
    version: u32,
    /// Name of the job, for people and file names: 1 to 64 letters, digits, `-`, `_` or `.`, not starting with `.`.
    name: Name,
    /// Number of ranks when the job starts.
    ranks: u32,
    /// Program that each rank runs, with its environment and settings.
    worker: Arc<WorkerSpec>,
    /// Processes that the ranks need but that do not train, by name. They are restarted whenever all ranks are
    /// restarted.
    #[serde(default)]
    services: BTreeMap<Name, Arc<WorkerSpec>>,
    /// Name of the entry of `services` at which the ranks meet (rendezvous), if one of the services does that.
    #[serde(default, alias = "meeting")]
    rendezvous_service: Option<Name>,
    /// Hosts to use, in rank order, filled one after the other. Empty: the launcher chooses.
    #[serde(default)]
    nodes: Vec<NodeId>,
    /// Communication groups, such as `"tp:0": [0, 1]`, that detectors or strategies use.
    #[serde(default)]
    groups: BTreeMap<GroupId, Vec<Rank>>,
    /// What the runtime may do to recover the job, and its time limits.
    #[serde(default)]
    policy: Policy,
    /// Free-form notes by name, such as a cluster's labels and annotations; for tools that know the names.
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    /// Names of variables and options that hold secrets, in addition to the names recognised by default. The values of
    /// these variables and options appear in no log.
    #[serde(default)]
    secrets: SecretNames,
}

const fn first_version() -> u32 {
    1
}

/// The only field that is parsed before the version is known.
#[derive(Deserialize)]
struct Versioned {
    #[serde(default = "first_version")]
    version: u32,
}

/// Error: a text cannot be read as a job document, or a job cannot be written as one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The text is not JSON, or is JSON but does not describe a job. The field contains the error and its position in
    /// the text.
    #[error("the job cannot be read: {0}")]
    Form(#[source] serde_json::Error),
    /// The text is empty, not UTF-8, or begins with a byte-order mark.
    #[error("the job cannot be read: it {0}")]
    Text(#[source] NotText),
    /// The document has a format version that this program does not read: a newer one, or one that does not exist.
    #[error(
        "the job has format version {found}, this program reads up to {SPEC_VERSION}: use a newer version of this \
         program, or write the job in version {SPEC_VERSION}"
    )]
    Version {
        /// Format version found in the document.
        found: u32,
    },
    /// The job contains a value that JSON cannot represent, such as a directory that is not UTF-8.
    #[error("the job cannot be written as JSON: {0}")]
    Unwritable(#[source] serde_json::Error),
}

impl JobSpec {
    /// Parses a job from a JSON document. An omitted field gets the default that the constructor of its type sets, for
    /// example [`JobSpec::new`].
    ///
    /// ```
    /// # extern crate taskd_kernel as taskd_core;
    /// use std::time::Duration;
    /// use taskd_core::job::JobSpec;
    ///
    /// let spec = JobSpec::from_json(r#"{
    ///     "name": "demo", "ranks": 4,
    ///     "worker": {"argv": ["python", "train.py"], "env": {"OMP_NUM_THREADS": "1"}},
    ///     "policy": {"termination_grace_period": "30s", "strategies": {"acme.reboot": "never"}}
    /// }"#)?;
    /// assert_eq!(spec.policy.termination_grace_period, Duration::from_secs(30));
    ///
    /// let error = JobSpec::from_json(r#"{"name": "demo", "rank": 4}"#).unwrap_err().to_string();
    /// assert!(error.starts_with("the job cannot be read: unknown field `rank`, expected one of `version`, `name`, `ranks`"));
    /// # Ok::<(), taskd_core::job::SpecError>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`SpecError`] if the text is empty or not JSON, has an unknown field or lacks a required one, or has a
    /// version that this program does not read. The values are not validated here: [`problems`](JobSpec::problems) does
    /// that.
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
            rendezvous_service,
            nodes,
            groups,
            policy,
            annotations,
            secrets,
        } = document;
        Ok(JobSpec { name, ranks, worker, services, rendezvous_service, nodes, groups, policy, annotations, secrets })
    }

    /// Formats the job as a JSON document that [`from_json`](JobSpec::from_json) reads, with every value written out.
    ///
    /// # Errors
    /// Returns [`SpecError::Unwritable`] if the job contains a value that JSON cannot represent, such as a directory
    /// that is not UTF-8.
    pub fn to_json(&self) -> Result<String, SpecError> {
        let JobSpec { name, ranks, worker, services, rendezvous_service, nodes, groups, policy, annotations, secrets } =
            self.clone();
        let document = Document {
            version: SPEC_VERSION,
            name,
            ranks,
            worker,
            services,
            rendezvous_service,
            nodes,
            groups,
            policy,
            annotations,
            secrets,
        };
        serde_json::to_string_pretty(&document).map_err(SpecError::Unwritable)
    }
}
