//! Which rank has left the others first, and ended well: what those say who waited for it is a consequence of that.
//!
//! It never speaks against a rank while another cause is known.

use super::NAME;
use crate::detect::{Clue, Damage, Fault, FaultClass, Suspect};
use crate::job::{Domain, Generation, Rank, Role};
use crate::kernel::{Proc, View};

/// How sure it is that a rank which has finished explains that others failed or stand still: any cause that is known otherwise
/// explains more than it.
const LEFT_FIRST_PERMILLE: u16 = 600;

/// Most ranks that are named one by one.
const NAMED_MAX: usize = 8;

/// The rank of this generation that has ended well while others had not: of several the one that ended first, by when that was told.
pub(in crate::detect) fn left_first(view: &View, generation: Generation) -> Option<Fault> {
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
        format!("{rank}{} left first: exit code 0{step}, while {} had not finished", proc.incarnation, named(&others));
    let suspect = Suspect {
        domain,
        class: FaultClass::Exit,
        damage: Damage::default(), // it has done what it was to do: nothing of it is lost
        confidence_permille: LEFT_FIRST_PERMILLE,
    };
    let clue = Clue { peers: others, ..Clue::text("left_first", text) };
    Some(Fault::new(NAME, proc.ended_at.unwrap_or(view.now), suspect).of(Some(proc.incarnation)).because(clue))
}

/// `rank 3`, `ranks 0 and 2`, `ranks 0, 2 and 3`.
fn named(ranks: &[Rank]) -> String {
    let shown: Vec<String> = ranks.iter().take(NAMED_MAX).map(|rank| rank.0.to_string()).collect();
    match shown.split_last() {
        _ if ranks.len() > NAMED_MAX => format!("ranks {} and {} more", shown.join(", "), ranks.len() - NAMED_MAX),
        Some((last, before)) if !before.is_empty() => format!("ranks {} and {last}", before.join(", ")),
        _ => format!("rank {}", shown.join("")),
    }
}
