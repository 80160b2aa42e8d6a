//! Lines of the file: the head, and one incident of one host each.

use crate::job::{IncidentId, Name, NodeId, WallTime};
use crate::state::HostIncident;
use serde::{Deserialize, Serialize};

/// Longest line. A longer one is not written, and counts as damaged when it is read.
pub(super) const LINE_BYTES_MAX: usize = 2048;

/// Begin of the head of every version.
const HEAD: &[u8] = br#"{"host_history":"#;

/// Text between an incident and its checksum.
const CHECKSUM: &[u8] = br#","crc32":""#;

/// First line of the file.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Head {
    /// Format version.
    pub(super) host_history: u32,
    /// Number of incidents that were dropped at a limit.
    #[serde(default)]
    pub(super) dropped: u64,
    /// Number of lines that could not be read, and are gone.
    #[serde(default)]
    pub(super) unreadable: u64,
}

impl Head {
    pub(super) fn read(line: &[u8]) -> Option<Head> {
        serde_json::from_slice(line).ok()
    }

    pub(super) fn write(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).unwrap_or_default(); // three numbers always have a form
        bytes.push(b'\n');
        bytes
    }

    /// Returns true if a file begins like a history, or is cut within its first words.
    pub(super) fn is_begun_by(bytes: &[u8]) -> bool {
        bytes.starts_with(HEAD) || HEAD.starts_with(bytes)
    }
}

/// An incident, as a line has it. Fields of later additions are ignored.
#[derive(Serialize, Deserialize)]
struct Form {
    at: WallTime,
    host: Name,
    class: Name,
    job: Name,
    incident: IncidentId,
}

/// A line that could be read.
pub(super) struct Line {
    pub(super) host: NodeId,
    pub(super) incident: HostIncident,
    /// True if the line has a checksum.
    pub(super) is_checked: bool,
}

impl Line {
    /// Reads a line. `None` if it is damaged.
    pub(super) fn read(line: &[u8]) -> Option<Line> {
        if line.len() > LINE_BYTES_MAX {
            return None;
        }
        let at = line.windows(CHECKSUM.len()).rposition(|part| part == CHECKSUM);
        if let Some(at) = at {
            let expected = checksum(&line[..at]);
            (line[at + CHECKSUM.len()..].strip_suffix(b"\"}")? == expected.as_bytes()).then_some(())?;
        }
        let Form { at: time, host, class, job, incident } = serde_json::from_slice(line).ok()?;
        let incident = HostIncident { at: time, class, job, incident };
        Some(Line { host: NodeId(host), incident, is_checked: at.is_some() })
    }
}

/// Appends a line. `None` if it would be too long: then nothing is appended.
pub(super) fn write(out: &mut Vec<u8>, host: &NodeId, incident: &HostIncident) -> Option<()> {
    let HostIncident { at, class, job, incident } = incident.clone();
    let mut line = serde_json::to_vec(&Form { at, host: host.0.clone(), class, job, incident }).ok()?;
    line.pop(); // the closing brace follows the checksum
    let sum = checksum(&line);
    line.extend_from_slice(CHECKSUM);
    line.extend_from_slice(sum.as_bytes());
    line.extend_from_slice(b"\"}");
    if line.len() > LINE_BYTES_MAX {
        return None;
    }
    out.append(&mut line);
    out.push(b'\n');
    Some(())
}

fn checksum(bytes: &[u8]) -> String {
    format!("{:08x}", crc32fast::hash(bytes))
}
