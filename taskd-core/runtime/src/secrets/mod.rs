//! Secrets in a job's environment and arguments: decisions and logs do not contain them, and every process receives
//! them.
//!
//! This module writes nothing and queries no secret store: the values come from the job that this program was given.
//!
//! # How
//! The kernel never has a secret. The runtime removes secrets from its [`JobSpec`] before anything else happens, and
//! replaces them by *marks* such as `<redacted:HF_TOKEN>` ([`Secrets::take`]). The kernel decides on the marks, and its
//! commands, events, reports and both logs contain them. A replay finds the marks there too, so it needs no secret and
//! gives the same result. The values are restored in an order at one place, on its way to the launcher
//! ([`Secrets::put_back`]).
//!
//! Therefore a log contains no values that a later supervisor could use. The later supervisor has a job of its own,
//! from which it completes an order in the log: with the same variables and their current values. If the job lacks one,
//! the order is refused with a sentence that names what is missing ([`MissingSecrets`]), and no process ever runs with
//! a mark in place of a value.
//!
//! # What counts as a secret
//! - The value of a variable whose name is that of a secret ([`SecretNames::cover`]).
//! - Within other values and within arguments: the value after such a name (`--token=x`, `PASSWORD=x`, `api_key: x`),
//!   including a list, an object or a block of lines; the argument after such an option (`--password x`); the user part
//!   of a URL (`user:password` of `https://user:password@host`, whatever the variable's name); and the content of a
//!   private key.
//! - The same values in text that a process reports or that accompanies its end, such as the last lines of its stderr,
//!   if they are longer than a few characters.
//!
//! More than the secrets may be removed (`--sort-key name`). A process receives all of it back, so the only cost is a
//! missing word for a reader of the log. Plugins that decide see marks as well: no decision may depend on a secret.
//!
//! Not detected: secrets whose names do not indicate them, annotations of a job, names of files and directories, and
//! the settings that [plugins](crate::journal::PluginInfo::config) report.

mod mask;

pub use crate::redact::SecretNames;

use crate::job::{JobSpec, WorkerSpec};
use crate::redact::MARK;
use crate::redact::text::{self, Found};
use crate::state::{StartBatch, StartOrder};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// The secret values of one job. Each value is stored under the placeholder that replaces it in decisions and logs.
///
/// ```
/// use taskd_core::job::{JobSpec, WorkerSpec};
/// use taskd_core::secrets::Secrets;
///
/// let worker = WorkerSpec::new(["train", "--password", "hunter2", "--lr=0.1"])
///     .with_env("HF_TOKEN", "hf_123")
///     .with_env("PIP_INDEX_URL", "https://me:hunter2@pypi.example/simple")
///     .with_env("OMP_NUM_THREADS", "4");
/// let (job, secrets) = Secrets::take(&JobSpec::new("demo", 2, worker));
/// assert_eq!(job.worker.argv, ["train", "--password", "<redacted:--password>", "--lr=0.1"]);
/// assert_eq!(job.worker.env["HF_TOKEN"], "<redacted:HF_TOKEN>");
/// assert_eq!(job.worker.env["PIP_INDEX_URL"], "https://<redacted:PIP_INDEX_URL@pypi.example>@pypi.example/simple");
/// assert_eq!(job.worker.env["OMP_NUM_THREADS"], "4");
/// assert_eq!(format!("{secrets:?}"), "Secrets(3)");
/// ```
#[derive(Clone, Default)]
pub struct Secrets {
    /// Values by mark: everything that was removed, and all variables, for orders of a supervisor that removed more.
    values: BTreeMap<String, String>,
    /// Removed values with their marks: longest first, so that a value is replaced before its substrings.
    taken: Vec<(String, String)>,
    /// Names that the job adds or exempts.
    names: SecretNames,
}

impl Secrets {
    /// Returns a copy of the job with placeholders instead of its secret values, and the secret values.
    #[must_use]
    pub fn take(spec: &JobSpec) -> (JobSpec, Secrets) {
        let mut secrets = Secrets { names: spec.secrets.clone(), ..Secrets::default() };
        let mut sealed = spec.clone();
        sealed.worker = secrets.take_from(&spec.worker, "", &spec.secrets);
        for (name, program) in &mut sealed.services {
            *program = secrets.take_from(program, &format!("{name}/"), &spec.secrets);
        }
        secrets.taken.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then_with(|| a.cmp(b)));
        secrets.taken.dedup_by(|a, b| a.0 == b.0);
        (sealed, secrets)
    }

    /// Removes the secrets of one program; the names in its marks begin with `of`.
    fn take_from(&mut self, program: &Arc<WorkerSpec>, of: &str, names: &SecretNames) -> Arc<WorkerSpec> {
        let mut sealed = WorkerSpec::clone(program);
        for (name, value) in &mut sealed.env {
            let found = text::in_variable(name, value, names);
            *value = self.cut(value, found, &|place| match place {
                "" => format!("{of}{name}"),
                place => format!("{of}{name}{place}"),
            });
        }
        let found = text::in_arguments(&sealed.argv, names);
        for (argument, found) in sealed.argv.iter_mut().zip(found) {
            *argument = self.cut(argument, found, &|place| format!("{of}{place}"));
        }
        for (name, value) in &program.env {
            self.values.entry(mark(&format!("{of}{name}"))).or_insert_with(|| value.clone());
        }
        if sealed == **program { Arc::clone(program) } else { Arc::new(sealed) }
    }

    /// Replaces each found secret in the text by a mark.
    fn cut(&mut self, text: &str, found: Vec<Found>, name: &dyn Fn(&str) -> String) -> String {
        let mut sealed = String::new();
        let mut at = 0;
        for Found { range, place } in found {
            let (Some(before), Some(value)) = (text.get(at..range.start), text.get(range.clone())) else { continue };
            sealed.push_str(before);
            sealed.push_str(&self.keep(&name(&place), value));
            at = range.end;
        }
        sealed.push_str(text.get(at..).unwrap_or_default());
        sealed
    }

    /// Stores a value and returns its mark; different values with the same name are numbered.
    fn keep(&mut self, name: &str, value: &str) -> String {
        let numbered = (2..).map(|n| mark(&format!("{name}#{n}")));
        let free = |mark: &String| self.values.get(mark).is_none_or(|known| known == value);
        let mark = std::iter::once(mark(name)).chain(numbered).find(free).unwrap_or_default(); // always `Some`
        self.values.insert(mark.clone(), value.to_owned());
        self.taken.push((value.to_owned(), mark.clone()));
        mark
    }

    /// Replaces the placeholders of secrets in start orders by the secret values, on the way to a launcher. Also adds
    /// to each order the job's own two lists of names: those whose values are secret, and those whose values are not.
    ///
    /// # Errors
    /// Returns [`MissingSecrets`] if the job has no value for a placeholder. In that case, the caller must start no
    /// process.
    pub fn put_back(&self, batch: &StartBatch) -> Result<StartBatch, MissingSecrets> {
        let mut missing = BTreeSet::new();
        let mut last: Option<(&Arc<WorkerSpec>, Arc<WorkerSpec>)> = None; // thousands of ranks share one program
        let complete = |order: &StartOrder, spec: Arc<WorkerSpec>| order.clone().with_spec(spec);
        let mut orders = Vec::with_capacity(batch.starts.len());
        for order in &batch.starts {
            let whole = match &last {
                Some((sealed, whole)) if Arc::ptr_eq(sealed, &order.spec) => Arc::clone(whole),
                _ => self.whole(&order.spec, &mut missing),
            };
            orders.push(complete(order, Arc::clone(&whole)));
            last = Some((&order.spec, whole));
        }
        match missing.is_empty() {
            true => Ok(StartBatch::new(Arc::clone(&batch.world), orders)),
            false => Err(MissingSecrets { names: missing }),
        }
    }

    fn whole(&self, spec: &Arc<WorkerSpec>, missing: &mut BTreeSet<String>) -> Arc<WorkerSpec> {
        if self.names.is_empty() && !spec.env.values().chain(&spec.argv).any(|text| text.contains(MARK)) {
            return Arc::clone(spec);
        }
        let mut whole = WorkerSpec::clone(spec);
        whole.secrets = self.names.clone();
        for text in whole.env.values_mut().chain(&mut whole.argv) {
            *text = self.filled(text, missing);
        }
        Arc::new(whole)
    }

    fn filled(&self, text: &str, missing: &mut BTreeSet<String>) -> String {
        let (mut filled, mut rest) = (String::new(), text);
        while let Some((before, from)) = rest.find(MARK).map(|at| rest.split_at(at)) {
            let (mark, behind) = from.split_at(from.find('>').map_or(from.len(), |end| end + 1));
            filled.push_str(before);
            match self.values.get(mark) {
                Some(value) => filled.push_str(value),
                None => drop(missing.insert(mark.trim_start_matches(MARK).trim_matches([':', '>']).to_owned())),
            }
            rest = behind;
        }
        filled + rest
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({})", self.taken.len())
    }
}

/// Returns the mark for a value of this name. A mark ends with its first `>`.
fn mark(name: &str) -> String {
    format!("{MARK}:{}>", name.replace(['<', '>'], "?"))
}

/// Error of [`Secrets::put_back`]: the job of this supervisor has no value for some placeholders in a start order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the log does not keep secrets, and this supervisor's job has no value for {}: give it the variables and arguments that the \
     job had before",
    list(names)
)]
pub struct MissingSecrets {
    /// Names of the environment variables and command-line options whose secret values are missing.
    pub names: BTreeSet<String>,
}

fn list(names: &BTreeSet<String>) -> String {
    names.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
