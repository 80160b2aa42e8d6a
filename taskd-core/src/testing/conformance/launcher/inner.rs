//! The clause about launchers around others: what the launcher inside can do is not lost on the way.

use super::CALLS_REACH_INNER;
use super::session::{Session, batch};
use crate::job::CommandId;
use crate::launch::{DirectBatch, Directive};
use crate::testing::doubles::counted::LAUNCHER_METHODS;
use std::time::Duration;
use tokio::time::timeout;

/// Makes those calls that need a process, and that no other clause makes.
pub(super) async fn direct(s: &mut Session<'_>) {
    let (proc, spec) = (s.new_proc(), (s.programs.runs)());
    let world = batch(&[(proc.clone(), spec.clone())]).world;
    s.attach().await;
    if s.programs.calls.is_none() || !s.run(&proc, spec).await {
        return;
    }
    let told = DirectBatch { world, orders: vec![(proc.clone(), Directive::GiveUp {})] };
    let (launcher, patience) = (s.launcher(), s.limits.patience);
    let answer = timeout(patience, launcher.direct(CommandId(u64::MAX), &told)).await;
    if s.programs.calls.as_ref().is_some_and(|calls| calls.of("direct") == 0) {
        let answer = answer.map(|answer| answer.err().map(|error| format!(" ({error})")));
        s.broken(CALLS_REACH_INNER, missed("direct") + &answer.ok().flatten().unwrap_or_default());
    }
    drop(launcher);
    s.finish(&[proc]).await;
}

/// Makes the other calls that no clause makes, and looks which of all have arrived. It comes last: everything stops.
pub(super) fn check(s: &mut Session<'_>) {
    let Some(calls) = s.programs.calls.clone() else {
        return s.verdict.skip(CALLS_REACH_INNER, "no calls of a launcher inside were given to count");
    };
    let launcher = s.launcher();
    launcher.info();
    launcher.wind_down(Duration::ZERO);
    for method in calls.missing(&LAUNCHER_METHODS).filter(|method| *method != "direct") {
        s.broken(CALLS_REACH_INNER, missed(method));
    }
}

fn missed(method: &str) -> String {
    format!("`{method}` was called and never reached the launcher inside")
}
