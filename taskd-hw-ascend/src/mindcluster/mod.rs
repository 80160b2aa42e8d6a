//! Jobs that were configured for MindCluster: which strategies they allow, how many recoveries, and what their ranks are told.
//!
//! It changes a [`JobSpec`] when it is asked to, and nothing else: it starts nothing, and asks no cluster.
//!
//! | file | its part |
//! |---|---|
//! | `key`, `setting` | the keys; what a source says of one, and warnings |
//! | `sources` | collects what all sources say |
//! | `job_file`, `yaml`, `downward`, `file` | readers of files |
//! | `value`, `decision`, `environment` | what values mean, what is allowed, what ranks are told: pure |
//! | `configured` | the result, and the changes that it makes |
//!
//! # Where a key is read, and which place wins
//! Every key is read under its own name in every place. Of two that differ the upper one wins, and a warning names both:
//!
//! | | place | what is read there |
//! |---|---|---|
//! | 1 | the job's specification | [`JobSpec::annotations`], then its program's `env`, then its arguments (`--max_restarts`, `--monitor_interval`) |
//! | 2 | the job file (YAML or JSON, as the cluster is given it) | `metadata.labels` and `.annotations` (those further out first), `env` and arguments of the container that trains |
//! | 3 | downward-API files | lines `key="value"`, or a file that is named like the key |
//! | 4 | this process's environment | variables; torchrun's also as `PET_MAX_RESTARTS` and `PET_MONITOR_INTERVAL` |
//!
//! Of a pod with several containers the one that trains is called `ascend` (or `pytorch`, `mindspore`, `tensorflow`), or else asks for
//! `huawei.com/` devices, or else is the first. What the others set is warned of, and does not count. A job file with places that a
//! program was to fill in (`{{ .Values.x }}`, `${X}`, `$(X)`), an empty one and one that is no job are refused.
//!
//! The environment comes last since it is what MindCluster's operator made of the others, or an image's default. What the
//! specification says in its own terms wins over all keys: a permission in `policy.strategies`, a `policy.budget` or `stop_grace`
//! that is not the default. A master switch alone is above a permission: it only takes away.
//!
//! | key | values | what comes of it |
//! |---|---|---|
//! | `recover-strategy` | `retry`, `recover-in-place`, `recover`, `elastic-training` (`shrink`, `grow`), `dump` (`dump`, `dump-exit`), `exit`; names of strategies that were added | these are allowed, besides `restart` and `exit`, and no others |
//! | `HIGH_AVAILABILITY`, `MS_ENABLE_TFT` | lists of the same; `{TTP:1, HCCE:1}`: TTP `dump`, UCE, HCCE and TRE `retry`, ARF `recover` and `dump`, RSC `restart` | where `recover-strategy` is not set, what is on is what is named |
//! | `ENABLE_RESTART_FAULT_PROCESS` | `on`, `off` | with these two: `recover` means `recover-in-place` as well |
//! | `process-recover-enable` | `on`, `pause`, `off` | other than `on`: whole restarts only |
//! | `PROCESS_RECOVER` | `on`, `off` | other than `on`: whole restarts only |
//! | `TASKD_PROCESS_ENABLE` | `on`, `off` | `off`: whole restarts only |
//! | `fault-scheduling` | `grace`, `force`, `off` | `off`: no `restart`, and no `dump` that restarts; `force`: processes are stopped without grace |
//! | `fault-retry-times`, `max_restarts` | a number; 0 of `max_restarts` is 32767 | the recoveries that the job may have, of all kinds together, the smaller number of both; none comes back |
//! | `pod-rescheduling` | `on`, `off` | `on`: MindSpore's ranks are told so (`RSC:1`) |
//! | `ELASTIC_PROCESS_RECOVER_ENABLE`, `HCCL_ASYNC_ERROR_HANDLING` | `0`, `1`; `0`, `1`, `2` | handed to ranks; told where it keeps an allowed strategy from working |
//! | `HCCL_OP_RETRY_ENABLE`, `HCCL_OP_RETRY_PARAMS` | `L0:0, L1:1, L2:1`; `MaxCnt:3, HoldTime:5000, IntervalTime:1000` | HCCL's own retry is given its time: [`Configured::detectors`] |
//! | `monitor_interval`, `subHealthyStrategy` | seconds; `ignore`, `graceExit`, `forceExit`, `hotSwitch` | nothing: deaths are told when they happen, and nobody acts on devices that only ail |
//!
//! A job that sets no key has every strategy allowed. One that sets any, but for `TASKD_PROCESS_ENABLE` and HCCL's retry, is a job
//! of MindCluster's, where recovery of processes has to be turned on: by `process-recover-enable` or `PROCESS_RECOVER`, or, as by
//! its operator, by naming strategies. Else there are whole restarts only, and the reason says so.
//!
//! # What ranks are told
//! Where strategies are named and not switched off, for each of them (what a job says itself stays as it is; lists are merged):
//!
//! | strategy | both | PyTorch, in `HIGH_AVAILABILITY` | MindSpore, in `MS_ENABLE_TFT` |
//! |---|---|---|---|
//! | `recover`, `exit` | `PROCESS_RECOVER=on`, `ELASTIC_PROCESS_RECOVER_ENABLE=1` | `recover` | `ARF:1` |
//! | `recover-in-place` | the same, `ENABLE_RESTART_FAULT_PROCESS=on` | `recover` | `ARF:1` |
//! | `retry` | as `recover` | `retry` | `HCCE:1`, `UCE:1` |
//! | `dump` | as `recover` | `dump` | `TTP:1` |
//! | `elastic-training` | `PROCESS_RECOVER=on` | `elastic-training` | |
//! | (`pod-rescheduling` is `on`, whatever is named) | | | `RSC:1` |
//! | any | | `HCCL_ASYNC_ERROR_HANDLING=0` | `MINDIO_FOR_MINDSPORE=1`, `MS_ENABLE_THM={HCCL_WATCHDOG:0}` |
//!
//! Arguments of the program, such as `--enable-high-availability` and `--enable-hbmfault-repair`, are passed on as they are; a
//! warning names an allowed strategy that lacks its flag.
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

/// What the ranks' programs are written with, as far as it matters to what they are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Framework {
    /// PyTorch: `HIGH_AVAILABILITY`.
    PyTorch,
    /// MindSpore: `MS_ENABLE_TFT`.
    MindSpore,
}

impl Framework {
    /// By the label `framework` of a job.
    fn named(name: &str) -> Option<Framework> {
        match name.trim() {
            "pytorch" => Some(Framework::PyTorch),
            "mindspore" => Some(Framework::MindSpore),
            _ => None,
        }
    }
}
