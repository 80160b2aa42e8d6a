//! Counters of a guard.

use serde::{Deserialize, Serialize};

/// Counters of a guard (the process that starts and reaps the ranks) since its start: work that it did, and work that
/// it could not do. `standbys_waiting` and `standbys_parked` are current numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GuardCounters {
    /// Number of processes started.
    pub started: u64,
    /// Number of deaths that a lifeline (a lock that Linux releases when the process dies) reported before the exit.
    pub deaths: u64,
    /// Number of exits of started processes.
    pub exits: u64,
    /// Number of processes that the guard killed because the time until which the host may run processes was over (see
    /// [`Fence`](crate::launch::Fence)).
    #[serde(default)]
    pub fenced: u64,
    /// Number of processes that ranks had started and left behind, and that the guard killed.
    pub leftovers_killed: u64,
    /// Number of process trees whose processes could not all be killed within the time limit; the guard keeps trying.
    pub leftovers_stuck: u64,
    /// Number of bytes of process output that were written to no log file, because the disk was too slow or a write
    /// failed.
    pub output_bytes_dropped: u64,
    /// Number of times that process output could not be written to a log file.
    pub output_refused: u64,
    /// Number of times that a log file of process output reached its size limit and a new file was begun.
    pub logs_rotated: u64,
    /// Number of connections to the guard that it refused or closed: connections of another user, too many, too slow,
    /// with another protocol, or of a process that may not own the guard (it has another owner, belongs to another job,
    /// or is ending).
    pub connections_refused: u64,
    /// Number of ranks without a lifeline (a lock that Linux releases when the process dies) although they could have
    /// one: no thread could be started to wait for the lock, or the rank's system does not release the locks of a
    /// process that dies (counted at the exit of the rank).
    pub lifelines_missing: u64,
    /// Number of processes that have no control group of their own although their guard has one. A daemon that one of
    /// these processes started may live until the guard ends.
    #[serde(default)]
    pub cgroups_missing: u64,
    /// Number of standbys (processes started in advance) that now wait to be assigned a rank.
    pub standbys_waiting: u64,
    /// Number of pre-warmed standbys that now wait to be assigned a rank: processes started in advance that have run
    /// their program up to its first rank-dependent call.
    #[serde(default)]
    pub standbys_parked: u64,
    /// Number of process starts that used a standby: the rank was assigned to a process that the guard had started in
    /// advance.
    pub standbys_seated: u64,
    /// Number of process starts that used a pre-warmed standby: the rank was assigned to a process that had already run
    /// its program up to the first rank-dependent call.
    #[serde(default)]
    pub standbys_seated_parked: u64,
    /// Number of process starts that could have used a standby but were carried out in the usual way, because no
    /// standby was ready.
    pub standbys_missed: u64,
    /// Number of standbys (processes started in advance) and templates (processes that fork standbys) that were
    /// discarded: they refused, failed, did not answer, or no rank matched them any more.
    pub standbys_discarded: u64,
    /// Number of panics in the guard's own code after which the guard continued.
    pub panics: u64,
}
