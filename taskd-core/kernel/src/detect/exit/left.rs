//! Finds the rank that exited with code 0 before the others had finished; errors of ranks that waited for it are
//! consequences.
//!
//! Such a rank is blamed only if no other cause is known.

use crate::detect::{Damage, Evidence, Fault, FaultClass, Suspect};
use crate::job::{Domain, Generation, Name, Rank, Role};
use crate::state::{Proc, View};

/// Confidence that a finished rank explains why others failed or stalled; any other known cause has a higher one.
const LEFT_FIRST_PERMILLE: u16 = 600;

/// Maximum number of ranks that are named individually.
const NAMED_MAX: usize = 8;

/// Returns a fault for the rank of this generation that exited with code 0 while others had not finished; of several
/// the first to end, by the time of its report.
pub(in crate::detect) fn left_first(by: Name, view: &View, generation: Generation) -> Option<Fault> {
    let members = view.world.members().iter().filter_map(|(rank, member)| {
        let proc = view.proc(&Role::Rank(*rank)).filter(|proc| proc.incarnation == member.incarnation)?;
        (proc.generation == generation).then_some((*rank, proc))
    });
    let has_left = |proc: &Proc| proc.wanted && proc.phase.termination().is_some_and(|how| how.is_success());
    let (left, others): (Vec<_>, Vec<_>) = members.partition(|(_, proc)| has_left(proc));
    let (rank, proc) = left.into_iter().min_by_key(|(rank, proc)| (proc.ended_at, *rank))?;
    let others: Vec<Rank> = others.into_iter().map(|(rank, _)| rank).collect();
    if others.is_empty() {
        return None;
    }
    let domain = Domain::Process(Role::Rank(rank));
    let step = proc.last_step().map_or_else(String::new, |step| format!(" after step {step}"));
    let text =
        format!("{rank}{} exited first: code 0{step}, while {} had not finished", proc.incarnation, named(&others));
    let suspect = Suspect {
        domain,
        class: FaultClass::Exit,
        damage: Damage::default(), // the rank completed its work, so nothing is lost
        confidence_permille: LEFT_FIRST_PERMILLE,
    };
    let clue = Evidence { peers: others, ..Evidence::text("left_first", text) };
    Some(
        Fault::new(by, proc.ended_at.unwrap_or(view.now), suspect)
            .with_incarnation(Some(proc.incarnation))
            .with_evidence(clue),
    )
}

/// Formats ranks: `rank 3`, `ranks 0 and 2`, `ranks 0, 2 and 3`.
fn named(ranks: &[Rank]) -> String {
    let shown: Vec<String> = ranks.iter().take(NAMED_MAX).map(|rank| rank.0.to_string()).collect();
    match shown.split_last() {
        _ if ranks.len() > NAMED_MAX => format!("ranks {} and {} more", shown.join(", "), ranks.len() - NAMED_MAX),
        Some((last, before)) if !before.is_empty() => format!("ranks {} and {last}", before.join(", ")),
        _ => format!("rank {}", shown.join("")),
    }
}
