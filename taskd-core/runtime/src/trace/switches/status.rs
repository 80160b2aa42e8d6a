//! The state of every kind in every rank, and the request.
//!
//! Pure: computed from the contents of the recorders' files.

use super::rule::{KINDS, of_kind};
use super::watch::FileStatus;
use super::{Mode, by_rule};
use super::{PerKind, Requested, Switch};
use crate::job::{Incarnation, Name, Rank};
use crate::trace::Origin;
use crate::trace::recorder::{Kind, Switches};
use serde::Serialize;

/// Maximum number of ranks that a status lists, lowest first; the summaries count all ranks.
pub const RANKS_SHOWN_MAX: usize = 1024;

/// State of one trace kind in one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum KindState {
    /// The kind is switched off.
    #[default]
    Off,
    /// The kind is switched on and recorded.
    On,
    /// The kind is switched on but not recorded; contains the reason, such as `another profiler is active`. Recording
    /// resumes by itself when the reason is gone.
    Exception(String),
    /// The kind is switched on, but the process has no hook (code that records the kind), or none yet.
    NotSupported,
}

/// The state that a process reports in its recorder's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reported {
    /// The kinds that are switched on.
    pub(super) switches: Switches,
    /// The kinds for which the process has hooks.
    pub(super) hooked: Switches,
    /// The kinds that are on but not recorded, with reasons.
    pub(super) exceptions: Vec<(Kind, String)>,
}

impl Reported {
    /// Returns the state of a kind.
    fn state(&self, kind: Kind) -> KindState {
        let reason = self.exceptions.iter().find(|(excepted, _)| *excepted == kind).map(|(_, reason)| reason);
        match (self.switches.has(kind), reason, self.hooked.has(kind)) {
            (false, ..) => KindState::Off,
            (true, Some(reason), _) => KindState::Exception(reason.clone()),
            (true, None, false) => KindState::NotSupported,
            (true, None, true) => KindState::On,
        }
    }
}

/// State of all trace kinds in one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RankStatus {
    /// The rank.
    pub rank: Rank,
    /// Incarnation of the rank, which distinguishes this process from the other successive processes of the rank.
    pub incarnation: Incarnation,
    /// Process id on its host.
    pub pid: u32,
    /// State of each trace kind in this rank.
    pub kinds: PerKind<KindState>,
}

impl RankStatus {
    /// Creates the status from the state in a recorder's file.
    pub(super) fn of(origin: Origin, reported: &Reported) -> RankStatus {
        let Origin { rank, incarnation, pid } = origin;
        RankStatus { rank, incarnation, pid, kinds: KINDS.map(|kind| reported.state(kind)) }
    }
}

/// Summary of one trace kind over all ranks, in one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Overall {
    /// No rank has a recorder, or none yet.
    #[default]
    NoRank,
    /// The kind is off in all ranks.
    Off,
    /// The kind is on and recorded in all ranks.
    On,
    /// In at least one rank, the kind is on but not recorded, for a reason that the rank reports.
    Exception,
    /// The kind is on in all ranks, and no rank has a hook (code that records it).
    NotSupported,
    /// The state of the kind differs between ranks, and no rank reports an exception, that is, a reason for not
    /// recording.
    Mixed,
}

/// Summary of one trace kind over all ranks, with counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KindSummary {
    /// Requested switch (on or off) of the kind; `null` before the first request, while each rank records the kinds
    /// that its environment selects.
    pub requested: Option<Switch>,
    /// Effective switch (on or off) of the kind, which results from the request by the rule of `TraceStatus::mode`;
    /// `null` before the first request.
    pub effective: Option<Switch>,
    /// State of the kind over all ranks, in one word.
    pub overall: Overall,
    /// Number of ranks in which the kind is off.
    pub off: u32,
    /// Number of ranks in which the kind is on and recorded.
    pub on: u32,
    /// Number of ranks in which the kind is on but not recorded, for a reason that they report.
    pub exception: u32,
    /// Number of ranks in which the kind is on, but which have no hook (code that records the kind).
    pub not_supported: u32,
}

impl KindSummary {
    fn of<'a>(
        requested: Option<Switch>,
        effective: Option<Switch>,
        states: impl Iterator<Item = &'a KindState>,
    ) -> KindSummary {
        let (mut off, mut on, mut exception, mut not_supported) = (0, 0, 0, 0);
        for state in states {
            *match state {
                KindState::Off => &mut off,
                KindState::On => &mut on,
                KindState::Exception(_) => &mut exception,
                KindState::NotSupported => &mut not_supported,
            } += 1;
        }
        let overall = match (off, on, exception, not_supported) {
            (0, 0, 0, 0) => Overall::NoRank,
            (_, _, 1.., _) => Overall::Exception,
            (_, 0, 0, 0) => Overall::Off,
            (0, _, 0, 0) => Overall::On,
            (0, 0, 0, _) => Overall::NotSupported,
            _ => Overall::Mixed,
        };
        KindSummary { requested, effective, overall, off, on, exception, not_supported }
    }
}

/// Status of tracing: the request in force, and the state of all ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TraceStatus {
    /// Rule by which a request for trace kinds determines the kinds that ranks record.
    pub mode: Mode,
    /// Name of the operator, program or file that made the request in force; `null` before the first request.
    pub by: Option<Name>,
    /// For each trace kind: the requested switch, the effective switch, and the summary over all ranks.
    pub kinds: PerKind<KindSummary>,
    /// State of each rank, for the [`RANKS_SHOWN_MAX`] lowest ranks.
    pub ranks: Vec<RankStatus>,
    /// Status of the file of trace switches that the supervisor watches; `null` if it watches no file.
    pub file: Option<FileStatus>,
}

impl TraceStatus {
    pub(super) fn of(
        mode: Mode,
        request: Option<(Requested, Name)>,
        mut ranks: Vec<RankStatus>,
        file: Option<FileStatus>,
    ) -> TraceStatus {
        let asked = match &request {
            Some((requested, _)) => requested.zip(by_rule(requested, mode)).map(|(r, e)| (Some(r), Some(e))),
            None => PerKind::default(),
        };
        let kinds = asked.zip(KINDS).map(|((requested, effective), kind)| {
            let states = ranks.iter().filter_map(|rank| of_kind(&rank.kinds, kind));
            KindSummary::of(requested, effective, states)
        });
        ranks.truncate(RANKS_SHOWN_MAX);
        TraceStatus { mode, by: request.map(|(_, by)| by), kinds, ranks, file }
    }
}
