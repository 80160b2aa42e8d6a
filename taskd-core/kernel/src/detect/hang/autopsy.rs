//! Checks after a rank's death if ranks had made different calls, so that one was terminated for another's mistake.
//!
//! Some libraries hang on mismatched calls; others terminate a process that did everything right. This module sends no
//! probes and blames no rank: it stores the replies, and derives the culprits.

use super::look::Look;
use super::verdict::{Culprit, disagreement};
use crate::job::{JobTime, Rank};
use crate::state::View;
use crate::trace::ProbeReply;
use serde::{Deserialize, Serialize};

/// State of the investigation of a generation's first death.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Autopsy {
    /// The positions of all ranks in their process groups were requested.
    Asked {
        /// The replies received so far.
        look: Look,
        /// Time after which missing replies are no longer awaited.
        due: JobTime,
    },
    /// The ranks that have called something else than the others; empty if there are none.
    Known(Vec<Culprit>),
}

impl Autopsy {
    /// Adds a reply. Returns true if it was the last missing one.
    pub(super) fn answered(&mut self, rank: Rank, evidence: &ProbeReply) -> bool {
        match self {
            Autopsy::Asked { look, .. } => look.answered(rank, evidence),
            Autopsy::Known(_) => false,
        }
    }

    /// Time limit for replies; `None` if the investigation is complete.
    pub(super) const fn due(&self) -> Option<JobTime> {
        match self {
            Autopsy::Asked { due, .. } => Some(*due),
            Autopsy::Known(_) => None,
        }
    }

    /// Ends the wait for replies, and derives the culprits.
    pub(super) fn close(&mut self, view: &View) {
        if let Autopsy::Asked { look, .. } = self {
            *self = Autopsy::Known(disagreement(&look.reports(view)));
        }
    }

    /// Returns the ranks that have called something else, as far as known.
    pub(super) fn culprits(&self) -> &[Culprit] {
        match self {
            Autopsy::Asked { .. } => &[],
            Autopsy::Known(culprits) => culprits,
        }
    }
}
