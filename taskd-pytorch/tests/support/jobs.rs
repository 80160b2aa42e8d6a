//! Worlds, batches and exits for tests of the launcher.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use taskd_core::job::{Counted, Exit, Incarnation, Member, ProcId, Rank, Role, WorkerSpec, World};
use taskd_core::launch::{
    Change, GuardProgram, Launcher, LocalLauncher, Phase, Place, Revision, StartBatch, StartOrder,
};
use taskd_pytorch::{Torch, TorchLauncher};

/// Everything that is waited for comes in far less, or the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn world(ranks: u32) -> World {
    let member = Member { incarnation: Incarnation(1), node: None, device: None };
    World::first((0..ranks).map(|rank| (Rank(rank), member.clone())).collect())
}

/// The world after a restart of all ranks.
pub(crate) fn restarted(world: &World) -> World {
    world.successor(Counted::Yes, |members| {
        members.values_mut().for_each(|member| member.incarnation = member.incarnation.next());
    })
}

/// Orders for all ranks of a world, each with its specification.
pub(crate) fn batch(world: &World, spec: impl Fn(Rank) -> WorkerSpec) -> StartBatch {
    let order = |(rank, member): (&Rank, &Member)| {
        StartOrder::new(
            ProcId { role: Role::Rank(*rank), incarnation: member.incarnation },
            Place::anywhere(),
            Arc::new(spec(*rank)),
        )
    };
    StartBatch::new(Arc::new(world.clone()), world.members().iter().map(order).collect())
}

/// Over real processes, without a guard of their own process: a test is no program that could be one.
pub(crate) async fn local(dir: &Path) -> TorchLauncher<LocalLauncher> {
    let local = LocalLauncher::builder(dir.join("run")).guard(GuardProgram::None).build().await.unwrap();
    TorchLauncher::with_framework(local, dir.join("torch"), Torch::default().run_id("digits"))
}

/// Waits until these have exited; every phase of theirs that was reported, in order, and the exits.
pub(crate) async fn exits(
    launcher: &impl Launcher,
    procs: &[ProcId],
) -> (Vec<(ProcId, Phase)>, BTreeMap<ProcId, Exit>) {
    let mut phases = Vec::new();
    let mut exits = BTreeMap::new();
    let listing = launcher.list().await.unwrap();
    let mut from = Revision { epoch: listing.revision.epoch, seq: 0 };
    let all = async {
        while !procs.iter().all(|proc| exits.contains_key(proc)) {
            let (changes, next) = launcher.watch(from).await.unwrap();
            from = next;
            for change in changes {
                let Change::Proc(status) = change else { continue };
                if !procs.contains(&status.proc) {
                    continue;
                }
                if let Phase::Exited(exit) = &status.phase {
                    exits.insert(status.proc.clone(), (**exit).clone());
                }
                phases.push((status.proc, status.phase));
            }
        }
    };
    tokio::time::timeout(PATIENCE, all).await.expect("all exits are reported");
    (phases, exits)
}
