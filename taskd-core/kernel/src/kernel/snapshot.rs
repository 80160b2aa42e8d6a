//! The complete state of a kernel, to continue from after a change of supervisor.

use super::{Kernel, Plugins, Slot, State};
use crate::job::{JobTime, Name, Seq};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Version of the content of [`Snapshot`]. A snapshot of another version is refused.
const VERSION: u32 = 1;

/// The saved state of a decision kernel and its detectors, from which the kernel of a later supervisor continues.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    version: u32,
    state: State,
    detectors: Vec<Saved>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Saved {
    name: Name,
    version: Name,
    /// `None`: the detector cannot be saved, or is out of service.
    state: Option<Bytes>,
    not_before: JobTime,
}

impl Snapshot {
    /// Returns the sequence number of the last input that the snapshot includes.
    #[must_use]
    pub const fn seq(&self) -> Seq {
        self.state.seq
    }

    /// Returns the job time of the last input that the snapshot includes.
    #[must_use]
    pub const fn now(&self) -> JobTime {
        self.state.view.now
    }

    /// Returns true if the job had ended when the snapshot was made.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.state.life.is_over()
    }

    /// Returns true if the snapshot includes the state of every detector. Only then is a replay from the snapshot
    /// exact.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.detectors.iter().all(|d| d.state.is_some())
    }
}

/// Reason why a decision kernel cannot be restored from a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The snapshot has another format version than this program reads.
    #[error("the snapshot has version {found}, this program reads {expected}")]
    Version {
        /// Format version of the snapshot.
        found: u32,
        /// Format version that this program reads.
        expected: u32,
    },
}

impl Kernel {
    /// Returns the complete state of the decision kernel and its detectors. The state of a detector that does not
    /// support snapshots is left out, so the restored detector starts without state.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let saved = |slot: &Slot| {
            let detector = slot.detector.as_ref();
            Saved {
                name: detector.map_or(Name::new(""), |d| d.name()),
                version: detector.map_or(Name::new(""), |d| d.version()),
                state: detector.and_then(|d| d.snapshot()),
                not_before: slot.not_before,
            }
        };
        let detectors = self.detectors.iter().map(saved).collect();
        Snapshot { version: VERSION, state: self.state.clone(), detectors }
    }

    /// Creates a decision kernel that continues from a snapshot. Also returns the names of the detectors that start
    /// without state: their state was not saved, was saved by another version of the detector, or is rejected by the
    /// detector.
    ///
    /// # Errors
    /// Returns [`RestoreError`], together with the plugins, if the snapshot has another format version.
    pub fn restore(plugins: Plugins, snapshot: &Snapshot) -> Result<(Kernel, Vec<Name>), (RestoreError, Plugins)> {
        if snapshot.version != VERSION {
            return Err((RestoreError::Version { found: snapshot.version, expected: VERSION }, plugins));
        }
        let mut kernel = Kernel::new(plugins);
        kernel.state = snapshot.state.clone();
        kernel.maybe_complete = true;
        let mut cold = Vec::new();
        for slot in &mut kernel.detectors {
            let Some(detector) = &mut slot.detector else { continue };
            let (name, version) = (detector.name(), detector.version());
            let saved = snapshot.detectors.iter().find(|s| s.name == name && s.version == version);
            slot.not_before = saved.map_or(JobTime::START, |s| s.not_before);
            let state = saved.and_then(|s| s.state.as_ref());
            if state.is_none_or(|bytes| detector.restore(bytes).is_err()) {
                cold.push(name);
            }
        }
        Ok((kernel, cold))
    }
}
