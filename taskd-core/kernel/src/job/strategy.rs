//! Names of the built-in recovery strategies, as policies, logs and MindCluster's users write them.

use super::Name;

/// Name of the strategy that keeps all processes, and repeats the failed step.
pub const RETRY: Name = Name::new("retry");
/// Name of the strategy that starts lost ranks again on their hosts, and keeps the other processes.
pub const RECOVER_IN_PLACE: Name = Name::new("recover-in-place");
/// Name of the strategy that starts lost ranks again on other hosts, and keeps the other processes.
pub const RECOVER: Name = Name::new("recover");
/// Name of the strategy that continues training without the lost ranks.
pub const SHRINK: Name = Name::new("shrink");
/// Name of the strategy that starts absent ranks again, in a job that continued without them.
/// [`ShrunkDetector`](crate::detect::ShrunkDetector) advises this strategy.
pub const GROW: Name = Name::new("grow");
/// Name of the strategy that saves an emergency checkpoint of the surviving ranks' state, then starts all ranks again.
pub const DUMP: Name = Name::new("dump");
/// Name of the strategy that saves an emergency checkpoint of the surviving ranks' state, then ends the job.
pub const DUMP_EXIT: Name = Name::new("dump-exit");
/// Name of the strategy that starts all ranks again.
pub const RESTART: Name = Name::new("restart");
/// Name of the strategy that ends the job.
pub const EXIT: Name = Name::new("exit");
