//! Clauses about reported state: listings and changes are consistent, for every caller, even if a call is dropped.

use super::session::{Session, comes_about, polled};
use super::{
    CALLS_AT_ONCE, EXIT_KEPT, LIST_COMPLETE, LIST_THEN_WATCH, WATCH_CALLER_HOLDS_PLACE, WATCH_CANCEL_SAFE, WATCH_STALE,
};
use crate::job::ProcId;
use crate::launch::{LaunchError, Listing, Revision};
use std::time::Duration;
use tokio::time::timeout;

/// Largest number of awaits after which a `watch` is dropped.
const DROPS: u32 = 6;
/// Run time of a process that exits by itself while it is observed.
const SHORT: Duration = Duration::from_millis(50);
const NOTHING: &str = "nothing";
/// Number of concurrent watchers.
const WATCHERS: usize = 3;

pub(super) async fn check(s: &mut Session<'_>) {
    listings(s).await;
    same_for_all_watchers(s).await;
    cursors(s).await;
    dropped_watch(s).await;
    at_once(s).await;
}

/// Checks that listings taken at several moments, each followed by the later changes, lead to the same state.
async fn listings(s: &mut Session<'_>) {
    let (runs, ends) = (s.new_proc(), s.new_proc());
    let ours = [runs.clone(), ends.clone()];
    s.attach().await;
    let mut listings = vec![s.list().await];
    let orders = [(runs.clone(), (s.programs.runs)()), (ends.clone(), (s.programs.exits)(SHORT, 0))];
    if !s.start(&orders).await {
        return;
    }
    listings.push(s.list().await);
    s.exit_of(&ends, super::EXIT_ONCE).await;
    listings.push(s.list().await);
    for proc in &ours {
        if !listings[2].procs.iter().any(|status| status.proc == *proc) {
            let clause = if s.exit(proc).is_some() { EXIT_KEPT } else { LIST_COMPLETE };
            s.broken(clause, format!("{proc} was started and is not listed"));
        }
    }
    let launcher = s.launcher();
    s.call(super::STOP_ENDS, "`stop`", launcher.stop(&ours, s.limits.grace)).await;
    s.exit_of(&runs, super::STOP_ENDS).await;
    s.settle().await;
    let last = s.list().await;
    for listing in listings {
        compare(s, listing, &last, &ours, super::LIST_THEN_WATCH).await;
    }
    s.acknowledge(&ours).await;
}

/// Follows the changes after `listing` up to the revision of `last`, and compares the processes' phases with `last`.
async fn compare(s: &mut Session<'_>, listing: Listing, last: &Listing, procs: &[ProcId], clause: super::Clause) {
    let from = listing.revision;
    s.attach_to(listing);
    s.until(|s| s.from() >= last.revision || s.from().epoch != from.epoch).await;
    for proc in procs {
        let listed = last.procs.iter().find(|status| status.proc == *proc).map(|status| status.phase.to_string());
        let outcome = s.phase(proc).map(ToString::to_string);
        if outcome != listed {
            let show = |phase: Option<String>| phase.unwrap_or_else(|| NOTHING.into());
            let seen = format!("from {}: {proc} was reported as {}, and is listed as ", from.seq, show(outcome));
            s.broken(clause, seen + &show(listed));
        }
    }
}

/// Checks that one cursor, used again and by several callers at once, returns the same changes each time.
async fn same_for_all_watchers(s: &mut Session<'_>) {
    let proc = s.new_proc();
    s.attach().await;
    let from = s.from();
    if !s.run(&proc, (s.programs.runs)()).await {
        return;
    }
    let (launcher, patience) = (s.launcher(), s.limits.patience);
    let ask = || timeout(patience, launcher.watch(from));
    let answers = [ask().await, ask().await].into_iter().chain(<[_; 2]>::from(tokio::join!(ask(), ask())));
    let firsts: Vec<String> = answers
        .map(|answer| match answer {
            Ok(Ok((changes, _))) => format!("{:?}", changes.first()),
            Ok(Err(error)) => error.to_string(),
            Err(_) => NOTHING.to_owned(),
        })
        .collect();
    if let Some(other) = firsts.iter().find(|other| *other == NOTHING || **other != firsts[0]) {
        let seen = format!("{} was answered with {}, and another time with {other}", from.seq, firsts[0]);
        s.broken(WATCH_CALLER_HOLDS_PLACE, seen);
    }
    s.finish(&[proc]).await;
}

/// Checks that `watch` refuses cursors that the launcher cannot serve: of another history, and of the future.
async fn cursors(s: &mut Session<'_>) {
    s.attach().await;
    let Revision { epoch, seq } = s.from();
    let foreign = Revision { epoch: epoch ^ 0x5eed, seq };
    let future = Revision { epoch, seq: seq.saturating_add(1_000_000) };
    for (what, cursor) in [("another history", foreign), ("the future", future)] {
        let launcher = s.launcher();
        let answer = timeout(s.limits.patience, launcher.watch(cursor)).await;
        if !matches!(answer, Ok(Err(LaunchError::Stale))) {
            let seen = answer.map_or(NOTHING.to_owned(), |answer| format!("{answer:?}"));
            s.broken(WATCH_STALE, format!("a cursor of {what} was answered with {seen}"));
        }
    }
}

/// Checks that no change is lost if a `watch` is dropped at its first await, at its second, and so on, before and after
/// a change.
async fn dropped_watch(s: &mut Session<'_>) {
    let proc = s.new_proc();
    if !s.run(&proc, (s.programs.runs)()).await {
        return;
    }
    s.settle().await;
    let start = s.list().await;
    let (launcher, patience) = (s.launcher(), s.limits.patience);
    let mut waiting = launcher.watch(start.revision);
    let early = timeout(patience, polled(&mut waiting, 1)).await;
    s.call(super::STOP_ENDS, "`stop`", launcher.stop(std::slice::from_ref(&proc), s.limits.grace)).await;
    if !listed_as_exited(s, &proc).await {
        return s.broken(super::STOP_ENDS, format!("{proc} was stopped and is not listed as exited"));
    }
    if matches!(early, Ok(None)) {
        let _ = timeout(patience, polled(&mut waiting, 1)).await;
    }
    drop(waiting);
    for awaits in 1..=DROPS {
        let _ = timeout(patience, polled(&mut launcher.watch(start.revision), awaits)).await;
    }
    let last = s.list().await;
    compare(s, start, &last, std::slice::from_ref(&proc), WATCH_CANCEL_SAFE).await;
    s.acknowledge(&[proc]).await;
}

async fn listed_as_exited(s: &mut Session<'_>, proc: &ProcId) -> bool {
    let deadline = tokio::time::Instant::now() + s.limits.patience;
    while tokio::time::Instant::now() < deadline {
        if s.list().await.procs.iter().any(|status| status.proc == *proc && status.phase.is_exited()) {
            return true;
        }
        comes_about(SHORT, || false).await;
    }
    false
}

/// Checks that, while several tasks wait in `watch`, all other calls work, and that every waiting task receives the
/// changes.
async fn at_once(s: &mut Session<'_>) {
    let proc = s.new_proc();
    s.settle().await;
    s.attach().await;
    let (launcher, from, patience) = (s.launcher(), s.from(), s.limits.patience);
    let mut watchers = tokio::task::JoinSet::new();
    for _ in 0..WATCHERS {
        let launcher = s.launcher();
        watchers.spawn(async move { launcher.watch(from).await });
    }
    tokio::task::yield_now().await;
    let orders = super::session::batch(&[(proc.clone(), (s.programs.runs)())]);
    let started = s.call(CALLS_AT_ONCE, "`start` beside a `watch`", launcher.start(&orders)).await;
    s.call(CALLS_AT_ONCE, "`list` beside a `watch`", launcher.list()).await;
    let stranger = s.new_proc();
    s.call(CALLS_AT_ONCE, "`stop` beside a `watch`", launcher.stop(std::slice::from_ref(&stranger), patience)).await;
    s.call(CALLS_AT_ONCE, "`acknowledge` beside a `watch`", launcher.acknowledge(&[stranger])).await;
    while let Ok(Some(outcome)) = timeout(patience, watchers.join_next()).await {
        if let Ok(Err(error)) = outcome {
            s.broken(LIST_THEN_WATCH, format!("a `watch` beside others failed: {error}"));
        }
    }
    if !watchers.is_empty() && started.is_some() {
        s.broken(CALLS_AT_ONCE, format!("{} of {WATCHERS} callers of `watch` received no changes", watchers.len()));
    }
    watchers.shutdown().await;
    if started.is_some() {
        s.finish(&[proc]).await;
    }
}
