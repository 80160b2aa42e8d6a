//! The job specification: programs, number of ranks, hosts and groups.
//!
//! This module starts nothing. What the runtime may do to keep the ranks training is part of the [`Policy`].

use super::{GroupId, GroupKind, Incarnation, Member, Name, NodeId, Policy, Rank, World};
use crate::redact::{SecretNames, shown_arguments, shown_variable};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Maximum number of ranks of one job. A job with more ranks is invalid ([`JobSpec::problems`]): the limit catches
/// mistakes, and the largest known jobs have fewer ranks.
pub const RANKS_MAX: u32 = 1 << 20;
/// Maximum number of services of one job.
const SERVICES_MAX: usize = 16;
/// Maximum number of annotations of one job.
const ANNOTATIONS_MAX: usize = 256;
/// Maximum number of secret names that a job adds or exempts: each is compared with every name.
const SECRET_NAMES_MAX: usize = 1024;
/// Maximum size of one annotation, in bytes.
const ANNOTATION_BYTES_MAX: usize = 1 << 16;

/// Command, environment and settings of one supervised process.
///
/// The environment is built from the following sources, later ones override earlier ones: the variables of the
/// supervisor that `inherit` selects, the variables that the launcher sets, and `env`. A launcher that wraps
/// another one adds to `env` only variables that `env` does not contain.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct WorkerSpec {
    /// Program and arguments. The program is looked up in the `PATH` of the environment that is built for the process.
    pub argv: Vec<String>,
    /// Environment variables set by the user; they override every other source.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Variables of the supervisor's environment that the process inherits.
    #[serde(default)]
    pub inherit: InheritEnv,
    /// Working directory; `None` means that of the supervisor, the process that contains the runtime.
    #[serde(default)]
    pub cwd: Option<PathBuf>,
    /// Increment of the process's nice value, 0 to 19.
    #[serde(default)]
    pub nice: u8,
    /// Processors (CPUs) on which the process may run.
    #[serde(default)]
    pub affinity: Affinity,
    /// File on the process's host that receives all of its output, stdout and stderr together, in addition to the
    /// launcher's own log. A relative path is below the working directory. Processes with the same file share it.
    #[serde(default)]
    pub log: Option<PathBuf>,
    /// Path of a Unix socket on the process's host on which the launcher listens for as long as the job runs. The
    /// process receives the listener as the file descriptor that `TASKD_LISTEN_FD` names. While the process is
    /// restarted, clients that connect wait and are not refused.
    #[serde(default)]
    pub listen: Option<PathBuf>,
    /// Names of variables and options that hold secrets. Their values are removed from every command line of the
    /// process and its children that is logged or reported. The runtime copies [`JobSpec::secrets`] here when it sends
    /// an order to the launcher; documents and logs do not contain this field.
    #[serde(skip)]
    pub secrets: SecretNames,
}

impl WorkerSpec {
    /// Creates the specification of a process with this command, and the supervisor's environment and working
    /// directory.
    pub fn new<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> WorkerSpec {
        WorkerSpec {
            argv: argv.into_iter().map(Into::into).collect(),
            env: BTreeMap::new(),
            inherit: InheritEnv::All,
            cwd: None,
            nice: 0,
            affinity: Affinity::Inherit,
            log: None,
            listen: None,
            secrets: SecretNames::default(),
        }
    }

    /// Sets one environment variable.
    #[must_use]
    pub fn with_env(mut self, key: impl Into<String>, value: impl Into<String>) -> WorkerSpec {
        self.env.insert(key.into(), value.into());
        self
    }

    /// Sets which variables of the supervisor's environment the process inherits.
    #[must_use]
    pub fn with_inherit(mut self, inherit: InheritEnv) -> WorkerSpec {
        self.inherit = inherit;
        self
    }

    /// Sets the working directory.
    #[must_use]
    pub fn with_cwd(mut self, cwd: impl Into<PathBuf>) -> WorkerSpec {
        self.cwd = Some(cwd.into());
        self
    }

    /// Sets the increment of the process's nice value, 0 to 19.
    #[must_use]
    pub fn with_nice(mut self, nice: u8) -> WorkerSpec {
        self.nice = nice;
        self
    }

    /// Sets the processors on which the process may run.
    #[must_use]
    pub fn with_affinity(mut self, affinity: Affinity) -> WorkerSpec {
        self.affinity = affinity;
        self
    }

    /// Sets the file that receives all output of the process.
    #[must_use]
    pub fn with_log(mut self, file: impl Into<PathBuf>) -> WorkerSpec {
        self.log = Some(file.into());
        self
    }

    /// Sets the path of the Unix socket on which the launcher listens for the process.
    #[must_use]
    pub fn with_listen(mut self, path: impl Into<PathBuf>) -> WorkerSpec {
        self.listen = Some(path.into());
        self
    }

    /// Records invalid settings, under the given names of the settings.
    fn check(&self, problems: &mut ConfigProblems, [argv, env, cwd, nice, log]: [&'static str; 5]) {
        let has_nul = |s: &String| s.contains('\0');
        problems.check(self.argv.first().is_some_and(|p| !p.is_empty()), argv, "must name a program");
        problems.check(!self.argv.iter().any(has_nul), argv, "must not contain a NUL byte");
        let env_is_sound = self.env.iter().all(|(k, v)| !k.is_empty() && !k.contains(['=', '\0']) && !has_nul(v));
        problems.check(
            env_is_sound,
            env,
            "names must not be empty nor contain '=' or NUL, values must not contain NUL",
        );
        let cwd_is_text = self.cwd.as_ref().is_none_or(|dir| dir.to_str().is_some());
        problems.check(cwd_is_text, cwd, "must be UTF-8: it is written to the log");
        problems.check(self.nice <= 19, nice, "must be 0 to 19");
        let log_is_text = self.log.as_ref().is_none_or(|file| file.to_str().is_some_and(|text| !text.contains('\0')));
        problems.check(log_is_text, log, "must be UTF-8 without NUL: it is written to the log");
    }
}

/// Debug output for errors and logs. It shows `<redacted>` in place of the values of variables and options whose names
/// mark them as secrets.
impl fmt::Debug for WorkerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WorkerSpec { argv, env, inherit, cwd, nice, affinity, log, listen, secrets } = self;
        let env: BTreeMap<&String, String> =
            env.iter().map(|(name, value)| (name, shown_variable(name, value, secrets))).collect();
        let mut shown = f.debug_struct("WorkerSpec");
        shown
            .field("argv", &shown_arguments(argv, secrets))
            .field("env", &env)
            .field("inherit", inherit)
            .field("cwd", cwd);
        shown.field("nice", nice).field("affinity", affinity).field("log", log).field("listen", listen);
        shown.field("secrets", secrets).finish()
    }
}

/// Which variables of the supervisor's environment a process inherits.
///
/// The runtime's own `TASKD_*` variables are never inherited, with any variant: a job that runs inside a rank of
/// another job must not use that job's variables.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum InheritEnv {
    /// All variables of the supervisor's environment, as with torchrun.
    #[default]
    All,
    /// No variables of the supervisor's environment: the process has only those that are set explicitly, which applies
    /// to `PATH` too.
    Nothing,
    /// Only the variables of the supervisor's environment that have these names.
    Only(BTreeSet<String>),
}

impl InheritEnv {
    /// Returns true if the process inherits the environment variable `name` from the supervisor.
    #[must_use]
    pub fn passes(&self, name: &str) -> bool {
        match self {
            InheritEnv::All => true,
            InheritEnv::Nothing => false,
            InheritEnv::Only(names) => names.contains(name),
        }
    }
}

/// Processors (CPUs) on which a process may run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Affinity {
    /// The process may run on the same processors as the supervisor.
    #[default]
    Inherit,
    /// Exactly the processors with these numbers, as Linux counts them.
    Cpus(BTreeSet<u16>),
    /// The supervisor's processors, split evenly among the ranks of a host in rank order. If there are more ranks than
    /// processors, the ranks share processors round-robin.
    Spread,
}

/// Condition that a process must meet, after the order to start it, before its start is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Ready {
    /// The launcher has accepted the order to start the process.
    Accepted,
    /// The process is running.
    Running,
    /// The process has completed a training step in its world (the ranks that now train together). Only for jobs whose
    /// steps are observed.
    Stepping,
    /// The process waits at the entry of its step loop to join running ranks
    /// ([`LoopPosition::Parked`](crate::state::LoopPosition::Parked)). Recoveries that keep the other ranks use this
    /// condition; a job in which all ranks start together cannot use it.
    Parked,
    /// The process is running, and, if steps of its rank were observed before, it has completed one in its world (the
    /// ranks that now train together). A process that runs and has completed no step within
    /// [`Policy::start_timeout`](super::Policy::start_timeout) counts as started: it may be compiling, and the
    /// [`StallDetector`](crate::detect::StallDetector) finds a process that makes no progress.
    Training,
}

/// One job: the program, the number of ranks, the hosts and the policy.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct JobSpec {
    /// Name of the job, for people and for the runtime's log: a log that contains another job name belongs to another
    /// job. The ranks receive the job name that is configured in the launcher.
    pub name: Name,
    /// Number of ranks, 1 to [`RANKS_MAX`].
    pub ranks: u32,
    /// The training program that each rank runs, with its environment and settings.
    pub worker: Arc<WorkerSpec>,
    /// Processes that the ranks need but that do not train, by name, such as MindSpore's scheduler.
    ///
    /// A start of all ranks restarts the services too, on the host of the lowest rank. A service that fails is a fault,
    /// like a rank that fails; one that exits with code 0 is not a fault.
    #[serde(default)]
    pub services: BTreeMap<Name, Arc<WorkerSpec>>,
    /// Name of the service in `services` at which the ranks meet (rendezvous); `None` if no service does that. Ranks
    /// that have completed the rendezvous continue to train without it.
    #[serde(default)]
    #[serde(alias = "meeting")]
    pub rendezvous_service: Option<Name>,
    /// Hosts on which ranks are placed, in equal blocks in rank order. Empty: the launcher decides.
    pub nodes: Vec<NodeId>,
    /// Communication groups, such as data-parallel groups, with their ranks, if they are known before the start.
    pub groups: BTreeMap<GroupId, Vec<Rank>>,
    /// The job's policy: which recoveries the runtime may carry out, and which limits and time limits apply to them.
    pub policy: Policy,
    /// Free-form notes by name, such as a cluster's labels and annotations, for tools that know the names. This crate
    /// does not interpret them.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
    /// Names of variables and options that hold secrets, in addition to the names recognised by default. The values of
    /// secrets in the environment and the arguments of the job's programs are neither used for decisions nor logged
    /// (see `secrets`).
    #[serde(default)]
    pub secrets: SecretNames,
}

impl JobSpec {
    /// Creates a job with the default policy; the launcher chooses the placement.
    pub fn new(name: impl Into<Name>, ranks: u32, worker: WorkerSpec) -> JobSpec {
        JobSpec {
            name: name.into(),
            ranks,
            worker: Arc::new(worker),
            services: BTreeMap::new(),
            rendezvous_service: None,
            nodes: Vec::new(),
            groups: BTreeMap::new(),
            policy: Policy::default(),
            annotations: BTreeMap::new(),
            secrets: SecretNames::default(),
        }
    }

    /// Sets the names of variables and options that hold secrets, in addition to the names recognised by default.
    #[must_use]
    pub fn with_secrets(mut self, names: SecretNames) -> JobSpec {
        self.secrets = names;
        self
    }

    /// Adds an annotation: a free-form note for tools that know its name.
    #[must_use]
    pub fn with_annotation(mut self, name: impl Into<String>, value: impl Into<String>) -> JobSpec {
        self.annotations.insert(name.into(), value.into());
        self
    }

    /// Adds a service: a process that the ranks need but that does not train.
    #[must_use]
    pub fn with_service(mut self, name: impl Into<Name>, program: WorkerSpec) -> JobSpec {
        self.services.insert(name.into(), Arc::new(program));
        self
    }

    /// Sets the hosts on which ranks are placed.
    #[must_use]
    pub fn with_nodes(mut self, nodes: impl IntoIterator<Item = NodeId>) -> JobSpec {
        self.nodes = nodes.into_iter().collect();
        self
    }

    /// Sets the communication groups and their ranks.
    #[must_use]
    pub fn with_groups(mut self, groups: BTreeMap<GroupId, Vec<Rank>>) -> JobSpec {
        self.groups = groups;
        self
    }

    /// Returns the world (set of ranks that train together) with which the job starts: the first
    /// [`Policy::start_ranks`] ranks in equal blocks over `nodes`, each with incarnation 1. The other ranks are absent.
    #[must_use]
    pub fn first_world(&self) -> World {
        let first = self.policy.start_ranks_of(self.ranks).min(self.ranks);
        let block = (first as usize).div_ceil(self.nodes.len().max(1)).max(1);
        let member = |rank: u32| Member {
            incarnation: Incarnation(1),
            node: self.nodes.get(rank as usize / block).cloned(),
            device: None,
        };
        let absent = Member { incarnation: Incarnation(0), node: None, device: None };
        World::first((0..first).map(|rank| (Rank(rank), member(rank))).collect())
            .with_absent((first..self.ranks).map(|rank| (Rank(rank), absent.clone())).collect())
            .with_groups(self.groups.clone())
    }

    /// Replaces the policy.
    #[must_use]
    pub fn with_policy(mut self, policy: Policy) -> JobSpec {
        self.policy = policy;
        self
    }

    /// Returns all problems of this specification, in the order of its fields; empty if it is valid.
    #[must_use]
    pub fn problems(&self) -> Vec<ConfigError> {
        let mut problems = ConfigProblems::default();
        let name = self.name.as_str();
        let name_is_sound = !name.is_empty()
            && name.len() <= 64
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
            && !name.starts_with('.');
        problems.check(
            name_is_sound,
            "job name",
            "must be 1 to 64 letters, digits, '-', '_' or '.', not starting with '.'",
        );
        problems.check((1..=RANKS_MAX).contains(&self.ranks), "ranks", "must be 1 to 1048576");
        let names = ["worker.argv", "worker.env", "worker.cwd", "worker.nice", "worker.log"];
        self.worker.check(&mut problems, names);
        problems.check(self.services.len() <= SERVICES_MAX, "services", "must be at most 16");
        problems.check(!self.services.keys().any(|name| name.as_str().is_empty()), "services", "must have names");
        let is_known = self.rendezvous_service.as_ref().is_none_or(|name| self.services.contains_key(name));
        problems.check(is_known, "rendezvous_service", "must be one of the services");
        for program in self.services.values() {
            let of = ["services.*.argv", "services.*.env", "services.*.cwd", "services.*.nice", "services.*.log"];
            program.check(&mut problems, of);
        }
        let kind_is_itself =
            |kind: &GroupKind| !kind.to_string().is_empty() && GroupKind::named(&kind.to_string()) == *kind;
        problems.check(
            self.groups.keys().all(|group| kind_is_itself(&group.kind)),
            "groups",
            "must have a kind with a name, and dp, tp, pp, ep and cp by their own variants",
        );
        self.policy.check(self.ranks, &mut problems);
        let annotations = &self.annotations;
        problems.check(
            annotations.len() <= ANNOTATIONS_MAX && annotations.values().all(|text| text.len() <= ANNOTATION_BYTES_MAX),
            "annotations",
            "must be at most 256, of 65536 bytes each",
        );
        let names = self.secrets.also.len() + self.secrets.except.len();
        problems.check(names <= SECRET_NAMES_MAX, "secrets", "must be at most 1024 names");
        problems.all()
    }
}

/// Debug output like that of [`WorkerSpec`]; names in the job's `secrets` mark secrets too.
impl fmt::Debug for JobSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let JobSpec { name, ranks, worker, services, rendezvous_service, nodes, groups, policy, annotations, secrets } =
            self;
        let with_names = |program: &WorkerSpec| WorkerSpec { secrets: secrets.clone(), ..program.clone() };
        let worker = with_names(worker);
        let services: BTreeMap<&Name, WorkerSpec> =
            services.iter().map(|(name, program)| (name, with_names(program))).collect();
        let mut shown = f.debug_struct("JobSpec");
        shown.field("name", name).field("ranks", ranks).field("worker", &worker).field("services", &services);
        shown
            .field("rendezvous_service", rendezvous_service)
            .field("nodes", nodes)
            .field("groups", groups)
            .field("policy", policy);
        shown.field("annotations", annotations).field("secrets", secrets).finish()
    }
}

/// One invalid setting of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {why}")]
pub struct ConfigError {
    /// Name of the invalid setting.
    pub what: &'static str,
    /// The rule that the setting violates.
    pub why: &'static str,
}

/// Invalid settings found in a configuration so far.
#[derive(Debug, Default)]
#[doc(hidden)]
pub struct ConfigProblems(Vec<ConfigError>);

impl ConfigProblems {
    /// Adds a problem unless `sound` is true: the setting `what` violates the rule `why`.
    #[doc(hidden)]
    pub fn check(&mut self, sound: bool, what: &'static str, why: &'static str) {
        if !sound {
            self.0.push(ConfigError { what, why });
        }
    }

    /// Returns all invalid settings, in the order in which they were checked.
    #[doc(hidden)]
    pub fn all(self) -> Vec<ConfigError> {
        self.0
    }
}
