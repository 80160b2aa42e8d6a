//! The clause about launchers around others: every call reaches the inner launcher.

use super::CALLS_REACH_INNER;
use super::session::{Session, batch};
use crate::job::CommandId;
use crate::launch::{Directive, DirectiveBatch};
use crate::testing::doubles::counted::LAUNCHER_METHODS;
use std::time::Duration;
use tokio::time::timeout;

/// Makes those calls that need a process and that no other clause makes.
pub(super) async fn direct(s: &mut Session<'_>) {
    let (proc, spec) = (s.new_proc(), (s.programs.runs)());
    let world = batch(&[(proc.clone(), spec.clone())]).world;
    s.attach().await;
    if s.programs.calls.is_none() || !s.run(&proc, spec).await {
        return;
    }
    let directives = DirectiveBatch::new(world, vec![(proc.clone(), Directive::Abort {})]);
    let (launcher, patience) = (s.launcher(), s.limits.patience);
    let answer = timeout(patience, launcher.send_directives(CommandId(u64::MAX), &directives)).await;
    if s.programs.calls.as_ref().is_some_and(|calls| calls.of("send_directives") == 0) {
        let answer = answer.map(|answer| answer.err().map(|error| format!(" ({error})")));
        s.broken(CALLS_REACH_INNER, missed("send_directives") + &answer.ok().flatten().unwrap_or_default());
    }
    drop(launcher);
    s.finish(&[proc]).await;
}

/// Makes the remaining calls that no clause makes, and checks which calls have arrived. It comes last, because it stops
/// everything.
pub(super) fn check(s: &mut Session<'_>) {
    let Some(calls) = s.programs.calls.clone() else {
        return s.verdict.skip(CALLS_REACH_INNER, "no calls of a launcher inside were given to count");
    };
    let launcher = s.launcher();
    launcher.info();
    launcher.begin_shutdown(Duration::ZERO);
    for method in calls.missing(&LAUNCHER_METHODS).filter(|method| *method != "send_directives") {
        s.broken(CALLS_REACH_INNER, missed(method));
    }
}

fn missed(method: &str) -> String {
    format!("`{method}` was called and never reached the launcher inside")
}
