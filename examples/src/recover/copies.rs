//! The copies of state that ranks reported, compared with one plain system call for the same number of bytes.
//!
//! It reads the log of a job that is over, and has no part in any recovery.

use super::figures::Figures;
use crate::program::Failure;
use crate::samples::Samples;
use serde::Serialize;
use std::path::Path;
use std::process::Command;

/// Minimum rate of a copy, as a fraction of the plain call's.
const OF_PLAIN: f64 = 0.7;
/// Time of a recovery in addition to its copy, in milliseconds.
const BESIDES_MS: f64 = 100.0;

/// Copies of a rank's whole state, and the call for comparison.
#[derive(Debug, Default, Serialize)]
pub struct Copies {
    /// Size of the largest copy.
    pub bytes: f64,
    /// Time of each copy in milliseconds.
    pub ms: Vec<f64>,
    /// Time of one `process_vm_readv` of that size, in milliseconds.
    pub plain_ms: f64,
    /// The target for a recovery with such a copy, in milliseconds.
    pub target_ms: f64,
}

impl Copies {
    /// Returns the copies in the figures that ranks have reported; `None` if no rank has copied anything.
    ///
    /// # Errors
    /// The plain call failed.
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

    /// Returns the copies as text.
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

/// Returns the minimum of three calls, by which a new process reads the memory of its child.
fn plain_ms(python: &Path, bytes: f64) -> Result<f64, Failure> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/python/plain_copy.py");
    let output = Command::new(python).args([script, &bytes.to_string()]).output()?;
    if !output.status.success() {
        return Err(format!("{script}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}
