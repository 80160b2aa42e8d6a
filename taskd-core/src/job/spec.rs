//! What the user asks for: the programs, how many ranks, and on which hosts.
//!
//! It starts nothing, and what may be done to keep the ranks training is the [`Policy`]'s.

use super::{GroupId, GroupKind, Incarnation, Member, Name, NodeId, Policy, Rank, World};
use crate::secrets::{SecretNames, Secrets, shown_arguments, shown_variable};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Most ranks that one job can have. A bound for mistakes, not for clusters: the largest known jobs are below it.
pub const RANKS_MAX: u32 = 1 << 20;
/// Most services that one job can have.
const SERVICES_MAX: usize = 16;
/// Most annotations.
const ANNOTATIONS_MAX: usize = 256;
/// Most names of secrets that a job adds or exempts: each is compared with every name.
const SECRET_NAMES_MAX: usize = 1024;
/// Most bytes of one annotation.
const ANNOTATION_BYTES_MAX: usize = 1 << 16;

/// How one supervised process is started.
///
/// The environment is built explicitly: what `inherit` lets through of the supervisor's own, then what the launcher sets,
/// then `env`, which wins. A launcher's decorator adds to `env` what is not there yet.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct WorkerSpec {
    /// Program and arguments; the program is looked up in the `PATH` of the environment built for it.
    pub argv: Vec<String>,
    /// Variables of the user; they win over every other source.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Which variables of the supervisor's environment the process sees.
    #[serde(default)]
    pub inherit: InheritEnv,
    /// Working directory; the supervisor's when `None`.
    #[serde(default)]
    pub cwd: Option<PathBuf>,
    /// Added to the process's nice value, 0 to 19.
    #[serde(default)]
    pub nice: u8,
    /// On which processors it may run.
    #[serde(default)]
    pub affinity: Affinity,
    /// A file on its host for all that it prints, stdout and stderr together, besides the launcher's own; relative paths are
    /// below the working directory. Processes with the same file share it.
    #[serde(default)]
    pub log: Option<PathBuf>,
    /// A path of its host, where the launcher is to listen (a Unix socket) for as long as the job runs. The process gets the
    /// listener as the descriptor that `TASKD_LISTEN_FD` names: who connects while it is started anew waits, and is not refused.
    #[serde(default)]
    pub listen: Option<PathBuf>,
    /// Names of secrets: their values are left out of every command line of the process and its children that is logged or reported. A
    /// runtime copies [`JobSpec::secrets`] here when it sends an order to the launcher; documents and logs do not have it.
    #[serde(skip)]
    pub secrets: SecretNames,
}

impl WorkerSpec {
    /// A process with the supervisor's environment and directory.
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

    /// Sets one variable.
    #[must_use]
    pub fn with_env(mut self, key: impl Into<String>, value: impl Into<String>) -> WorkerSpec {
        self.env.insert(key.into(), value.into());
        self
    }

    /// Sets which variables of the supervisor's environment the process sees.
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

    /// Sets the nice value, 0 to 19.
    #[must_use]
    pub fn with_nice(mut self, nice: u8) -> WorkerSpec {
        self.nice = nice;
        self
    }

    /// Sets on which processors the process may run.
    #[must_use]
    pub fn with_affinity(mut self, affinity: Affinity) -> WorkerSpec {
        self.affinity = affinity;
        self
    }

    /// Sets a file for all that it prints.
    #[must_use]
    pub fn with_log(mut self, file: impl Into<PathBuf>) -> WorkerSpec {
        self.log = Some(file.into());
        self
    }

    /// Sets where the launcher listens for it.
    #[must_use]
    pub fn with_listen(mut self, path: impl Into<PathBuf>) -> WorkerSpec {
        self.listen = Some(path.into());
        self
    }

    /// Notes what is not sound, under the names that its settings have where it stands.
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
        problems.check(cwd_is_text, cwd, "must be UTF-8: it stands in the log");
        problems.check(self.nice <= 19, nice, "must be 0 to 19");
        let log_is_text = self.log.as_ref().is_none_or(|file| file.to_str().is_some_and(|text| !text.contains('\0')));
        problems.check(log_is_text, log, "must be UTF-8 without NUL: it stands in the log");
    }
}

/// For errors and logs of programs: values that are secrets by their names are left out.
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

/// Which variables of the supervisor's environment a process sees.
///
/// Whatever is chosen, the runtime's own `TASKD_*` variables are never inherited: those of a job that runs inside
/// another job's rank must not be mistaken for its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum InheritEnv {
    /// All of them, as torchrun does.
    #[default]
    All,
    /// None: what is not set explicitly is not there, `PATH` included.
    Nothing,
    /// Only the named ones.
    Only(BTreeSet<String>),
}

/// On which processors a process may run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Affinity {
    /// As the supervisor.
    #[default]
    Inherit,
    /// Exactly these processors.
    Cpus(BTreeSet<u16>),
    /// The supervisor's processors, split evenly among the ranks of a host in rank order. With more ranks than
    /// processors, ranks share them in turn.
    Spread,
}

/// When a started process counts as started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Ready {
    /// The launcher has taken the order.
    Accepted,
    /// The process runs.
    Running,
    /// The process has completed a training step in its world. Only for jobs whose steps are seen.
    Stepping,
    /// The process waits at the entry of its step loop to join ranks that run ([`Point::Parked`](crate::launch::Point::Parked)).
    /// For recoveries that keep the other ranks; a job whose ranks all start together cannot wait for it.
    Parked,
    /// The process runs, and where steps of its rank were seen before, it has completed one in its world. One that runs and has
    /// completed none within [`Policy::start_within`](super::Policy::start_within) counts as started: it may be compiling, and what
    /// stands still is the [`StallDetector`](crate::detect::StallDetector)'s to find.
    Training,
}

/// One job: what to run, how often, and under which policy.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct JobSpec {
    /// Name of the job, for people and for the log: one of another name is another job's. Ranks see the launcher's.
    pub name: Name,
    /// Number of ranks, 1 to [`RANKS_MAX`].
    pub ranks: u32,
    /// The training program.
    pub worker: Arc<WorkerSpec>,
    /// Processes that the ranks need but that do not train, by name, such as MindSpore's scheduler.
    ///
    /// They belong to the world: whoever starts all ranks starts them anew as well, on the host of the world's first rank. One
    /// that fails is a fault like a rank that fails; one that ends well is not missed.
    #[serde(default)]
    pub services: BTreeMap<Name, Arc<WorkerSpec>>,
    /// The service at which ranks meet, if one of them is: ranks that have met train on without it.
    #[serde(default)]
    pub meeting: Option<Name>,
    /// Where ranks are placed: rank by rank in turn over these hosts in equal blocks. Empty: the launcher decides.
    pub nodes: Vec<NodeId>,
    /// Communication groups, where they are known beforehand.
    pub groups: BTreeMap<GroupId, Vec<Rank>>,
    /// What the runtime may do.
    pub policy: Policy,
    /// What is noted of the job under the names of those who read it, such as a cluster's labels and annotations. Nothing in
    /// this crate does.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
    /// Which names are those of secrets, besides those that are known as such. Secrets in the environment and the arguments of its
    /// programs are neither decided on nor logged (see [`secrets`](crate::secrets)).
    #[serde(default)]
    pub secrets: SecretNames,
}

impl JobSpec {
    /// A job with the default policy whose placement is the launcher's.
    pub fn new(name: impl Into<Name>, ranks: u32, worker: WorkerSpec) -> JobSpec {
        JobSpec {
            name: name.into(),
            ranks,
            worker: Arc::new(worker),
            services: BTreeMap::new(),
            meeting: None,
            nodes: Vec::new(),
            groups: BTreeMap::new(),
            policy: Policy::default(),
            annotations: BTreeMap::new(),
            secrets: SecretNames::default(),
        }
    }

    /// Says which names are those of secrets, besides those that are known as such.
    #[must_use]
    pub fn with_secrets(mut self, names: SecretNames) -> JobSpec {
        self.secrets = names;
        self
    }

    /// Notes something of the job, for those who know the name.
    #[must_use]
    pub fn with_annotation(mut self, name: impl Into<String>, value: impl Into<String>) -> JobSpec {
        self.annotations.insert(name.into(), value.into());
        self
    }

    /// Adds a process that the ranks need but that does not train.
    #[must_use]
    pub fn with_service(mut self, name: impl Into<Name>, program: WorkerSpec) -> JobSpec {
        self.services.insert(name.into(), Arc::new(program));
        self
    }

    /// Places ranks over these hosts.
    #[must_use]
    pub fn with_nodes(mut self, nodes: impl IntoIterator<Item = NodeId>) -> JobSpec {
        self.nodes = nodes.into_iter().collect();
        self
    }

    /// Names the communication groups.
    #[must_use]
    pub fn with_groups(mut self, groups: BTreeMap<GroupId, Vec<Rank>>) -> JobSpec {
        self.groups = groups;
        self
    }

    /// The world that this job starts with: ranks in equal blocks over `nodes`, incarnation 1 each.
    #[must_use]
    pub fn first_world(&self) -> World {
        let block = (self.ranks as usize).div_ceil(self.nodes.len().max(1)).max(1);
        let member = |rank: u32| Member {
            incarnation: Incarnation(1),
            node: self.nodes.get(rank as usize / block).cloned(),
            device: None,
        };
        World::first((0..self.ranks).map(|r| (Rank(r), member(r))).collect()).with_groups(self.groups.clone())
    }

    /// Replaces the policy.
    #[must_use]
    pub fn with_policy(mut self, policy: Policy) -> JobSpec {
        self.policy = policy;
        self
    }

    /// Everything that is wrong with this specification, in the order of its fields; empty when it is sound.
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
        problems.check(self.services.len() <= SERVICES_MAX, "services", "must be 16 at most");
        problems.check(!self.services.keys().any(|name| name.as_str().is_empty()), "services", "must have names");
        let is_known = self.meeting.as_ref().is_none_or(|name| self.services.contains_key(name));
        problems.check(is_known, "meeting", "must be one of the services");
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
            "must be 256 at most, of 65536 bytes each",
        );
        let names = self.secrets.also.len() + self.secrets.except.len();
        problems.check(names <= SECRET_NAMES_MAX, "secrets", "must be 1024 names at most");
        problems.all()
    }
}

/// As that of its programs, and with the names that the job adds.
impl fmt::Debug for JobSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sealed = Secrets::take(self).0;
        let JobSpec { name, ranks, worker, services, meeting, nodes, groups, policy, annotations, secrets } = &sealed;
        let mut shown = f.debug_struct("JobSpec");
        shown.field("name", name).field("ranks", ranks).field("worker", worker).field("services", services);
        shown.field("meeting", meeting).field("nodes", nodes).field("groups", groups).field("policy", policy);
        shown.field("annotations", annotations).field("secrets", secrets).finish()
    }
}

/// One thing that is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {why}")]
pub struct ConfigError {
    /// The setting.
    pub what: &'static str,
    /// What it must be.
    pub why: &'static str,
}

/// What was found wrong with a configuration so far.
#[derive(Debug, Default)]
pub(crate) struct ConfigProblems(Vec<ConfigError>);

impl ConfigProblems {
    /// Notes a setting that is not sound, and what it must be.
    pub(crate) fn check(&mut self, sound: bool, what: &'static str, why: &'static str) {
        if !sound {
            self.0.push(ConfigError { what, why });
        }
    }

    /// All of them, in the order in which they were checked.
    pub(crate) fn all(self) -> Vec<ConfigError> {
        self.0
    }
}
