//! Secrets in a job's environment and arguments: they stay out of what is decided on and logged, and every process gets them.
//!
//! It writes nothing and asks no secret store: the values are those of the job that this program was given.
//!
//! # How
//! The kernel never has a secret. A runtime takes them out of its [`JobSpec`] before anything else happens: in their place stand
//! *marks* such as `<redacted:HF_TOKEN>` ([`Secrets::take`]). The marks are what the kernel decides on, what stands in its commands,
//! in events, reports and both logs, and what a replay finds there: so a replay needs no secret, and comes out the same. The values
//! are put back into an order at one place, on its way to the launcher ([`Secrets::put_back`]).
//!
//! So a log has no values that a later supervisor could take from it. That one has a job of its own, and an order that the log holds
//! is completed from that: from the same variables, with the values that they have now. Where the job lacks one the order is refused,
//! in one sentence that names what is missing ([`MissingSecrets`]), and no process ever runs with a mark in the place of a value.
//!
//! # What counts as a secret
//! - the value of a variable whose name is one of a secret's ([`SecretNames::cover`]);
//! - within other values and within arguments: what stands behind such a name (`--token=x`, `PASSWORD=x`, `api_key: x`), a list, an
//!   object or a block of lines included, the argument behind such an option (`--password x`), the user part of a URL
//!   (`user:password` of `https://user:password@host`, whatever the variable's name), and the content of a private key;
//! - these values once more in what ends with a process or comes from it in words, such as the last lines of its stderr, where they
//!   are longer than a few characters.
//!
//! More than a secret may be taken out (`--sort-key name`): a process gets all of it back, so that costs a reader of the log a word
//! and nothing else. Plugins that decide see marks as well: no decision may rest on a secret.
//!
//! Not looked for: secrets that no name gives away, annotations of a job, names of files and directories, and what
//! [plugins](crate::journal::PluginInfo::config) say of their own settings.

mod mask;
mod names;
mod text;

pub use names::SecretNames;

use crate::job::{JobSpec, WorkerSpec};
use crate::launch::{StartBatch, StartOrder};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use text::Found;

/// How every mark begins. A value that holds this is taken out whole, so that all marks that are left are ours.
const MARK: &str = "<redacted";

/// The secrets of one job, by the marks that stand for them.
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
    /// By mark: all that was taken out, and all variables besides, for orders of a supervisor that took out more.
    values: BTreeMap<String, String>,
    /// What was taken out: longest first, so that no part of one is found in place of the whole.
    taken: Vec<(String, String)>,
    /// What the job adds to the names, and exempts.
    names: SecretNames,
}

impl Secrets {
    /// The job with marks in the place of its secrets, and the secrets.
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

    /// The same for one program; its marks begin with `of`.
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

    /// The text with marks for what was found in it.
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

    /// Keeps a value and says which mark stands for it: two that have one name are numbered.
    fn keep(&mut self, name: &str, value: &str) -> String {
        let numbered = (2..).map(|n| mark(&format!("{name}#{n}")));
        let free = |mark: &String| self.values.get(mark).is_none_or(|known| known == value);
        let mark = std::iter::once(mark(name)).chain(numbered).find(free).unwrap_or_default(); // there is always one more
        self.values.insert(mark.clone(), value.to_owned());
        self.taken.push((value.to_owned(), mark.clone()));
        mark
    }

    /// Orders as a launcher is to have them: with the values in the place of the marks, and the job's own names of secrets.
    ///
    /// # Errors
    /// [`MissingSecrets`] when the job has no value for some of them: then no process is to be started.
    pub fn put_back(&self, batch: &StartBatch) -> Result<StartBatch, MissingSecrets> {
        let mut missing = BTreeSet::new();
        let mut last: Option<(&Arc<WorkerSpec>, Arc<WorkerSpec>)> = None; // thousands of ranks share one
        let complete = |order: &StartOrder, spec: Arc<WorkerSpec>| StartOrder { spec, ..order.clone() };
        let mut orders = Vec::with_capacity(batch.orders.len());
        for order in &batch.orders {
            let whole = match &last {
                Some((sealed, whole)) if Arc::ptr_eq(sealed, &order.spec) => Arc::clone(whole),
                _ => self.whole(&order.spec, &mut missing),
            };
            orders.push(complete(order, Arc::clone(&whole)));
            last = Some((&order.spec, whole));
        }
        match missing.is_empty() {
            true => Ok(StartBatch { world: Arc::clone(&batch.world), orders }),
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

/// What stands for a value of this name. It ends with its first `>`.
fn mark(name: &str) -> String {
    format!("{MARK}:{}>", name.replace(['<', '>'], "?"))
}

/// A command line for people, without what is a secret by its name.
pub(crate) fn shown_arguments<S: AsRef<str>>(arguments: &[S], names: &SecretNames) -> Vec<String> {
    let arguments: Vec<&str> = arguments.iter().map(AsRef::as_ref).collect();
    let found = text::in_arguments(&arguments, names);
    arguments.iter().zip(found).map(|(argument, found)| shown(argument, &found)).collect()
}

/// A variable's value for people, in the same way.
pub(crate) fn shown_variable(name: &str, value: &str, names: &SecretNames) -> String {
    shown(value, &text::in_variable(name, value, names))
}

fn shown(text: &str, found: &[Found]) -> String {
    if text.contains(MARK) {
        return text.to_owned(); // it has been taken out already
    }
    let mut shown = text.to_owned();
    found.iter().rev().for_each(|found| shown.replace_range(found.range.clone(), "<redacted>"));
    shown
}

/// Values that a log does not have and this supervisor's job does not either.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the log does not keep secrets, and this supervisor's job has no value for {}: give it the variables and arguments that the \
     job had before",
    list(names)
)]
pub struct MissingSecrets {
    /// Of which variables and options they are.
    pub names: BTreeSet<String>,
}

fn list(names: &BTreeSet<String>) -> String {
    names.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
