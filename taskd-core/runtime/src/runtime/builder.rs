//! Builder of the runtime: collects plugins and settings, and reports all problems together.

use super::clock::unix_ms;
use super::host_records::OpenHistory;
use super::{Runtime, restore};
use crate::detect::FaultDetector;
use crate::host_history::{HostHistoryFile, StoredHistory};
use crate::job::{JobSpec, Name, WorkerSpec};
use crate::journal::{Journal, JournalConfig};
use crate::kernel::{Plugins, Resume};
use crate::launch::{Launcher, LauncherInfo};
use crate::recover::RecoveryStrategy;
use crate::secrets::Secrets;
use crate::trace::TraceSource;
use crate::trace::switches::TraceControl;
use std::collections::BTreeSet;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Builder of a [`Runtime`] (see [`Runtime::builder`]). Setters never fail; [`build`](Self::build) reports problems.
#[derive(Default)]
pub struct RuntimeBuilder {
    pub(super) job: Option<JobSpec>,
    pub(super) sources: Vec<Box<dyn TraceSource>>,
    pub(super) plugins: Plugins,
    pub(super) launcher: Option<Arc<dyn Launcher>>,
    second_launcher: bool,
    journal: Option<(PathBuf, JournalConfig)>,
    trace: Option<TraceControl>,
    host_history: Option<PathBuf>,
    resume: Option<Resume>,
}

impl fmt::Debug for RuntimeBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuntimeBuilder").field("job", &self.job).field("plugins", &self.plugins).finish_non_exhaustive()
    }
}

impl RuntimeBuilder {
    /// Sets the job that the runtime runs. Required.
    #[must_use]
    pub fn job(mut self, spec: JobSpec) -> RuntimeBuilder {
        self.job = Some(spec);
        self
    }

    /// Adds a trace source, which delivers facts about ranks, hosts and devices.
    #[must_use]
    pub fn source(mut self, source: impl TraceSource + 'static) -> RuntimeBuilder {
        self.sources.push(Box::new(source));
        self
    }

    /// Adds a fault detector. Detectors are called in the order in which they were added.
    #[must_use]
    pub fn detector(mut self, detector: impl FaultDetector + 'static) -> RuntimeBuilder {
        self.plugins.detectors.push(Box::new(detector));
        self
    }

    /// Adds several fault detectors, such as those of `detect::defaults()`.
    #[must_use]
    pub fn detectors(mut self, detectors: impl IntoIterator<Item = Box<dyn FaultDetector>>) -> RuntimeBuilder {
        self.plugins.detectors.extend(detectors);
        self
    }

    /// Adds a recovery strategy. Among proposals of equal cost, the strategy added first wins.
    #[must_use]
    pub fn strategy(mut self, strategy: impl RecoveryStrategy + 'static) -> RuntimeBuilder {
        self.plugins.strategies.push(Box::new(strategy));
        self
    }

    /// Adds several recovery strategies, such as those of `recover::defaults()`.
    #[must_use]
    pub fn strategies(mut self, strategies: impl IntoIterator<Item = Box<dyn RecoveryStrategy>>) -> RuntimeBuilder {
        self.plugins.strategies.extend(strategies);
        self
    }

    /// Sets the launcher, which starts, stops and watches the processes. Exactly one is required.
    #[must_use]
    pub fn launcher(mut self, launcher: impl Launcher + 'static) -> RuntimeBuilder {
        self.second_launcher |= self.launcher.is_some();
        self.launcher = Some(Arc::new(launcher));
        self
    }

    /// Keeps the journal (a log of decisions and a log of observations) in `dir`, and resumes the job that the logs
    /// record. One directory serves one job.
    ///
    /// Without a journal nothing is written: decisions cannot be replayed, and a new supervisor starts the job from its
    /// checkpoint.
    #[must_use]
    pub fn journal(self, dir: impl Into<PathBuf>) -> RuntimeBuilder {
        self.journal_with(dir, JournalConfig::default())
    }

    /// Keeps the journal in `dir` like [`journal`](Self::journal), with the given configuration instead of the default.
    #[must_use]
    pub fn journal_with(mut self, dir: impl Into<PathBuf>, config: JournalConfig) -> RuntimeBuilder {
        self.journal = Some((dir.into(), config));
        self
    }

    /// Sets the trace control, through which operators select the kinds of trace records that the ranks write. Without
    /// a trace control, [`switch_trace`](super::RuntimeHandle::switch_trace) and
    /// [`trace_status`](super::RuntimeHandle::trace_status) return
    /// [`ControlError::Unsupported`](super::ControlError::Unsupported).
    ///
    /// The code that attaches the ranks' recorders must use the same trace control.
    #[must_use]
    pub fn trace(mut self, control: TraceControl) -> RuntimeBuilder {
        self.trace = Some(control);
        self
    }

    /// Keeps the incidents of hosts in the file `path`, which all jobs of a cluster may share. Without it nothing about
    /// hosts is kept beyond the job.
    ///
    /// - The file's incidents are part of the job's log. Faults on a host with incidents carry them as evidence
    ///   ([`HOST_INCIDENTS`](crate::detect::host_history::HOST_INCIDENTS)).
    /// - Among hosts that are otherwise equal, ranks are placed on the one with the lowest
    ///   [score](crate::state::HostHistory::score): at the first start, unless the job names its hosts, and when a
    ///   recovery moves ranks. Room and cordons come first. The log line names each host that was passed over.
    /// - An incident is recorded against the hosts of its causes when it is first decided, once for each host.
    ///   [`host_at_fault`](crate::detect::Fault::host_at_fault) lists the faults that count against no host. If the
    ///   supervisor restarts and has a journal, nothing is lost and nothing recorded twice.
    ///
    /// [`host_history`](crate::host_history) describes the file. A file that cannot be written does not stop the job.
    #[must_use]
    pub fn host_history(mut self, path: impl Into<PathBuf>) -> RuntimeBuilder {
        self.host_history = Some(path.into());
        self
    }

    /// Continues a job that another supervisor has left without its log, such as the manager of a job on many hosts after the
    /// loss of the last one. The log of this runtime takes precedence if it has a state of the job.
    #[must_use]
    pub fn resume(mut self, resume: Option<Resume>) -> RuntimeBuilder {
        self.resume = resume;
        self
    }

    /// Builds the runtime and opens its logs, if a journal is set.
    ///
    /// If another supervisor holds the journal directory, this call blocks its thread for about one second, because
    /// that supervisor may be about to end.
    ///
    /// # Errors
    /// Returns [`BuildError`] if the runtime cannot be built. The error lists all problems, not only the first.
    pub fn build(self) -> Result<Runtime, BuildError> {
        let mut problems = self.problems();
        let RuntimeBuilder { job, sources, plugins, launcher, journal, trace, host_history, resume, .. } = self;
        let history = host_history.map(open_history).transpose().unwrap_or_else(|error| {
            problems.push(Problem::HostHistory(error));
            None
        });
        let (Some(job), Some(launcher), true) = (job, launcher, problems.is_empty()) else {
            return Err(BuildError { problems });
        };
        let (job, secrets) = Secrets::take(&job);
        let logs = journal.map(|(dir, config)| {
            let header = restore::header(&job, &sources, &plugins, launcher.as_ref(), unix_ms());
            Journal::open(dir, header, config)
        });
        match logs.transpose() {
            Ok(logs) => {
                let job = (Arc::new(job), Arc::new(secrets));
                let past = (logs, history, resume);
                Ok(Runtime::assemble(job, sources, plugins, launcher, past, trace))
            }
            Err(error) => {
                problems.push(Problem::Journal(error.to_string()));
                Err(BuildError { problems })
            }
        }
    }

    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        match &self.job {
            None => problems.push(Problem::Missing("job")),
            Some(job) => problems.extend(job.problems().into_iter().map(Problem::Config)),
        }
        match &self.launcher {
            None => problems.push(Problem::Missing("launcher")),
            Some(launcher) => problems.extend(self.job.iter().flat_map(|job| uninitialised(job, &launcher.info()))),
        }
        if self.second_launcher {
            problems.push(Problem::SecondLauncher);
        }
        if let Some((_, config)) = &self.journal {
            problems.extend(config.problems().into_iter().map(Problem::Config));
        }
        if self.plugins.detectors.is_empty() {
            problems.push(Problem::Missing("detector"));
        }
        if self.plugins.strategies.is_empty() {
            problems.push(Problem::Missing("strategy"));
        }
        let strategies: Vec<Name> = self.plugins.strategies.iter().map(|s| s.name()).collect();
        problems.extend(twice("source", self.sources.iter().map(|s| s.info().name)));
        problems.extend(twice("detector", self.plugins.detectors.iter().map(|d| d.name())));
        problems.extend(twice("strategy", strategies.iter().cloned()));
        let allowed = self.job.iter().flat_map(|job| job.policy.strategies.keys());
        for name in allowed.filter(|name| !strategies.contains(name)) {
            problems.push(Problem::UnknownStrategy { name: name.clone(), known: strategies.clone() });
        }
        problems
    }
}

/// Reads the history of hosts.
fn open_history(path: PathBuf) -> Result<OpenHistory, String> {
    let file = HostHistoryFile::new(path);
    let StoredHistory { history, unreadable, .. } = file.read().map_err(|error| error.to_string())?;
    if unreadable > 0 {
        tracing::warn!("{unreadable} lines of the history of hosts {} are damaged", file.path().display());
    }
    Ok(OpenHistory { file, history })
}

/// Returns a problem for each service that is this program started again without becoming the service.
fn uninitialised(job: &JobSpec, info: &LauncherInfo) -> Vec<Problem> {
    let of = |(service, spec): (&Name, &Arc<WorkerSpec>)| {
        let call = info.uninitialised.get(spec.argv.get(1)?)?.clone();
        is_this_program(spec.argv.first()?).then(|| Problem::Uninitialised { service: service.clone(), call })
    };
    job.services.iter().filter_map(of).collect()
}

/// Returns true if a process started from this path would run this program.
fn is_this_program(path: &str) -> bool {
    let file = |path: &Path| std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    let this = file(Path::new("/proc/self/exe"));
    this.is_some() && this == file(Path::new(path))
}

fn twice(kind: &'static str, names: impl Iterator<Item = Name>) -> Vec<Problem> {
    let mut seen = BTreeSet::new();
    names.filter(|name| !seen.insert(name.clone())).map(|name| Problem::Twice { kind, name }).collect()
}

/// All problems that prevent a runtime from being built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildError {
    /// The problems that prevent the runtime from being built, at least one.
    pub problems: Vec<Problem>,
}

impl std::error::Error for BuildError {}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the runtime cannot be built: ")?;
        for (i, problem) in self.problems.iter().enumerate() {
            write!(f, "{}{problem}", if i == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

/// One problem that prevents a runtime from being built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// A required part is missing; contains the name of the builder's method that adds it, such as `launcher`.
    #[error("no {0} was given: add one with {0}(..)")]
    Missing(&'static str),
    /// More than one launcher was added. Use one launcher that can start processes on several hosts, such as
    /// [`MultiHostLauncher`](crate::launch::MultiHostLauncher).
    #[error("more than one launcher was given: keep one, which may start processes on many hosts")]
    SecondLauncher,
    /// Two plugins of the same kind have the same name, so policies and logs could not distinguish them.
    #[error("two plugins of kind {kind} are named {name}: give one of them another name")]
    Twice {
        /// Kind of the two plugins: `source`, `detector` or `strategy`.
        kind: &'static str,
        /// Name that both plugins have.
        name: Name,
    },
    /// The policy names a strategy that was not added.
    #[error(
        "the policy names the strategy {name}, which was not added (added: {}): correct the name or add the strategy",
        list(known)
    )]
    UnknownStrategy {
        /// Name of the strategy in the policy.
        name: Name,
        /// Names of the strategies that were added.
        known: Vec<Name>,
    },
    /// A service of the job is this program started again, but its `main` does not turn the process into the service.
    ///
    /// The new process would be another host program, which would start yet another one, and so on.
    #[error(
        "the service {service} is this program, started again, and its main does not call {call}: call that first in main, \
         beside taskd_core::launch::guard::init(), or give the service a program of its own"
    )]
    Uninitialised {
        /// Name of the service that is this program started again.
        service: Name,
        /// Function that the program's `main` must call first, so that the new process becomes the service.
        call: String,
    },
    /// A setting of the job or of the journal is invalid; contains the setting and the values that are valid.
    #[error(transparent)]
    Config(crate::job::ConfigError),
    /// The journal's logs cannot be kept in the given directory; contains the reason.
    #[error("{0}")]
    Journal(String),
    /// The history of hosts cannot be read; contains the reason.
    #[error("{0}")]
    HostHistory(String),
}

fn list(names: &[Name]) -> String {
    if names.is_empty() {
        return "none".into();
    }
    names.iter().map(Name::as_str).collect::<Vec<_>>().join(", ")
}

impl From<&BuildError> for std::process::ExitCode {
    fn from(_: &BuildError) -> std::process::ExitCode {
        std::process::ExitCode::from(super::exit_code::UNAVAILABLE)
    }
}
