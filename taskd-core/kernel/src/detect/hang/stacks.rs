//! Blames that wait for the stacks of their suspects, for a bounded time.
//!
//! A stack is evidence only: it changes no verdict.

use super::verdict::Culprit;
use crate::detect::Evidence;
use crate::job::{Domain, JobTime, Rank, Role, printable};
use crate::trace::{ProbeReply, ProbeResult};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of ranks for which stacks are requested for one blame.
pub(super) const STACKS_MAX: usize = 4;
/// Maximum length of a stack in the evidence, in characters. A longer one is cut.
const STACK_CHARS_MAX: usize = 4_000;

/// Culprits of one look, until the stacks of the suspects have arrived or are overdue.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Held {
    /// Number of the probe.
    pub(super) tag: u64,
    /// Beginning of the look that found the culprits.
    pub(super) at: JobTime,
    /// Time at which the wait ends.
    pub(super) due: JobTime,
    pub(super) culprits: Vec<Culprit>,
    missing: BTreeSet<u32>,
    stacks: BTreeMap<u32, String>,
}

impl Held {
    pub(super) fn new(culprits: Vec<Culprit>, asked: BTreeSet<u32>, tag: u64, at: JobTime, due: JobTime) -> Held {
        Held { tag, at, due, culprits, missing: asked, stacks: BTreeMap::new() }
    }

    /// Adds a reply. Returns true if it was the last missing one.
    pub(super) fn answered(&mut self, rank: Rank, evidence: &ProbeReply) -> bool {
        if evidence.tag != self.tag || !self.missing.remove(&rank.0) {
            return false;
        }
        let text = match &evidence.result {
            ProbeResult::Text(stack) => format!("stack of {rank}: {}", cut(stack)),
            ProbeResult::Unavailable(why) => format!("the stack of {rank} is not known: {}", cut(why)),
            _ => format!("the stack of {rank} did not arrive in time"),
        };
        self.stacks.insert(rank.0, text);
        self.missing.is_empty()
    }

    /// Returns the stack of a culprit, or the reason why there is none; `None` if it was not requested.
    pub(super) fn evidence(&self, rank: Rank) -> Option<Evidence> {
        let late = || self.missing.contains(&rank.0).then(|| format!("the stack of {rank} did not arrive in time"));
        let text = self.stacks.get(&rank.0).cloned().or_else(late)?;
        Some(Evidence::text("hang_stack", text))
    }

    /// Removes a culprit that is none any more. Returns true if it was held.
    pub(super) fn drop_culprit(&mut self, domain: &Domain) -> bool {
        let before = self.culprits.len();
        self.culprits.retain(|culprit| Domain::Process(Role::Rank(culprit.rank)) != *domain);
        self.culprits.len() < before
    }
}

/// Makes foreign text printable, in one line of bounded length.
fn cut(text: &str) -> String {
    let text = printable(text);
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = line.char_indices().nth(STACK_CHARS_MAX) {
        line.truncate(end);
        line.push('…');
    }
    line
}
