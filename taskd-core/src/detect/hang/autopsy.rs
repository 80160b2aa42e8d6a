//! After a rank has died: whether ranks had called different things, so that one of them was ended for another's mistake.
//!
//! Some libraries hang when calls do not match, others end a process that did everything right. It asks nobody and blames
//! nobody: it keeps what was answered, and what follows from it.

use super::look::Look;
use super::verdict::{Culprit, disagreement};
use crate::job::{JobTime, Rank};
use crate::kernel::View;
use crate::trace::Evidence;
use serde::{Deserialize, Serialize};

/// What becomes of the first death of a generation.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Autopsy {
    /// All ranks were asked where they stand.
    Asked {
        /// What was answered.
        look: Look,
        /// Who does not answer until then does not.
        due: JobTime,
    },
    /// It is known who has called something else than the others, if anybody has.
    Known(Vec<Culprit>),
}

impl Autopsy {
    /// Takes an answer. True: it was the last one that was missing.
    pub(super) fn answered(&mut self, rank: Rank, evidence: &Evidence) -> bool {
        match self {
            Autopsy::Asked { look, .. } => look.answered(rank, evidence),
            Autopsy::Known(_) => false,
        }
    }

    /// When it is over, if it is not.
    pub(super) const fn due(&self) -> Option<JobTime> {
        match self {
            Autopsy::Asked { due, .. } => Some(*due),
            Autopsy::Known(_) => None,
        }
    }

    /// No more answers are waited for.
    pub(super) fn close(&mut self, view: &View) {
        if let Autopsy::Asked { look, .. } = self {
            *self = Autopsy::Known(disagreement(&look.reports(view)));
        }
    }

    /// Who has called something else, as far as is known.
    pub(super) fn culprits(&self) -> &[Culprit] {
        match self {
            Autopsy::Asked { .. } => &[],
            Autopsy::Known(culprits) => culprits,
        }
    }
}
