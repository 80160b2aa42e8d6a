//! How every rank stands to every kind, beside what was asked for.
//!
//! Pure: it is made of what recorders' files say.

use super::requested::{PerKind, Requested, Switch};
use super::rule::{Mode, by_rule};
use super::watch::FileStatus;
use crate::job::{Incarnation, Name, Rank};
use crate::trace::Origin;
use crate::trace::recorder::{Kind, Switches};
use serde::Serialize;

/// Most ranks that a status names one by one, the lowest ones; summed up are all.
pub const RANKS_SHOWN_MAX: usize = 1024;

/// How one rank stands to one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum KindState {
    /// It is switched off.
    #[default]
    Off,
    /// It is switched on, and recorded.
    On,
    /// It is switched on and not recorded, for this reason, such as `another profiler is active`. When the reason is gone
    /// it is recorded again, by itself.
    Exception(String),
    /// It is switched on, and the process has no hook for it, or none yet.
    NotSupported,
}

/// What a recorder's file says of its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    /// What is switched on.
    pub(super) switches: Switches,
    /// What the process has hooks for.
    pub(super) hooked: Switches,
    /// What is not recorded though it is on, with the reasons.
    pub(super) exceptions: Vec<(Kind, String)>,
}

impl Told {
    /// How the process stands to a kind.
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

/// How one rank stands to the kinds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RankStatus {
    /// Which rank.
    pub rank: Rank,
    /// Which start of it.
    pub incarnation: Incarnation,
    /// Its process id on its host.
    pub pid: u32,
    /// Kind by kind.
    pub kinds: PerKind<KindState>,
}

impl RankStatus {
    /// Of what a recorder's file says.
    pub(super) fn of(origin: Origin, told: &Told) -> RankStatus {
        let Origin { rank, incarnation, pid } = origin;
        RankStatus { rank, incarnation, pid, kinds: PerKind::KINDS.map(|kind| told.state(kind)) }
    }
}

/// One word for all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Overall {
    /// No rank has a recorder, or none yet.
    #[default]
    NoRank,
    /// All are off.
    Off,
    /// All are on.
    On,
    /// One at least is switched on and does not record.
    Exception,
    /// None has a hook for it.
    NotSupported,
    /// Some are this, some are that; none is an exception.
    Mixed,
}

/// One kind in all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KindSummary {
    /// What was asked for; `null`: nothing was, and each rank records what its environment says.
    pub requested: Option<Switch>,
    /// What that comes to by the rule of the mode.
    pub effective: Option<Switch>,
    /// All ranks in one word.
    pub overall: Overall,
    /// Ranks in which it is off.
    pub off: u32,
    /// Ranks in which it is recorded.
    pub on: u32,
    /// Ranks in which it is on and not recorded.
    pub exception: u32,
    /// Ranks in which it is on, and which have no hook for it.
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

/// What is switched, and how all ranks stand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TraceStatus {
    /// How a request is taken.
    pub mode: Mode,
    /// Who asked for what is in force; `null`: nobody did.
    pub by: Option<Name>,
    /// Kind by kind: asked for, effective, and all ranks in one word.
    pub kinds: PerKind<KindSummary>,
    /// Rank by rank, the first [`RANKS_SHOWN_MAX`].
    pub ranks: Vec<RankStatus>,
    /// The file that switches, if one is followed.
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
        let kinds = asked.zip(PerKind::KINDS).map(|((requested, effective), kind)| {
            let states = ranks.iter().filter_map(|rank| rank.kinds.get(kind));
            KindSummary::of(requested, effective, states)
        });
        ranks.truncate(RANKS_SHOWN_MAX);
        TraceStatus { mode, by: request.map(|(_, by)| by), kinds, ranks, file }
    }
}
