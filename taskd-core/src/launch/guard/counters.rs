//! What a guard counts.

use serde::{Deserialize, Serialize};

/// What a guard has done, and everything that it had to leave undone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GuardCounters {
    /// Processes that were started.
    pub started: u64,
    /// Deaths that were known from a lifeline before the exit.
    pub deaths: u64,
    /// Exits of processes that were started.
    pub exits: u64,
    /// Processes that ranks had started and left behind, which were killed.
    pub leftovers_killed: u64,
    /// Trees of which something could not be removed within the bound; the guard goes on trying.
    pub leftovers_stuck: u64,
    /// Bytes of output that are in no file, because the disk was too slow or refused them.
    pub output_bytes_dropped: u64,
    /// Times that the disk refused output.
    pub output_refused: u64,
    /// Log files that reached their bound and were begun anew.
    pub logs_rotated: u64,
    /// Connections that were turned away or cut: of another user, too many, too slow, or not of this protocol.
    pub connections_refused: u64,
    /// Ranks that had no lifeline though they could have one: no thread could be started to wait for it, or their system
    /// releases no lock of a process that dies (counted at their exit).
    pub lifelines_missing: u64,
    /// Processes that were started and are in no control group of their own, though their guard has one: a daemon of such a process may
    /// live until the guard ends.
    #[serde(default)]
    pub cgroups_missing: u64,
    /// Standbys that wait at this moment, and can be seated.
    pub standbys_waiting: u64,
    /// Standbys that have run their program ahead, up to where it has to know its rank.
    #[serde(default)]
    pub standbys_parked: u64,
    /// Processes that were started by seating a standby.
    pub standbys_seated: u64,
    /// Those of them whose standby had run the program ahead.
    #[serde(default)]
    pub standbys_seated_parked: u64,
    /// Processes that a standby could have stood in for, but were started in the usual way: none waited then.
    pub standbys_missed: u64,
    /// Standbys and templates that were given up: they refused, failed, did not answer, or nobody was like them any more.
    pub standbys_discarded: u64,
    /// Defects of the guard itself that it survived.
    pub panics: u64,
}
