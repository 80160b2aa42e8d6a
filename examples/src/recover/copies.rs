//! What the ranks reported of the state that they copied from others, and beside it what one plain system call takes
//! for as much.
//!
//! It looks at a job that is over, and has no part in any recovery.

use super::figures::Figures;
use crate::program::Failure;
use crate::samples::Samples;
use serde::Serialize;
use std::path::Path;
use std::process::Command;

/// The part of the plain call's rate that a copy is to reach.
const OF_PLAIN: f64 = 0.7;
/// What a recovery may take besides its copy, in milliseconds.
const BESIDES_MS: f64 = 100.0;

/// Copies of a rank's whole state, and the call beside them.
#[derive(Debug, Default, Serialize)]
pub struct Copies {
    /// How many bytes each had, at most.
    pub bytes: f64,
    /// What each took, in milliseconds.
    pub ms: Vec<f64>,
    /// What one `process_vm_readv` of as many bytes takes, in milliseconds.
    pub plain_ms: f64,
    /// What a recovery with such a copy is to take at most, by that, in milliseconds.
    pub target_ms: f64,
}

impl Copies {
    /// Those of a job whose ranks have reported this. `None`: no rank has copied anything.
    ///
    /// # Errors
    /// The call cannot be made.
    pub(super) fn of(reported: &[Figures], python: &Path) -> Result<Option<Copies>, Failure> {
        let mut copies = Copies::default();
        for figures in reported {
            let (Some(bytes), Some(ms)) = (figures.of("copied_bytes"), figures.of("copied_ms")) else { continue };
            if bytes > 0.0 {
                copies.bytes = copies.bytes.max(bytes);
                copies.ms.push(ms);
            }
        }
        if copies.ms.is_empty() {
            return Ok(None);
        }
        copies.plain_ms = plain_ms(python, copies.bytes)?;
        copies.target_ms = BESIDES_MS + copies.plain_ms / OF_PLAIN;
        Ok(Some(copies))
    }

    /// For people.
    pub(super) fn table(&self) -> String {
        let mib = self.bytes / f64::from(1 << 20);
        let ms: Samples = self.ms.iter().copied().collect();
        let Copies { plain_ms, target_ms, .. } = self;
        format!(
            "  copied {mib:.1} MiB in ms: {ms}; one process_vm_readv of as much: {plain_ms:.1}; so the target of \
             a recovery in place is {target_ms:.1} ms at the median\n"
        )
    }
}

/// The least of three, made by a process of its own from a child of its.
fn plain_ms(python: &Path, bytes: f64) -> Result<f64, Failure> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/python/plain_copy.py");
    let output = Command::new(python).args([script, &bytes.to_string()]).output()?;
    if !output.status.success() {
        return Err(format!("{script}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}
