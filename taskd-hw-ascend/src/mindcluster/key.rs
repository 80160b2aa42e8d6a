//! The keys that are understood: their names, and what kind of thing each is. It reads no value.

use std::fmt;

/// A key of a job's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Key {
    /// `recover-strategy`: the strategies that are allowed, by name, with commas between them.
    RecoverStrategy,
    /// `process-recover-enable`: `on`, `pause` or `off`.
    ProcessRecoverEnable,
    /// `fault-retry-times`: how many recoveries the job may have.
    FaultRetryTimes,
    /// `fault-scheduling`: `grace`, `force` or `off`, which allows no restart of the whole job.
    FaultScheduling,
    /// `pod-rescheduling`: `on` or `off`.
    PodRescheduling,
    /// `subHealthyStrategy`: what is done about ranks on devices that are only ailing.
    SubHealthyStrategy,
    /// `PROCESS_RECOVER`: `on` or `off`.
    ProcessRecover,
    /// `TASKD_PROCESS_ENABLE`: `on` or `off`.
    ProcessEnable,
    /// `HIGH_AVAILABILITY`: what a PyTorch script turns on, by strategy, with commas between them.
    HighAvailability,
    /// `MS_ENABLE_TFT`: what MindSpore turns on, such as `{TTP:1, HCCE:1}`.
    MsEnableTft,
    /// `ELASTIC_PROCESS_RECOVER_ENABLE`: `1` or `0`.
    ElasticProcessRecoverEnable,
    /// `ENABLE_RESTART_FAULT_PROCESS`: `on` or `off`; whether a process that is recovered stays where it was.
    EnableRestartFaultProcess,
    /// `HCCL_ASYNC_ERROR_HANDLING`: whether HCCL's watchdog ends processes: `0`, `1` or `2`.
    HcclAsyncErrorHandling,
    /// `HCCL_OP_RETRY_ENABLE`: at which levels HCCL does an operator again by itself, such as `L0:0, L1:1, L2:1`.
    HcclOpRetryEnable,
    /// `HCCL_OP_RETRY_PARAMS`: how often and after which pauses, such as `MaxCnt:3, HoldTime:5000, IntervalTime:1000`.
    HcclOpRetryParams,
    /// `max_restarts`: torchrun's number of restarts; `0` is MindCluster's 32767.
    MaxRestarts,
    /// `monitor_interval`: the seconds between torchrun's looks at its processes.
    MonitorInterval,
}

impl Key {
    /// All of them.
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

    /// Its name, in every source.
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

    /// The key of this name. torchrun's two have more names than one: `max-restarts` and `PET_MAX_RESTARTS` are the same.
    #[must_use]
    pub fn named(name: &str) -> Option<Key> {
        match name {
            "max-restarts" | "PET_MAX_RESTARTS" => Some(Key::MaxRestarts),
            "monitor-interval" | "PET_MONITOR_INTERVAL" => Some(Key::MonitorInterval),
            name => Key::ALL.into_iter().find(|key| key.name() == name),
        }
    }

    /// Whether ranks find it in their environment.
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

    /// Whether a job that sets it is configured for MindCluster, so that recovery within processes has to be turned on. Not the
    /// settings of HCCL's own retry, which say nothing of ours, nor the master switch, which is on unless it is turned off.
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
