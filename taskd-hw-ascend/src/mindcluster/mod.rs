//! Configuration of MindCluster jobs: allowed strategies, number of recoveries, and the environment of ranks.
//!
//! The module reads configuration and, on request, changes a [`JobSpec`]. It starts nothing and does not query the
//! cluster.
//!
//! | file | content |
//! |---|---|
//! | `key`, `setting` | the keys; the value that a source sets for one, and warnings |
//! | `sources` | collects the settings of all sources |
//! | `job_file`, `yaml`, `downward`, `file` | readers of files |
//! | `value`, `decision`, `environment` | meaning of values, allowed strategies, environment of ranks: pure functions |
//! | `configured` | the result, and its changes to a specification |
//!
//! # Sources and their precedence
//! Every key is read under its own name in every source. If two sources differ, the upper one in this table applies,
//! and a warning names both:
//!
//! | | source | what is read there |
//! |---|---|---|
//! | 1 | the job's specification | [`JobSpec::annotations`], then its program's `env`, then its arguments (`--max_restarts`, `--monitor_interval`) |
//! | 2 | the job file (YAML or JSON, as submitted to the cluster) | `metadata.labels` and `.annotations` (outer ones first), `env` and arguments of the training container |
//! | 3 | downward-API files | lines `key="value"`, or a file that has the name of the key |
//! | 4 | this process's environment | variables; torchrun's also as `PET_MAX_RESTARTS` and `PET_MONITOR_INTERVAL` |
//!
//! In a pod with several containers, the training container is the one called `ascend` (or `pytorch`, `mindspore`,
//! `tensorflow`), otherwise the one that requests `huawei.com/` devices, otherwise the first. Settings of the other
//! containers produce warnings and do not apply. A job file is refused if it is empty, is no job, or contains template
//! placeholders (`{{ .Values.x }}`, `${X}`, `$(X)`).
//!
//! The environment has the lowest precedence, since MindCluster's operator derives it from the other sources, or it is
//! an image's default. The specification's own fields win over all keys: a permission in `policy.strategies`, and a
//! `policy.budget` or `termination_grace_period` that is not the default. Only a master switch overrides a permission,
//! since it can only forbid.
//!
//! | key | values | effect |
//! |---|---|---|
//! | `recover-strategy` | `retry`, `recover-in-place`, `recover`, `elastic-training` (`shrink`, `grow`), `dump` (`dump`, `dump-exit`), `exit`; names of strategies that were added | exactly these are allowed, besides `restart` and `exit` |
//! | `HIGH_AVAILABILITY`, `MS_ENABLE_TFT` | lists of the same; `{TTP:1, HCCE:1}`: TTP `dump`, UCE, HCCE and TRE `retry`, ARF `recover` and `dump`, RSC `restart` | if `recover-strategy` is not set, the strategies listed or switched on are the named ones |
//! | `ENABLE_RESTART_FAULT_PROCESS` | `on`, `off` | with these two: `recover` includes `recover-in-place` |
//! | `process-recover-enable` | `on`, `pause`, `off` | other than `on`: whole restarts only |
//! | `PROCESS_RECOVER` | `on`, `off` | other than `on`: whole restarts only |
//! | `TASKD_PROCESS_ENABLE` | `on`, `off` | `off`: whole restarts only |
//! | `fault-scheduling` | `grace`, `force`, `off` | `off`: no `restart`, and no `dump` that restarts; `force`: processes are stopped without grace |
//! | `fault-retry-times`, `max_restarts` | a number; 0 of `max_restarts` is 32767 | maximum number of recoveries of the job, of all kinds together; the smaller of both numbers applies, and used recoveries are not replenished |
//! | `pod-rescheduling` | `on`, `off` | `on`: MindSpore ranks get `RSC:1` |
//! | `ELASTIC_PROCESS_RECOVER_ENABLE`, `HCCL_ASYNC_ERROR_HANDLING` | `0`, `1`; `0`, `1`, `2` | passed to ranks; a warning if the value disables an allowed strategy or has no effect |
//! | `HCCL_OP_RETRY_ENABLE`, `HCCL_OP_RETRY_PARAMS` | `L0:0, L1:1, L2:1`; `MaxCnt:3, HoldTime:5000, IntervalTime:1000` | detectors wait for HCCL's own retry: [`Configured::detectors`] |
//! | `monitor_interval`, `subHealthyStrategy` | seconds; `ignore`, `graceExit`, `forceExit`, `hotSwitch` | none: exits of processes are reported immediately, and degraded devices cause no action |
//!
//! A job that sets no key has every strategy allowed. A job that sets any key, except for `TASKD_PROCESS_ENABLE` and
//! HCCL's retry, is a MindCluster job, in which process recovery has to be enabled: by `process-recover-enable` or
//! `PROCESS_RECOVER`, or, as with MindCluster's operator, by naming strategies. Otherwise only whole restarts are
//! allowed, and the reason of each forbidden strategy states this.
//!
//! # Environment of ranks
//! If strategies are named and process recovery is not switched off, each strategy adds these variables (variables that
//! the job sets itself are kept; lists are merged):
//!
//! | strategy | both | PyTorch, in `HIGH_AVAILABILITY` | MindSpore, in `MS_ENABLE_TFT` |
//! |---|---|---|---|
//! | `recover`, `exit` | `PROCESS_RECOVER=on`, `ELASTIC_PROCESS_RECOVER_ENABLE=1` | `recover` | `ARF:1` |
//! | `recover-in-place` | the same, `ENABLE_RESTART_FAULT_PROCESS=on` | `recover` | `ARF:1` |
//! | `retry` | as `recover` | `retry` | `HCCE:1`, `UCE:1` |
//! | `dump` | as `recover` | `dump` | `TTP:1` |
//! | `elastic-training` | `PROCESS_RECOVER=on` | `elastic-training` | |
//! | (`pod-rescheduling` is `on`, with or without named strategies) | | | `RSC:1` |
//! | any | | `HCCL_ASYNC_ERROR_HANDLING=0` | `MINDIO_FOR_MINDSPORE=1`, `MS_ENABLE_THM={HCCL_WATCHDOG:0}` |
//!
//! Arguments of the program, such as `--enable-high-availability` and `--enable-hbmfault-repair`, are passed on
//! unchanged; a warning names each allowed strategy whose flag is missing.
//!
//! ```
//! use taskd_core::job::{JobSpec, Name, WorkerSpec};
//! use taskd_core::recover;
//! use taskd_hw_ascend::mindcluster::{Framework, Sources};
//!
//! let worker = WorkerSpec::new(["python", "train.py", "--enable-hbmfault-repair"]);
//! let mut spec = JobSpec::new("demo", 8, worker).with_annotation("recover-strategy", "retry,dump");
//! let strategies = recover::defaults();
//! let configured = Sources::of(&spec, &strategies)
//!     .framework(Framework::PyTorch)
//!     .environment([("TASKD_PROCESS_ENABLE", "off")]) // usually std::env::vars_os()
//!     .configured();
//! configured.apply(&mut spec);
//!
//! let names: Vec<Name> = strategies.iter().map(|strategy| strategy.name()).collect();
//! assert_eq!(
//!     spec.policy.permissions(&names, &Default::default()), // the line that the runtime starts with
//!     "allowed: restart, exit; not allowed: retry, recover-in-place, recover, shrink, grow, dump, dump-exit \
//!      (whole restarts only: TASKD_PROCESS_ENABLE is \"off\" in the environment)"
//! );
//! ```

mod configured;
mod decision;
mod downward;
mod environment;
mod file;
mod job_file;
mod key;
mod setting;
mod sources;
mod value;
mod yaml;

pub use configured::Configured;
pub use file::{ConfigFileError, FILE_BYTES_MAX};
pub use key::Key;
pub use setting::{Setting, Source, Warning, WarningKind};
pub use sources::Sources;
pub use value::{Asked, OperatorRetry};

#[cfg(doc)]
use taskd_core::job::JobSpec;

/// Deep learning framework of the ranks' programs, which determines the environment variables that ranks get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Framework {
    /// PyTorch, which reads its recovery strategies from `HIGH_AVAILABILITY`.
    PyTorch,
    /// MindSpore, which reads its recovery options from `MS_ENABLE_TFT`.
    MindSpore,
}

impl Framework {
    /// Parses the value of a job's label `framework`.
    fn named(name: &str) -> Option<Framework> {
        match name.trim() {
            "pytorch" => Some(Framework::PyTorch),
            "mindspore" => Some(Framework::MindSpore),
            _ => None,
        }
    }
}
