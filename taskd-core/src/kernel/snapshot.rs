//! The kernel's whole state, to go on from after a change of supervisor.

use super::{Kernel, Plugins, Slot, State};
use crate::job::{JobTime, Name, Seq};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Version of [`Snapshot`]'s content; another one is refused.
const VERSION: u32 = 1;

/// A kernel's state with that of its detectors.
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
    /// Number of inputs that are in it.
    #[must_use]
    pub const fn seq(&self) -> Seq {
        self.state.seq
    }

    /// The time of its last input.
    #[must_use]
    pub const fn now(&self) -> JobTime {
        self.state.view.now
    }

    /// Whether the job had ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.state.life.is_over()
    }

    /// Whether every detector is in it: only then a replay from here is exact.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.detectors.iter().all(|d| d.state.is_some())
    }
}

/// Why a kernel could not be restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The snapshot is of another version of this program.
    #[error("the snapshot has version {found}, this program reads {expected}")]
    Version {
        /// The snapshot's.
        found: u32,
        /// Ours.
        expected: u32,
    },
}

impl Kernel {
    /// The whole state. A detector that cannot be saved is left out: it would start cold.
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

    /// A kernel that goes on from a snapshot, with the names of detectors that start cold: those that were not saved, are
    /// of another version, or do not take their state.
    ///
    /// # Errors
    /// [`RestoreError`] when the snapshot is not of this version; the plugins come back with it.
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
