//! The correct engines pass; for every clause, an engine that breaks it fails exactly that clause.

mod broken;
mod leased;

use super::*;
use crate::consensus::Single;
use broken::{Broken, Shared};
use leased::{LIMIT, Leased};
use std::sync::Arc;

/// On paused time: longer than the failover of the tests' engine.
const PATIENCE: Duration = Duration::from_secs(60);

fn suite(shared: &Arc<Shared>) -> ConsensusSuite<'_> {
    let suite = consensus(async |host| Broken::new(host, Arc::clone(shared)))
        .with_kill(async |host| shared.kill(host))
        .with_cut(async |host| shared.cut(host), async |host| shared.leased.reconnect(host));
    suite.with_patience(PATIENCE).with_limit(LIMIT)
}

#[tokio::test(start_paused = true)]
async fn an_engine_without_standby_passes_every_applicable_clause() {
    let single = Single::default();
    let report = consensus(async |_| single.clone()).assert().await;
    let skipped: Vec<Clause> = report.skipped().iter().map(|(clause, _)| *clause).collect();
    assert_eq!(skipped, [FAILOVER, WRITTEN_SURVIVES, MAJORITY_ONLY, READ_UNAVAILABLE, READ_NEVER_OLD]);
    assert_eq!(report.checked().len() + skipped.len(), ALL.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_passes_in_real_time_and_on_several_threads() {
    let single = Single::default();
    consensus(async |_| single.clone()).with_settle(Duration::from_millis(10)).assert().await;
}

#[tokio::test(start_paused = true)]
async fn an_engine_with_leases_passes_every_clause() {
    let leased = Leased::new();
    let report = consensus(async |host| leased.handle(host))
        .with_kill(async |host| leased.kill(host))
        .with_cut(async |host| leased.cut(host), async |host| leased.reconnect(host))
        .with_limit(LIMIT)
        .assert()
        .await;
    assert_eq!(report.skipped(), []);
    assert_eq!(report.checked(), ALL);
}

#[tokio::test(start_paused = true)]
async fn every_clause_convicts_exactly_the_engine_that_breaks_it() {
    let mut wrong = Vec::new();
    for clause in ALL {
        let shared = Shared::new(*clause);
        let found = suite(&shared).check().await;
        let broken = found.map_or_else(|violations| violations, |_| Vec::new());
        if broken.iter().map(|violation| violation.clause).ne([*clause]) {
            let seen: Vec<String> = broken.iter().map(ToString::to_string).collect();
            wrong.push(format!("{clause}: {seen:#?}"));
        }
    }
    assert!(wrong.is_empty(), "engines that break one clause were convicted of others:\n{}", wrong.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn a_clause_that_the_caller_excludes_is_reported_as_skipped() {
    let shared = Shared::new(WRITE_BOUND);
    let report = suite(&shared).without(WRITE_BOUND, "records of this engine have no bound").assert().await;
    let reason = "records of this engine have no bound".to_owned();
    assert_eq!(report.skipped(), [(WRITE_BOUND, reason)]);
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the consensus engine breaks 1 of its contract's clauses:\n  consensus::WATCH_NEWS: ")]
async fn an_assertion_lists_what_was_broken() {
    let shared = Shared::new(WATCH_NEWS);
    suite(&shared).assert().await;
}
