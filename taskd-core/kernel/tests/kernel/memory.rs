//! Checkpoints in memory: what the kernel makes of what ranks say that they have.

use crate::bench::*;
use crate::links::link;
use taskd_kernel::job::*;
use taskd_kernel::kernel::*;
use taskd_kernel::recover::{Action, RecoveryStrategyExt as _, Shrink};
use taskd_kernel::state::*;

fn of(made_in: u64, step: u64) -> InMemoryCheckpointId {
    InMemoryCheckpointId { made_in: Generation(made_in), step }
}

/// A rank reports that it has a copy, or has left it out.
fn reports(bench: &mut Bench, rank: u32, number: u64, of: InMemoryCheckpointId, whole: bool) -> Vec<Command> {
    let generation = bench.kernel.view().world.generation();
    reports_in(bench, rank, generation, number, of, whole)
}

fn reports_in(
    bench: &mut Bench,
    rank: u32,
    generation: Generation,
    number: u64,
    of: InMemoryCheckpointId,
    whole: bool,
) -> Vec<Command> {
    at(bench, rank, InMemoryCheckpoint { generation, number, at: of.step, of, whole, bytes: 1, waited: 0, dropped: 0 })
}

fn at(bench: &mut Bench, rank: u32, copy: InMemoryCheckpoint) -> Vec<Command> {
    let what = WorkerMessage::InMemoryCheckpoint(copy);
    bench.give(Input::Changed(Change::Worker(WorkerEvent::new(ProcId::rank(rank, 1), what))))
}

/// What each rank receives: the number that is answered, and what is whole.
fn declared(commands: &[Command]) -> Vec<(u32, u64, Option<InMemoryCheckpointId>)> {
    let batches = commands.iter().filter_map(|command| match &command.effect {
        Effect::Act(Action::SendDirectives(batch)) => Some(batch),
        _ => None,
    });
    let reported = batches.flat_map(|batch| &batch.directives).map(|(proc, what)| match what {
        Directive::CommitInMemory { number, whole } => (proc.role.rank().expect("a rank").0, *number, *whole),
        other => panic!("sent to {}", other.name()),
    });
    reported.collect()
}

#[test]
fn a_checkpoint_of_all_ranks_is_declared_with_each_ranks_number() {
    let mut bench = Bench::new(3, |_| ()).up();
    assert_eq!(declared(&reports(&mut bench, 0, 7, of(1, 20), true)), []);
    assert_eq!(declared(&reports(&mut bench, 2, 9, of(1, 20), true)), []);
    assert_eq!(bench.kernel.status().in_memory, None);
    let whole = Some(of(1, 20));
    assert_eq!(declared(&reports(&mut bench, 1, 8, of(1, 20), true)), [(0, 7, whole), (1, 8, whole), (2, 9, whole)]);
    assert_eq!(bench.kernel.status().in_memory, Some(20));
    let snapshot = bench.kernel.snapshot();
    let restored = Kernel::restore(Plugins::default(), &snapshot).expect("the same version").0;
    assert_eq!(restored.status().in_memory, Some(20), "another supervisor knows it too");
}

#[test]
fn a_checkpoint_another_rank_dropped_leaves_the_older_declared() {
    let mut bench = Bench::new(2, |_| ()).up();
    reports(&mut bench, 0, 1, of(1, 10), true);
    reports(&mut bench, 1, 1, of(1, 10), true);
    let older = Some(of(1, 10));
    assert_eq!(declared(&reports(&mut bench, 0, 2, of(1, 20), true)), [], "rank 1 may still come to have it");
    let reported = declared(&reports(&mut bench, 1, 2, of(1, 20), false));
    assert_eq!(reported, [(0, 2, older), (1, 2, older)], "it was left out");
    assert_eq!(
        declared(&reports(&mut bench, 1, 3, of(1, 20), true)),
        [(1, 3, older)],
        "rank 0 may have overwritten it"
    );
    assert_eq!(declared(&reports(&mut bench, 1, 4, of(1, 30), true)), []);
    let reported = declared(&reports(&mut bench, 0, 3, of(2, 30), true));
    assert_eq!(reported, [(0, 3, older), (1, 4, older)], "the same step, but done again by one of them only");
    assert_eq!(bench.kernel.status().in_memory, Some(10));
}

#[test]
fn a_lost_declaration_is_sent_again_and_a_rank_ahead_waits() {
    let mut bench = Bench::new(2, |_| ()).up();
    let generation = bench.kernel.view().world.generation();
    let copy = |number, at, step| {
        let of = of(1, step);
        InMemoryCheckpoint { generation, number, at, of, whole: true, bytes: 1, waited: 0, dropped: 0 }
    };
    assert_eq!(declared(&at(&mut bench, 0, copy(2, 20, 10))), [], "at step 20 it still waits for word of step 10");
    let whole = Some(of(1, 10));
    assert_eq!(declared(&at(&mut bench, 1, copy(1, 10, 10))), [(0, 2, whole), (1, 1, whole)]);
    assert_eq!(declared(&at(&mut bench, 0, copy(3, 30, 10))), [(0, 3, whole)], "it has not received it");
}

#[test]
fn in_a_world_without_all_ranks_nothing_new_is_declared() {
    let plugins = Plugins { detectors: vec![exits()], strategies: vec![Shrink::new().before_restart().boxed()] };
    let mut bench = Bench::with(2, |policy| policy.min_ranks = 1, plugins).up();
    reports(&mut bench, 0, 1, of(1, 10), true);
    reports(&mut bench, 1, 1, of(1, 10), true);
    for rank in 0..2 {
        bench.give(link(rank, 1, Some(LoopPosition::InLoop)));
    }
    bench.now = 100 * MS;
    let commands = bench.set_phase(1, 1, killed());
    assert_eq!(bench.kernel.view().world.size(), 1, "{commands:?}");
    assert_eq!(declared(&reports(&mut bench, 0, 2, of(2, 20), true)), [(0, 2, Some(of(1, 10)))]);
}

#[test]
fn a_repeated_report_counts_once_and_one_of_another_world_never() {
    let mut bench = Bench::new(2, |_| ()).up();
    reports(&mut bench, 0, 1, of(1, 10), true);
    reports(&mut bench, 0, 2, of(1, 10), true);
    assert_eq!(bench.kernel.status().in_memory, None);
    assert_eq!(declared(&reports_in(&mut bench, 1, Generation(7), 1, of(1, 10), true)), []);
    assert_eq!(declared(&reports_in(&mut bench, 1, Generation(0), 1, of(1, 10), true)), []);
    assert_eq!(count(&bench, DropReason::OldGeneration), 2);
    let whole = Some(of(1, 10));
    assert_eq!(
        declared(&reports(&mut bench, 1, 1, of(1, 10), true)),
        [(0, 2, whole), (1, 1, whole)],
        "the last number"
    );
}

#[test]
fn copy_costs_are_summed_across_incarnations_of_a_process() {
    let mut bench = Bench::new(2, |_| ()).up();
    assert_eq!((bench.kernel.status().memory, bench.kernel.report().memory), (None, None), "none were made");
    let generation = bench.kernel.view().world.generation();
    let copy = |number, bytes, waited, dropped| {
        let of = of(1, number * 10);
        InMemoryCheckpoint { generation, number, at: of.step, of, whole: bytes > 0, bytes, waited, dropped }
    };
    at(&mut bench, 0, copy(1, 100, 1, 0));
    at(&mut bench, 0, copy(2, 0, 1, 2)); // left out: of no bytes
    at(&mut bench, 1, copy(1, 50, 3, 0));
    let so_far = MemoryFigures { bytes: 150, waited: 4, dropped: 2 };
    assert_eq!(bench.kernel.status().memory, Some(so_far));
    bench.set_phase(0, 1, killed());
    bench.at(50); // replaced
    bench.set_phase(0, 2, Phase::Running);
    let generation = bench.kernel.view().world.generation();
    let what = WorkerMessage::InMemoryCheckpoint(InMemoryCheckpoint { generation, ..copy(1, 120, 1, 1) });
    bench.give(Input::Changed(Change::Worker(WorkerEvent::new(ProcId::rank(0, 2), what))));
    let in_all = MemoryFigures { bytes: 170, waited: 5, dropped: 3 };
    assert_eq!((bench.kernel.status().memory, bench.kernel.report().memory), (Some(in_all), Some(in_all)));
}
