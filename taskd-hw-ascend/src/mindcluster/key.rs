//! The keys of a MindCluster job's configuration: names and categories. Values are parsed elsewhere.

use std::fmt;

/// A key of a MindCluster job's configuration: the name of a label, annotation, environment variable or argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Key {
    /// `recover-strategy`: names of the allowed recovery strategies, separated by commas.
    RecoverStrategy,
    /// `process-recover-enable`: `on`, `pause` or `off`; with a value other than `on`, only the whole job is restarted.
    ProcessRecoverEnable,
    /// `fault-retry-times`: maximum number of recoveries of the job.
    FaultRetryTimes,
    /// `fault-scheduling`: `grace`, `force` (processes are stopped without a grace period), or `off` (restarts of the
    /// whole job are forbidden).
    FaultScheduling,
    /// `pod-rescheduling`: `on` or `off`; with `on`, MindSpore ranks get the option `RSC:1`.
    PodRescheduling,
    /// `subHealthyStrategy`: action for ranks on degraded devices; taskd does not act on it.
    SubHealthyStrategy,
    /// `PROCESS_RECOVER`: `on` or `off`; with a value other than `on`, only the whole job is restarted.
    ProcessRecover,
    /// `TASKD_PROCESS_ENABLE`: `on` or `off`; with `off`, only the whole job is restarted.
    ProcessEnable,
    /// `HIGH_AVAILABILITY`: recovery strategies that a PyTorch script enables, separated by commas.
    HighAvailability,
    /// `MS_ENABLE_TFT`: recovery options that MindSpore enables, such as `{TTP:1, HCCE:1}`.
    MsEnableTft,
    /// `ELASTIC_PROCESS_RECOVER_ENABLE`: `1` or `0`; taskd passes the value on to the ranks.
    ElasticProcessRecoverEnable,
    /// `ENABLE_RESTART_FAULT_PROCESS`: `on` or `off`; with `on`, a lost process is recovered in place, on its host.
    EnableRestartFaultProcess,
    /// `HCCL_ASYNC_ERROR_HANDLING`: `0`, `1` or `2`; with `1` or `2`, HCCL's watchdog ends processes.
    HcclAsyncErrorHandling,
    /// `HCCL_OP_RETRY_ENABLE`: levels at which HCCL retries operators by itself, such as `L0:0, L1:1, L2:1`.
    HcclOpRetryEnable,
    /// `HCCL_OP_RETRY_PARAMS`: number and pauses of HCCL's own operator retries, such as
    /// `MaxCnt:3, HoldTime:5000, IntervalTime:1000`.
    HcclOpRetryParams,
    /// `max_restarts`: maximum number of restarts, as torchrun's argument; `0` means 32767, as in MindCluster.
    MaxRestarts,
    /// `monitor_interval`: seconds between torchrun's checks of its processes; taskd does not use it.
    MonitorInterval,
}

impl Key {
    /// All keys, in the order in which they are declared.
    pub const ALL: [Key; 17] = [
        Key::RecoverStrategy,
        Key::ProcessRecoverEnable,
        Key::FaultRetryTimes,
        Key::FaultScheduling,
        Key::PodRescheduling,
        Key::SubHealthyStrategy,
        Key::ProcessRecover,
        Key::ProcessEnable,
        Key::HighAvailability,
        Key::MsEnableTft,
        Key::ElasticProcessRecoverEnable,
        Key::EnableRestartFaultProcess,
        Key::HcclAsyncErrorHandling,
        Key::HcclOpRetryEnable,
        Key::HcclOpRetryParams,
        Key::MaxRestarts,
        Key::MonitorInterval,
    ];

    /// Returns the name of the key, which is the same in every source of the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Key::RecoverStrategy => "recover-strategy",
            Key::ProcessRecoverEnable => "process-recover-enable",
            Key::FaultRetryTimes => "fault-retry-times",
            Key::FaultScheduling => "fault-scheduling",
            Key::PodRescheduling => "pod-rescheduling",
            Key::SubHealthyStrategy => "subHealthyStrategy",
            Key::ProcessRecover => "PROCESS_RECOVER",
            Key::ProcessEnable => "TASKD_PROCESS_ENABLE",
            Key::HighAvailability => "HIGH_AVAILABILITY",
            Key::MsEnableTft => "MS_ENABLE_TFT",
            Key::ElasticProcessRecoverEnable => "ELASTIC_PROCESS_RECOVER_ENABLE",
            Key::EnableRestartFaultProcess => "ENABLE_RESTART_FAULT_PROCESS",
            Key::HcclAsyncErrorHandling => "HCCL_ASYNC_ERROR_HANDLING",
            Key::HcclOpRetryEnable => "HCCL_OP_RETRY_ENABLE",
            Key::HcclOpRetryParams => "HCCL_OP_RETRY_PARAMS",
            Key::MaxRestarts => "max_restarts",
            Key::MonitorInterval => "monitor_interval",
        }
    }

    /// Returns the key with this name, or `None` if there is none. torchrun's two keys have aliases: `max-restarts` and
    /// `PET_MAX_RESTARTS` mean `max_restarts`, `monitor-interval` and `PET_MONITOR_INTERVAL` mean `monitor_interval`.
    #[must_use]
    pub fn named(name: &str) -> Option<Key> {
        match name {
            "max-restarts" | "PET_MAX_RESTARTS" => Some(Key::MaxRestarts),
            "monitor-interval" | "PET_MONITOR_INTERVAL" => Some(Key::MonitorInterval),
            name => Key::ALL.into_iter().find(|key| key.name() == name),
        }
    }

    /// Returns true if the key is the name of an environment variable that the job's ranks read.
    #[must_use]
    pub const fn is_for_ranks(self) -> bool {
        matches!(
            self,
            Key::ProcessRecover
                | Key::HighAvailability
                | Key::MsEnableTft
                | Key::ElasticProcessRecoverEnable
                | Key::EnableRestartFaultProcess
                | Key::HcclAsyncErrorHandling
                | Key::HcclOpRetryEnable
                | Key::HcclOpRetryParams
        )
    }

    /// Returns true if a job that sets this key counts as a MindCluster job. Such a job has to enable process recovery
    /// explicitly. False for the keys of HCCL's own retry, which is unrelated to taskd's recovery, and for the master
    /// switch `TASKD_PROCESS_ENABLE`, whose default is on.
    #[must_use]
    pub const fn configures_recovery(self) -> bool {
        !matches!(self, Key::HcclOpRetryEnable | Key::HcclOpRetryParams | Key::ProcessEnable)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
