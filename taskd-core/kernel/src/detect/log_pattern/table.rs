//! Known error lines: a table as data, which users can extend.
//!
//! A table states what is documented about a line. The detector decides what follows from it.

use super::pattern::Pattern;
use crate::detect::{Damage, FaultClass, Health};
use crate::job::{Name, document_text};
use serde::{Deserialize, Serialize};

/// The built-in table.
const BUILT_IN: &str = include_str!("table.json");

/// Maximum number of entries of a [`LogTable`]. A document that would exceed it is refused.
pub const PATTERNS_MAX: usize = 1024;

/// Maximum size of a table document in bytes.
pub const TABLE_BYTES_MAX: usize = 1 << 20;

/// Maximum length of a pattern in bytes. A longer one is refused.
pub const PATTERN_BYTES_MAX: usize = 512;

/// Confidence of an entry that states none.
const CONFIDENCE_PERMILLE: u16 = 700;

/// Confidence of certainty.
const CONFIDENCE_MAX_PERMILLE: u16 = 1000;

/// Where the cause of a line lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Blame {
    /// The process that reports the line.
    Reporter,
    /// The device of the process that reports the line.
    Device,
    /// The host of the process that reports the line.
    Host,
    /// A peer of the process that reports the line, which is a victim. The line does not identify the peer.
    Peer,
    /// The rank with the number in the line, at `{rank}` in the pattern. The process that reports the line is a
    /// victim.
    Named,
    /// The line does not show where the cause lies, for example because a file system is shared.
    Unknown,
}

/// Which parts of the suspect a line shows to be faulty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Harm {
    /// The process and its state are lost.
    #[default]
    ProcessGone,
    /// The process and its state are lost, and the device is faulty.
    Device,
}

impl Harm {
    pub(super) const fn damage(self) -> Damage {
        match self {
            Harm::ProcessGone => Damage::PROCESS_GONE,
            Harm::Device => Damage { device: Health::Faulty, ..Damage::PROCESS_GONE },
        }
    }
}

/// One entry of a [`LogTable`]: a known error line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogPattern {
    /// Name of the entry, unique in the table, such as `cuda.ecc`.
    pub id: Name,
    /// Text that the line contains. `*` stands for any text, also none, and `{rank}` for a decimal number, the rank
    /// that the line names (for [`Blame::Named`]; it occurs once). Upper and lower case differ.
    pub pattern: String,
    /// Name of the class of the fault: of a [`FaultClass`], or another one.
    pub class: String,
    /// Where the cause of the line lies.
    pub blame: Blame,
    /// Confidence that the suspect is the cause, in permille, at most 1000. Default: 700.
    #[serde(default = "default_confidence")]
    pub confidence_permille: u16,
    /// Parts of the suspect that are faulty. Default: the process and its state.
    #[serde(default)]
    pub damage: Harm,
    /// True if the line is proof of a fault even if the process that reports it continues. Otherwise a line of a
    /// process that continues is only noted, because programs handle many errors.
    #[serde(default)]
    pub live: bool,
    /// What an operator can do, as a sentence without a full stop.
    #[serde(default)]
    pub advice: String,
    /// Origin of the text.
    #[serde(default)]
    pub source: String,
}

const fn default_confidence() -> u16 {
    CONFIDENCE_PERMILLE
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default, rename = "source")]
    _source: String,
    patterns: Vec<LogPattern>,
}

/// Reason why a document with known error lines was refused. The table is then unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogTableError {
    /// The document does not have the format of a table; the field is the reason.
    #[error("no table of error lines: {0}")]
    Form(String),
    /// An entry of the table is invalid.
    #[error("the table of error lines has an invalid entry: {id}: {what}")]
    Entry {
        /// Name of the entry.
        id: Name,
        /// Description of the problem.
        what: String,
    },
}

/// Table of known error lines, in the order in which they are tried: the first entry that fits a failure decides.
///
/// The caller reads the file of a user's table. Its format is that of the built-in table:
///
/// ```
/// # extern crate taskd_kernel as taskd_core;
/// use taskd_core::detect::log_pattern::LogTable;
///
/// let mut table = LogTable::built_in();
/// table.extend_from(
///     r#"{"patterns": [{"id": "acme.link", "pattern": "acme: link * to rank {rank} is down", "class": "network",
///         "blame": "named", "confidence_permille": 600, "advice": "check the cable"}]}"#,
/// )?;
/// let known = table.find("[7] acme: link 3 to rank 12 is down").unwrap();
/// assert_eq!((known.pattern.id.as_str(), known.rank), ("acme.link", Some(12)));
/// assert_eq!(table.find("CUDA out of memory. Tried").unwrap().pattern.id, "cuda.out-of-memory");
/// # Ok::<(), taskd_core::detect::log_pattern::LogTableError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogTable {
    entries: Vec<(LogPattern, FaultClass, Pattern)>,
}

/// A known line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known<'a> {
    /// Position of the entry in the table: the lowest of several decides.
    pub priority: usize,
    /// Entry of the table that fits.
    pub pattern: &'a LogPattern,
    /// Class of the fault.
    pub class: &'a FaultClass,
    /// Rank that the line names, if the pattern has `{rank}`.
    pub rank: Option<u32>,
}

impl Default for LogTable {
    fn default() -> LogTable {
        LogTable::built_in()
    }
}

impl LogTable {
    /// Returns the built-in table.
    #[must_use]
    pub fn built_in() -> LogTable {
        let mut table = LogTable::empty();
        // A test checks that the built-in table is valid; a defect is not worth a panic here.
        let _ = table.extend_from(BUILT_IN);
        table
    }

    /// Returns a table without entries.
    #[must_use]
    pub const fn empty() -> LogTable {
        LogTable { entries: Vec::new() }
    }

    /// Adds the entries of a JSON document before the existing ones, so that they decide first. An entry replaces the
    /// existing one of the same id.
    ///
    /// # Errors
    /// Returns [`LogTableError`] if the document is larger than [`TABLE_BYTES_MAX`], is not a table, or has an invalid
    /// entry, or if the table would have more than [`PATTERNS_MAX`] entries. The table is then unchanged.
    pub fn extend_from(&mut self, document: &str) -> Result<(), LogTableError> {
        if document.len() > TABLE_BYTES_MAX {
            let text = format!("it has {} bytes, and at most {TABLE_BYTES_MAX} are read", document.len());
            return Err(LogTableError::Form(text));
        }
        document_text(document.as_bytes()).map_err(|why| LogTableError::Form(format!("it {why}")))?;
        let document: Document = serde_json::from_str(document).map_err(|e| LogTableError::Form(e.to_string()))?;
        let mut entries = Vec::new();
        for entry in document.patterns {
            if entries.iter().any(|(known, ..): &(LogPattern, _, _)| known.id == entry.id) {
                return Err(LogTableError::Entry { id: entry.id, what: "the document has it twice".into() });
            }
            entries.push(checked(entry)?);
        }
        let is_kept = |(known, ..): &&(LogPattern, _, _)| entries.iter().all(|(new, ..)| new.id != known.id);
        let kept: Vec<_> = self.entries.iter().filter(is_kept).cloned().collect();
        if kept.len() + entries.len() > PATTERNS_MAX {
            let text = format!("with it the table would have more than {PATTERNS_MAX} entries");
            return Err(LogTableError::Form(text));
        }
        entries.extend(kept);
        self.entries = entries;
        Ok(())
    }

    /// Returns the first entry that fits a line.
    #[must_use]
    pub fn find(&self, line: &str) -> Option<Known<'_>> {
        self.entries.iter().enumerate().find_map(|(priority, (pattern, class, matcher))| {
            let found = matcher.find(line)?;
            Some(Known { priority, pattern, class, rank: found.rank })
        })
    }

    /// Returns the entries in the order in which they are tried.
    pub fn patterns(&self) -> impl Iterator<Item = &LogPattern> {
        self.entries.iter().map(|(pattern, ..)| pattern)
    }

    /// Returns a checksum of all entries (FNV-1a, 64 bits), by which the log of a job identifies the table.
    pub(super) fn checksum(&self) -> u64 {
        let text: String = self.patterns().map(|pattern| format!("{pattern:?}\n")).collect();
        text.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }
}

fn checked(entry: LogPattern) -> Result<(LogPattern, FaultClass, Pattern), LogTableError> {
    let problem = |what: String| LogTableError::Entry { id: entry.id.clone(), what };
    if entry.pattern.len() > PATTERN_BYTES_MAX {
        return Err(problem(format!("the pattern has more than {PATTERN_BYTES_MAX} bytes")));
    }
    let pattern = Pattern::parse(&entry.pattern).map_err(|what| problem(what.to_owned()))?;
    if (entry.blame == Blame::Named) != pattern.has_rank() {
        return Err(problem("a pattern has {rank} if, and only if, `blame` is `named`".into()));
    }
    if entry.confidence_permille > CONFIDENCE_MAX_PERMILLE {
        return Err(problem(format!("the confidence is above {CONFIDENCE_MAX_PERMILLE} permille")));
    }
    let class = entry.class.parse().map_err(|_| problem("the class is no valid name".into()))?;
    Ok((entry, class, pattern))
}
