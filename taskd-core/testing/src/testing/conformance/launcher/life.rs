//! Clauses about one process: it starts once, ends once, and can be stopped in every state.

use super::session::{Session, batch, comes_about, polled};
use super::{
    ACKNOWLEDGE_UNKNOWN_IS_FINE, CALLS_AT_ONCE, DROP_BREAKS_NOTHING, EXIT_EXACT, EXIT_KEPT, EXIT_OF_FAILED_START,
    EXIT_ONCE, LIST_COMPLETE, PREPARE_STARTS_NOTHING, REFUSED_IS_FINAL, START_ALL_OR_NOTHING, START_NEVER_AGAIN,
    START_ONCE, START_ONLY_ACCEPTS, STOP_BY_FORCE, STOP_ENDS, STOP_GRACE, STOP_ONLY_BEGINS, STOP_UNKNOWN_IS_FINE,
    STOP_WHOLE_TREE, Witnessed,
};
use crate::job::{ProcId, Termination, WorkerSpec};
use crate::launch::{LaunchError, PrepareOptions, ProcStatus};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// Number of concurrent calls.
const AT_ONCE: usize = 8;
/// Largest number of awaits after which a call is dropped.
const DROPS: u32 = 4;

pub(super) async fn check(s: &mut Session<'_>) {
    exits(s).await;
    prepares(s).await;
    starts_once(s).await;
    starts_at_once(s).await;
    failing_starts(s).await;
    stops(s).await;
    force(s).await;
    tree(s).await;
    drops(s).await;
}

/// Checks the exits of a rank and a service with two codes: each is reported exactly and once, is kept until
/// acknowledged, and causes no further start.
async fn exits(s: &mut Session<'_>) {
    let ended: Vec<(ProcId, i32)> = [0, 3, 0].into_iter().map(|code| (s.new_proc(), code)).collect();
    let orders: Vec<(ProcId, WorkerSpec)> =
        ended.iter().map(|(proc, code)| (proc.clone(), (s.programs.exits)(Duration::ZERO, *code))).collect();
    let procs: Vec<ProcId> = ended.iter().map(|(proc, _)| proc.clone()).collect();
    if !s.start(&orders).await {
        return;
    }
    for (proc, code) in &ended {
        let how = s.exit_of(proc, EXIT_ONCE).await;
        if let Some(how) = how.filter(|how| *how != Termination::Code(*code)) {
            s.broken(EXIT_EXACT, format!("{proc} ended with exit code {code} and was reported as {how}"));
        }
    }
    s.settle().await;
    exits_are_listed(s, &procs).await;
    s.start(&orders).await;
    s.settle().await;
    exits_are_listed(s, &procs).await;

    s.acknowledge(&procs).await;
    s.acknowledge(&procs).await;
    let stranger = s.new_proc();
    s.acknowledge(&[stranger]).await;
    s.list().await;
    s.start(&orders).await;
    s.settle().await;
    let lives = |status: &&ProcStatus| procs.contains(&status.proc) && !status.phase.is_exited();
    for status in s.list().await.procs.iter().filter(lives) {
        s.broken(START_NEVER_AGAIN, format!("{} is listed as {} after a second start", status.proc, status.phase));
    }
}

async fn exits_are_listed(s: &mut Session<'_>, procs: &[ProcId]) {
    let listing = s.list().await;
    for proc in procs.iter().filter(|proc| s.exit(proc).is_some()).cloned().collect::<Vec<_>>() {
        match listing.procs.iter().find(|status| status.proc == proc) {
            Some(listed) if Some(listed) == s.status(&proc) => {}
            Some(listed) => {
                let clause = if listed.phase.is_exited() { EXIT_EXACT } else { START_ONCE };
                let phase = s.phase(&proc).map(ToString::to_string).unwrap_or_default();
                s.broken(clause, format!("{proc} was reported as {phase} and is listed as {}", listed.phase));
            }
            None => s.broken(EXIT_KEPT, format!("the exit of {proc} is not listed, and has not been acknowledged")),
        }
    }
}

/// Checks that a process that was only prepared does not exist, and can be started like any other.
async fn prepares(s: &mut Session<'_>) {
    let (program, proc) = (counted(s), s.new_proc());
    let (launcher, order) = (s.launcher(), batch(&[(proc.clone(), program.spec.clone())]));
    let options = PrepareOptions::new(); // its programs have no step loop: none may be pre-warmed
    let prepared = launcher.prepare(&order, &options);
    s.call(PREPARE_STARTS_NOTHING, "preparing for a process", prepared).await;
    drop(launcher);
    s.settle().await;
    if let Some(status) = s.list().await.procs.iter().find(|status| status.proc == proc) {
        s.broken(PREPARE_STARTS_NOTHING, format!("{proc} was not ordered and is listed as {}", status.phase));
    }
    if s.run(&proc, program.spec.clone()).await {
        started_once(s, &proc, &program, PREPARE_STARTS_NOTHING).await;
        s.finish(&[proc]).await;
    }
}

async fn starts_once(s: &mut Session<'_>) {
    let (program, proc) = (counted(s), s.new_proc());
    if !s.run(&proc, program.spec.clone()).await {
        return;
    }
    if !s.list().await.procs.iter().any(|status| status.proc == proc) {
        s.broken(LIST_COMPLETE, format!("{proc} runs and is not listed"));
    }
    s.start(&[(proc.clone(), program.spec.clone())]).await;
    s.settle().await;
    started_once(s, &proc, &program, START_ONCE).await;
    s.finish(&[proc]).await;
}

async fn starts_at_once(s: &mut Session<'_>) {
    let (program, proc) = (counted(s), s.new_proc());
    let order = batch(&[(proc.clone(), program.spec.clone())]);
    let mut calls = JoinSet::new();
    for _ in 0..AT_ONCE {
        let (launcher, order) = (s.launcher(), order.clone());
        calls.spawn(async move { launcher.start(&order).await });
    }
    while let Ok(Some(done)) = timeout(s.limits.patience, calls.join_next()).await {
        if let Ok(Err(error)) = done {
            s.broken(CALLS_AT_ONCE, format!("one of {AT_ONCE} starts of {proc} at once failed: {error}"));
        }
    }
    if !calls.is_empty() {
        s.broken(CALLS_AT_ONCE, format!("{} of {AT_ONCE} starts of {proc} at once did not return", calls.len()));
        calls.shutdown().await;
    }
    if s.run(&proc, program.spec.clone()).await {
        s.settle().await;
        started_once(s, &proc, &program, CALLS_AT_ONCE).await;
        s.finish(&[proc]).await;
    }
}

/// Returns a program whose starts can be counted, or, if the caller provided none, one that runs and counts as one
/// start.
fn counted(s: &Session<'_>) -> Witnessed {
    let runs = || Witnessed::new((s.programs.runs)(), || 1);
    s.programs.counted.as_ref().map_or_else(runs, |counted| counted())
}

async fn started_once(s: &mut Session<'_>, proc: &ProcId, program: &Witnessed, clause: super::Clause) {
    comes_about(s.limits.patience, || program.count() >= 1).await;
    let count = program.count();
    if count != 1 {
        s.broken(clause, format!("{proc} was ordered several times and has been started {count} times"));
    }
}

/// Starts each program that cannot be started, in one batch with one that can.
async fn failing_starts(s: &mut Session<'_>) {
    let (mut refusals, mut accepted) = (0, 0);
    for spec in s.programs.unstartable.clone() {
        let (good, bad) = (s.new_proc(), s.new_proc());
        let orders = [(good.clone(), (s.programs.runs)()), (bad.clone(), spec)];
        let launcher = s.launcher();
        match timeout(s.limits.patience, launcher.start(&batch(&orders))).await {
            Err(_) => s.broken(START_ONLY_ACCEPTS, format!("`start` with {bad} in it did not return")),
            Ok(Ok(())) => {
                accepted += 1;
                let how = s.exit_of(&bad, EXIT_OF_FAILED_START).await;
                if how.is_some_and(Termination::is_success) {
                    s.broken(EXIT_EXACT, format!("{bad} was never started and was reported as a success"));
                }
            }
            Ok(Err(error)) => {
                refusals += u32::from(matches!(error, LaunchError::Refused(_)));
                refused(s, &orders, &error).await;
            }
        }
        s.settle().await;
        s.run(&good, orders[0].1.clone()).await; // whatever the result of the batch, the order itself can be repeated
        s.finish(&[good]).await;
        s.acknowledge(&[bad]).await;
    }
    if accepted == 0 {
        s.verdict.skip(EXIT_OF_FAILED_START, "no program was given that is accepted and then cannot be started");
    }
    if refusals == 0 {
        let why = "no program was given that `start` refuses";
        s.verdict.skip(START_ALL_OR_NOTHING, why);
        s.verdict.skip(REFUSED_IS_FINAL, why);
    }
}

async fn refused(s: &mut Session<'_>, orders: &[(ProcId, WorkerSpec)], first: &LaunchError) {
    s.settle().await;
    let listing = s.list().await;
    for (proc, _) in orders {
        if s.status(proc).is_some() || listing.procs.iter().any(|status| status.proc == *proc) {
            s.broken(START_ALL_OR_NOTHING, format!("`start` failed ({first}), and {proc} was started"));
        }
    }
    let launcher = s.launcher();
    let again = timeout(s.limits.patience, launcher.start(&batch(orders))).await;
    if matches!(first, LaunchError::Refused(_)) && !matches!(again, Ok(Err(LaunchError::Refused(_)))) {
        s.broken(
            REFUSED_IS_FINAL,
            format!("`start` was refused ({first}), and the same call again returned {again:?}"),
        );
    }
}

async fn stops(s: &mut Session<'_>) {
    let (proc, stranger) = (s.new_proc(), s.new_proc());
    let launcher = s.launcher();
    s.call(STOP_UNKNOWN_IS_FINE, "`stop` of the unknown", launcher.stop(&[stranger], s.limits.grace)).await;
    if !s.run(&proc, (s.programs.runs)()).await {
        return;
    }
    s.call(STOP_ENDS, "`stop`", launcher.stop(std::slice::from_ref(&proc), s.limits.grace)).await;
    s.exit_of(&proc, STOP_ENDS).await;
    let dead = std::slice::from_ref(&proc);
    s.call(STOP_UNKNOWN_IS_FINE, "`stop` of the dead", launcher.stop(dead, s.limits.grace)).await;
    s.call(ACKNOWLEDGE_UNKNOWN_IS_FINE, "`acknowledge`", launcher.acknowledge(&[])).await;
    s.acknowledge(&[proc]).await;
}

/// Checks, with a process that resists, that `stop` returns at once and that the process is killed when the grace
/// period is over, and not before.
async fn force(s: &mut Session<'_>) {
    let Some(program) = s.programs.stubborn.as_ref().map(|stubborn| stubborn()) else {
        for clause in [STOP_ONLY_BEGINS, STOP_GRACE, STOP_BY_FORCE] {
            s.verdict.skip(clause, "no stubborn program was given");
        }
        return;
    };
    let proc = s.new_proc();
    if !s.run(&proc, program.spec.clone()).await {
        return;
    }
    comes_about(s.limits.patience, || program.count() >= 1).await;
    let (launcher, grace) = (s.launcher(), s.limits.grace);
    let began = Instant::now();
    s.call(STOP_ONLY_BEGINS, "`stop`", launcher.stop(std::slice::from_ref(&proc), grace)).await;
    let listing = s.list().await;
    let over = listing.procs.iter().any(|status| status.proc == proc && status.phase.is_over());
    if over && began.elapsed() >= grace {
        s.broken(STOP_ONLY_BEGINS, format!("`stop` returned after {:?}, when {proc} had ended", began.elapsed()));
    }
    let exit = s.exit_of(&proc, STOP_BY_FORCE).await;
    let nearly = grace.mul_f64(0.9); // timers may fire slightly early
    if exit.is_some() && began.elapsed() < nearly {
        s.broken(STOP_GRACE, format!("{proc} had {grace:?} of grace and was ended after {:?}", began.elapsed()));
    }
    s.acknowledge(&[proc]).await;
}

async fn tree(s: &mut Session<'_>) {
    let Some(program) = s.programs.tree.as_ref().map(|tree| tree()) else {
        return s.verdict.skip(STOP_WHOLE_TREE, "no program with descendants was given");
    };
    let proc = s.new_proc();
    if !s.run(&proc, program.spec.clone()).await {
        return;
    }
    comes_about(s.limits.patience, || program.count() >= 1).await;
    s.settle().await; // wait for the descendants
    let grown = program.count();
    s.finish(std::slice::from_ref(&proc)).await;
    let gone = comes_about(s.limits.grace + s.limits.patience, || program.count() == 0).await;
    if !gone {
        s.broken(STOP_WHOLE_TREE, format!("{proc} has ended; {} of its {grown} processes still run", program.count()));
    }
}

/// Drops each call of the launcher at its first await, then at its second, and so on, and checks that the repeated call
/// succeeds.
async fn drops(s: &mut Session<'_>) {
    for awaits in 1..=DROPS {
        let (program, proc) = (counted(s), s.new_proc());
        let (launcher, order) = (s.launcher(), batch(&[(proc.clone(), program.spec.clone())]));
        let patience = s.limits.patience;
        let dropped = timeout(patience, polled(&mut launcher.start(&order), awaits)).await;
        let started = s.start(&[(proc.clone(), program.spec.clone())]).await;
        let runs = started && s.until(|s| s.phase(&proc).is_some_and(|phase| phase.order() >= 1)).await;
        if !runs {
            let seen = format!("{proc} does not run, whose start was dropped ({dropped:?}) and repeated");
            s.broken(DROP_BREAKS_NOTHING, seen);
            continue;
        }
        s.settle().await;
        started_once(s, &proc, &program, DROP_BREAKS_NOTHING).await;

        let target = std::slice::from_ref(&proc);
        let _ = timeout(patience, polled(&mut launcher.stop(target, s.limits.grace), awaits)).await;
        s.call(DROP_BREAKS_NOTHING, "a repeated `stop`", launcher.stop(target, s.limits.grace)).await;
        s.exit_of(&proc, DROP_BREAKS_NOTHING).await;
        let _ = timeout(patience, polled(&mut launcher.acknowledge(target), awaits)).await;
        s.acknowledge(target).await;
    }
    s.list().await;
}
