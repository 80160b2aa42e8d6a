//! A host program is killed, and its job is kept: it trains on, the next one attaches within a second, and no exit that
//! happened in between is lost or seen twice.

use crate::harness::{soak, tests};
use crate::host::*;
use crate::support::*;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use taskd_core::job::Rank;
use taskd_core::kernel::{JobReport, Outcome};
use taskd_core::launch::OnOwnerLoss;

tests![successor_of_a_killed_host_program_misses_nothing,];

const RANKS: u32 = 4;
/// Half of the host programs that come must have their job by then, on a machine that does other things as well.
const ATTACHED_WITHIN: Duration = Duration::from_secs(1);

/// Is the host program.
pub(crate) fn run(life: &str, dir: &Path) -> ExitCode {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let report = tokio.block_on(async {
        let launcher = launcher(dir, OnOwnerLoss::Keep { at_most: Duration::from_secs(60) }).await;
        let runtime = runtime(dir, TRAIN, RANKS, launcher);
        std::fs::write(dir.join(format!("attached-{life}")), "").unwrap();
        runtime.run().await
    });
    std::fs::write(dir.join("report"), serde_json::to_string(&report).unwrap()).unwrap();
    report.outcome.into()
}

/// Which ranks are killed without a supervisor: none, one, or two.
fn victims(life: u32) -> Vec<u32> {
    [vec![], vec![life % RANKS], vec![life % RANKS, (life + 1) % RANKS]][life as usize % 3].clone()
}

async fn successor_of_a_killed_host_program_misses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let lives = if soak() { 50 } else { 5 };
    let mut kills: BTreeMap<Rank, u32> = BTreeMap::new();
    let mut attached_after = Vec::new();
    let mut incarnation = 1;
    for life in 1..=lives {
        let begun = Instant::now();
        let host = Host::start(&["kept", &life.to_string(), dir.to_str().unwrap()]);
        eventually("it has its job", || dir.join(format!("attached-{life}")).exists().then_some(())).await;
        attached_after.push(begun.elapsed());
        eventually("all ranks are of the latest start", || {
            (0..RANKS)
                .all(|rank| rank_of(dir, rank).is_some_and(|(i, pid)| i == incarnation && is_alive(pid)))
                .then_some(())
        })
        .await;
        goes_on(dir, life % RANKS).await;
        host.kill();

        let victims = victims(life);
        for rank in &victims {
            send(rank_of(dir, *rank).unwrap().1, Signal::KILL);
            *kills.entry(Rank(*rank)).or_default() += 1;
        }
        for rank in (0..RANKS).filter(|rank| !victims.contains(rank)) {
            goes_on(dir, rank).await;
        }
        incarnation += u32::from(!victims.is_empty());
    }
    let last = Host::start(&["kept", "last", dir.to_str().unwrap()]);
    let up = || (0..RANKS).all(|rank| rank_of(dir, rank).is_some_and(|(i, pid)| i == incarnation && is_alive(pid)));
    eventually("the last one has the whole job", || up().then_some(())).await;
    std::fs::write(dir.join("finish"), "").unwrap();
    assert_eq!(last.code(PATIENCE).await, Some(0));

    let report: JobReport = serde_json::from_str(&std::fs::read_to_string(dir.join("report")).unwrap()).unwrap();
    let mut blamed: BTreeMap<Rank, u32> = BTreeMap::new();
    for rank in report.incidents.iter().flat_map(|incident| &incident.blamed) {
        *blamed.entry(*rank).or_default() += 1;
    }
    assert_eq!((report.outcome, blamed), (Outcome::Completed, kills));
    assert_eq!(report.restarts, incarnation - 1);
    attached_after.sort();
    let (median, longest) = (attached_after[attached_after.len() / 2], attached_after[attached_after.len() - 1]);
    println!(
        "{lives} hosts killed, {} restarts; the next had its job after {median:?}, at most {longest:?}",
        report.restarts
    );
    assert!(median < ATTACHED_WITHIN);
}
