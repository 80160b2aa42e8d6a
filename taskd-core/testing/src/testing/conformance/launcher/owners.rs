//! Clauses about what survives an owner, and about hosts that are out of sight.

use super::session::Session;
use super::{
    DETACH_KEEPS, EXIT_EXACT, EXIT_ONCE, EXIT_OUTLIVES_OWNER, LIST_COMPLETE, OUT_OF_SIGHT_IS_NOT_ENDED, START_ONCE,
};
use crate::job::{NodeId, ProcId, Termination};
use crate::launch::{NodeState, Phase};
use std::time::Duration;

/// Run time of a process that exits while there is no owner, or while its host is out of sight.
const SHORT: Duration = Duration::from_millis(100);

pub(super) async fn check(s: &mut Session<'_>) {
    change_of_owner(s).await;
    hosts(s).await;
}

/// Checks that the next owner finds all processes after the owner has left while one process runs, one is about to
/// exit, and one has exited.
async fn change_of_owner(s: &mut Session<'_>) {
    let (runs, ends, ended) = (s.new_proc(), s.new_proc(), s.new_proc());
    let spec = (s.programs.runs)();
    let orders = [
        (runs.clone(), spec.clone()),
        (ends.clone(), (s.programs.exits)(SHORT, 3)),
        (ended.clone(), (s.programs.exits)(Duration::ZERO, 0)),
    ];
    s.attach().await;
    if !s.start(&orders).await {
        return;
    }
    s.exit_of(&ended, EXIT_ONCE).await;
    s.until(|s| s.phase(&runs) == Some(&Phase::Running)).await;
    let before = s.status(&runs).cloned();

    let gap = SHORT + s.limits.settle;
    let handed_over = s.change_owner(gap).await;
    s.settle().await; // the old cursor, if it is still served
    s.attach().await;
    for proc in [&ends, &ended] {
        if s.status(proc).is_none() {
            s.broken(EXIT_OUTLIVES_OWNER, format!("{proc} has ended, and the next owner does not list it"));
        }
    }
    match (before, s.status(&runs).cloned()) {
        (_, now) if handed_over && now.as_ref().is_none_or(|now| now.phase.is_over()) => {
            let now = now.map_or_else(|| "nothing".into(), |now| now.phase.to_string());
            s.broken(DETACH_KEEPS, format!("{runs} ran when it was handed over, and the next owner lists it as {now}"));
        }
        (_, None) => s.broken(LIST_COMPLETE, format!("{runs} ran, and the next owner does not list it")),
        (Some(old), Some(new)) if old.instance != new.instance => {
            s.broken(START_ONCE, format!("{runs} was {} and is {} for the next owner", old.instance, new.instance));
        }
        _ => {}
    }
    for (proc, code) in [(&ends, 3), (&ended, 0)] {
        let how = s.exit_of(proc, EXIT_OUTLIVES_OWNER).await;
        if let Some(how) = how.filter(|how| *how != Termination::Code(code)) {
            s.broken(EXIT_EXACT, format!("{proc} ended with exit code {code}; the next owner received {how}"));
        }
    }
    s.start(&[(runs.clone(), spec)]).await;
    s.settle().await;

    s.acknowledge(&[ends, ended]).await;
    s.change_owner(Duration::ZERO).await;
    s.attach().await;
    s.finish(&[runs]).await;
    s.settle().await;
}

/// Checks the reports about a host that goes out of sight while one of its processes exits and one runs, comes back,
/// and then leaves the job.
async fn hosts(s: &mut Session<'_>) {
    let Some(hosts) = &s.programs.hosts else {
        return s.verdict.skip(OUT_OF_SIGHT_IS_NOT_ENDED, "no way was given to take a host out of sight");
    };
    let (runs, ends) = (s.new_proc(), s.new_proc());
    s.attach().await;
    if !s.run(&runs, (s.programs.runs)()).await {
        return;
    }
    let Some(node) = s.status(&runs).and_then(|status| status.node.clone()) else {
        return s.broken(super::LIST_HOSTS, format!("{runs} runs, and its host is not listed"));
    };
    if !s.run(&ends, (s.programs.exits)(SHORT, 0)).await {
        return;
    }

    hosts.hide(&node).await;
    s.until(|s| s.node(&node).is_some_and(|n| n.state == NodeState::OutOfSight)).await;
    let hidden = |proc: &&ProcId| s.status(proc).is_some_and(|p| p.node.as_ref() == Some(&node) && !p.phase.is_over());
    let hidden: Vec<ProcId> = [&runs, &ends].into_iter().filter(hidden).cloned().collect();
    tokio::time::sleep(SHORT).await;
    s.settle().await;
    still_running(s, &hidden, &node).await;
    hosts.show(&node).await;
    s.exit_of(&ends, EXIT_ONCE).await;
    hosts.remove(&node).await;
    s.exit_of(&runs, EXIT_ONCE).await;
    s.acknowledge(&[runs, ends]).await;
}

async fn still_running(s: &mut Session<'_>, procs: &[ProcId], node: &NodeId) {
    let listing = s.list().await;
    for proc in procs {
        let listed = listing.procs.iter().find(|status| status.proc == *proc).map(|status| status.phase.clone());
        let reported = s.phase(proc).cloned();
        for phase in [reported, listed].into_iter().flatten().filter(Phase::is_over) {
            s.broken(
                OUT_OF_SIGHT_IS_NOT_ENDED,
                format!("{proc} was reported as {phase} while {node} was out of sight"),
            );
        }
    }
}
