mod devices;
mod from_start;
mod links;
mod transfers;

use super::*;
use crate::detect::fixture::{Scene, fault, rank_domain};
use crate::detect::{FaultClass, FaultDetector, Finding};
use crate::job::{Domain, GroupId, GroupKind, Name, NodeId};
use crate::trace::{Signal, StepTimes};

const MS: u64 = 1_000_000;

/// A job of a scene, in which all ranks end each step together.
struct Play {
    scene: Scene,
    detector: FailSlowDetector,
    step: u64,
}

impl Play {
    fn new(scene: Scene) -> Play {
        Play { scene, detector: FailSlowDetector::new(), step: 0 }
    }

    /// Reports `count` steps with these computation times; `change` may change or drop a report.
    fn steps(
        &mut self,
        count: u32,
        compute_ms: &[u64],
        change: impl Fn(u32, StepTimes) -> Option<StepTimes>,
    ) -> Vec<Finding> {
        let longest = compute_ms.iter().copied().max().unwrap_or_default();
        let mut found = Vec::new();
        for _ in 0..count {
            self.step += 1;
            self.scene.pass(longest + 20);
            for (rank, compute) in (0..).zip(compute_ms) {
                // Small differences from step to step, as real jobs have them.
                let noise = (self.step * 7 + u64::from(rank) * 13) % 11 * MS / 5;
                let times = StepTimes {
                    step: self.step,
                    wall_ns: (longest + 20) * MS,
                    cpu_ns: Some(compute * MS),
                    wait_ns: (longest + 18 - compute) * MS - noise,
                    data_loader_ns: 2 * MS,
                    ..StepTimes::default()
                };
                if let Some(times) = change(rank, times) {
                    found.extend(self.scene.tell(&mut self.detector, rank, Signal::Step(Box::new(times))));
                }
            }
        }
        found
    }

    fn plain(&mut self, count: u32, compute_ms: &[u64]) -> Vec<Finding> {
        self.steps(count, compute_ms, |_, times| Some(times))
    }
}

fn is_blame(finding: &&Finding) -> bool {
    matches!(finding, Finding::Blame(_))
}

#[test]
fn a_rank_that_becomes_slower_is_blamed_within_eight_steps_and_cleared() {
    let mut play = Play::new(Scene::of(4));
    assert!(play.plain(60, &[100; 4]).is_empty());
    let onset = play.scene.view.now;
    let found = play.plain(8, &[100, 100, 150, 100]);
    let fault = fault(&found);
    assert_eq!((&fault.primary_suspect().domain, &fault.primary_suspect().class), (&rank_domain(2), &FaultClass::Slow));
    assert_eq!((fault.onset, fault.primary_suspect().confidence_permille), (onset, 900));
    let texts: Vec<&str> = fault.evidence.iter().map(|clue| clue.text.as_str()).collect();
    assert!(texts[0].starts_with("slow-rank: rank 2 (1 rank(s)), 4") || texts[0].contains(", 50 %"), "{texts:?}");
    assert!(texts.iter().any(|text| text.contains("it computes longer")), "{texts:?}");
    assert!(play.plain(40, &[100, 100, 150, 100]).is_empty(), "it is blamed once");
    assert_eq!(play.plain(8, &[100; 4]), [Finding::Clear(rank_domain(2), FaultClass::Slow)]);
}

#[test]
fn a_rank_that_waits_for_data_is_blamed_for_its_input() {
    let mut play = Play::new(Scene::of(4));
    play.plain(60, &[100; 4]);
    let slow = |rank, times: StepTimes| {
        let extra = if rank == 1 { 50 * MS } else { 0 };
        let (data_loader_ns, wait_ns) = (times.data_loader_ns + extra, times.wait_ns + 50 * MS - extra);
        Some(StepTimes { wall_ns: times.wall_ns + 50 * MS, data_loader_ns, wait_ns, ..times })
    };
    let found = play.steps(8, &[100; 4], slow);
    let blames: Vec<&Finding> = found.iter().filter(is_blame).collect();
    let [Finding::Blame(fault)] = blames[..] else { panic!("{found:?}") };
    assert_eq!(fault.primary_suspect().domain, rank_domain(1));
    assert!(fault.evidence[0].text.starts_with("slow-input: rank 1"), "{:?}", fault.evidence);
}

#[test]
fn a_host_is_blamed_once_if_all_its_ranks_become_slower() {
    let mut play = Play::new(Scene::on(8, &[("a", 4), ("b", 4)]));
    play.plain(60, &[100; 8]);
    let found = play.plain(10, &[150, 150, 150, 150, 100, 100, 100, 100]);
    let blames: Vec<&Finding> = found.iter().filter(is_blame).collect();
    let [Finding::Blame(fault)] = blames[..] else { panic!("{found:?}") };
    assert_eq!(fault.primary_suspect().domain, Domain::Node(NodeId(Name::new("a"))));
}

#[test]
fn general_slowdowns_pauses_and_lost_records_blame_no_rank() {
    let mut play = Play::new(Scene::of(4));
    play.plain(60, &[50, 100, 80, 90]);
    let found = play.plain(60, &[75, 150, 120, 135]);
    assert!(!found.iter().any(|finding| is_blame(&finding)), "all ranks are slower: {found:?}");
    assert!(found.iter().any(
        |finding| matches!(finding, Finding::Note(Domain::Job, clue) if clue.text.starts_with("global-slowdown"))
    ));
    for _ in 0..20 {
        let found = [play.plain(1, &[75, 150, 120, 400]), play.plain(4, &[75, 150, 120, 135])].concat();
        assert!(!found.iter().any(|finding| is_blame(&finding)), "single pauses: {found:?}");
    }
    let lossy = |rank, times: StepTimes| Some(StepTimes { lost: u64::from(rank == 2), ..times });
    let found = play.steps(30, &[75, 150, 400, 135], lossy);
    assert!(!found.iter().any(|finding| is_blame(&finding)), "{found:?}");
}

#[test]
fn a_burst_of_other_work_on_a_machine_is_no_fault_of_short_steps() {
    let mut play = Play::new(Scene::of(4));
    play.plain(60, &[50; 4]);
    for _ in 0..3 {
        let found = [play.plain(10, &[50, 60, 50, 50]), play.plain(60, &[50; 4])].concat();
        assert!(found.is_empty(), "it has cost 100 ms: {found:?}");
    }
    let mut checkpoints = Play::new(Scene::of(4));
    let saving = |rank: u32, extra_us: u64| 1000 * (800 + u64::from(rank) * 20 + extra_us);
    let saves = |extra_us| {
        move |rank, times: StepTimes| {
            let save_checkpoint_ns = saving(rank, if rank == 3 { extra_us } else { 0 });
            Some(StepTimes { save_checkpoint_ns, ..times })
        }
    };
    checkpoints.steps(60, &[50; 4], saves(0));
    assert!(checkpoints.steps(40, &[50; 4], saves(2500)).is_empty(), "2.5 ms more for a checkpoint have cost 100 ms");
    assert_eq!(play.plain(28, &[50, 60, 50, 50]).len(), 1, "20 % that stay are found");
}

#[test]
fn a_slow_checkpoint_is_blamed_though_peers_wait_for_it_in_the_next_step() {
    let mut play = Play::new(Scene::of(4));
    let mut saving = |steps: u32, slow_ms: u64| {
        let mut found = Vec::new();
        for _ in 0..steps {
            let saves = |rank: u32, times: StepTimes| {
                let save_checkpoint_ns = (20 + if rank == 3 { slow_ms } else { 0 }) * MS;
                Some(StepTimes { wall_ns: times.wall_ns + save_checkpoint_ns, save_checkpoint_ns, ..times })
            };
            found.extend(play.steps(1, &[100; 4], saves));
            let waits = |rank: u32, times: StepTimes| {
                let late = if rank == 3 { 0 } else { slow_ms * MS };
                Some(StepTimes { wall_ns: times.wall_ns + late, wait_ns: times.wait_ns + late, ..times })
            };
            found.extend(play.steps(1, &[100; 4], waits));
        }
        found
    };
    assert!(saving(40, 0).is_empty());
    let found = saving(8, 200);
    let blames: Vec<&Finding> = found.iter().filter(is_blame).collect();
    let [Finding::Blame(fault)] = blames[..] else { panic!("{found:?}") };
    assert!(fault.evidence[0].text.starts_with("slow-checkpoint: rank 3"), "{:?}", fault.evidence);
}

#[test]
fn a_new_generation_starts_without_data() {
    let mut play = Play::new(Scene::of(4));
    play.plain(60, &[100; 4]);
    play.scene.restart();
    play.step = 0;
    assert!(play.plain(60, &[150, 100, 100, 100]).is_empty(), "without groups it may have another load");
    assert_eq!(play.plain(8, &[150, 150, 100, 100]).len(), 1);
}

#[test]
fn a_snapshot_with_an_inconsistent_engine_is_refused() {
    let mut play = Play::new(Scene::of(4));
    play.plain(60, &[100; 4]);
    let saved = play.detector.snapshot().expect("it saves its state");
    let mut other = FailSlowDetector::new();
    other.restore(&saved).expect("its own state");
    assert_eq!(other.snapshot(), Some(saved.clone()));
    let before = other.snapshot();
    for at in 0..saved.len() {
        let mut damaged = saved.to_vec();
        damaged[at] ^= 0x55;
        let mut fresh = FailSlowDetector::new();
        if fresh.restore(&damaged).is_ok() {
            let mut play = Play { scene: Scene::of(4), detector: fresh, step: 60 };
            play.plain(2, &[100; 4]); // whatever it finds, it does not panic
        }
    }
    assert!(other.restore(&saved[..saved.len() - 1]).is_err());
    assert_eq!(other.snapshot(), before, "a refused state changes nothing");
}

/// Runs the engine over steps in which `change` changes the row of a rank from step 60 on.
fn run(grid: Grid, change: impl Fn(u32, &Place, &mut Row)) -> Vec<Change> {
    let layout = Layout::grid(grid);
    let mut engine = FailSlow::new(layout.clone());
    let mut found = Vec::new();
    for step in 1..=100_u64 {
        let rows = (0..).zip(layout.places()).map(|(rank, place)| {
            let noise =
                1.0 + 0.002 * f32::from(u8::try_from((step * 7 + u64::from(rank) * 13) % 11).unwrap_or_default());
            let mut row = [100.0, 30.0, 20.0, 5.0, 2.0, 1.0, 33.0, 90.0].map(|value: f32| value * noise);
            if step >= 60 {
                change(rank, place, &mut row);
            }
            row
        });
        found.extend(engine.step(step, &rows.collect::<Vec<Row>>()));
    }
    found
}

fn named(found: &[Change]) -> Vec<(Component, Cause)> {
    let name = |change: &Change| match change {
        Change::Found(verdict) => Some((verdict.component.clone(), verdict.cause)),
        Change::Cleared { .. } => None,
    };
    found.iter().filter_map(name).collect()
}

const GRID: Grid = Grid { dp: 8, tp: 2, pp: 2, cp: 1, ep: 1, per_host: 8 };

#[test]
fn a_stage_that_becomes_slower_is_reported_and_not_blamed() {
    let found = run(GRID, |_, place, row| {
        if place.stage == 1 {
            row[Series::Compute as usize] *= 1.3;
        }
    });
    assert!(named(&found).contains(&(Component::Stage(1), Cause::SlowStage)), "{found:?}");
    assert!(named(&found).iter().all(|(_, cause)| !cause.is_blame()), "{found:?}");
}

#[test]
fn a_rank_for_which_no_rank_waits_is_not_blamed() {
    let found = run(GRID, |rank, _, row| {
        if rank == 5 {
            row[Series::Compute as usize] *= 1.3; // and its wait stays as long as that of its peers
        }
    });
    assert_eq!(named(&found), []);
}

/// A rank computes half as long again. The others wait for it; where their computation overlaps the collective that is
/// pending for longer, they seem to compute less. `is_whole`: ranks that keep all of their computation.
fn slow_rank_hides_work(grid: Grid, is_whole: impl Fn(u32) -> bool) -> Vec<(Component, Cause)> {
    let found = run(grid, |rank, _, row| {
        let factor = match rank {
            0 => 1.5,
            rank if is_whole(rank) => 1.0,
            _ => 0.7,
        };
        row[Series::Compute as usize] *= factor;
        row[Series::Wait as usize] += if rank == 0 { 0.0 } else { 60.0 };
    });
    named(&found)
}

#[test]
fn ranks_of_which_only_the_peers_seem_faster_are_not_blamed() {
    let grid = Grid { dp: 2, tp: 1, pp: 2, cp: 1, ep: 1, per_host: 8 };
    assert_eq!(slow_rank_hides_work(grid, |rank| rank == 2), [(Component::Rank(0), Cause::SlowRank)]);
    let grid = Grid { dp: 4, tp: 2, pp: 1, ..grid };
    assert_eq!(slow_rank_hides_work(grid, |rank| rank == 1), [(Component::Rank(0), Cause::SlowRank)]);
}

#[test]
fn slow_storage_for_which_no_rank_waits_is_not_blamed() {
    for series in [Series::Data, Series::Checkpoint] {
        let play = |waited_for: f32| {
            run(GRID, |rank, _, row| {
                if rank == 5 {
                    row[series as usize] += 30.0;
                    row[Series::Wait as usize] -= waited_for;
                }
            })
        };
        assert_eq!(named(&play(0.0)), [], "{series:?}: the rank has been faster elsewhere");
        assert_eq!(named(&play(29.0)).len(), 1, "{series:?}");
    }
}

#[test]
fn a_short_checkpoint_that_becomes_very_long_is_blamed_with_its_time() {
    let found = run(GRID, |rank, _, row| {
        let excess = if rank == 5 { 100.0 } else { 0.0 };
        row[Series::Checkpoint as usize] += excess;
        row[Series::Wait as usize] += 100.0 - excess;
    });
    let [Change::Found(verdict)] = &found[..] else { panic!("{found:?}") };
    assert_eq!((&verdict.component, verdict.cause), (&Component::Rank(5), Cause::SlowCheckpoint));
    assert!(verdict.evidence[0].value.is_some_and(|ms| ms > 90.0), "{verdict:?}");
}

/// Runs the engine over 110 steps of four replicas. `change` takes step, rank and a number that differs from case to case,
/// below 1,000, and changes the row.
fn run_noisy(change: impl Fn(u64, u64, u64, &mut Row)) -> Vec<(u64, Change)> {
    let mut engine = FailSlow::new(Layout::grid(Grid { dp: 4, tp: 1, pp: 1, cp: 1, ep: 1, per_host: 8 }));
    let mut found = Vec::new();
    for step in 1..=110_u64 {
        let row = |rank: u64| {
            let hash = (step * 4 + rank).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29).wrapping_mul(0xBF58_476D);
            let (number, small) = (hash >> 16 & 0xFFFF, hash % 100);
            let mut row = [100.0, 30.0, f32::NAN, f32::NAN, 2.0, f32::NAN, 33.0, 9.0];
            row[Series::Compute as usize] += f32::from(u8::try_from(small).unwrap_or_default()) / 25.0;
            change(step, rank, number % 1000, &mut row);
            row
        };
        let rows: Vec<Row> = (0..4).map(row).collect();
        found.extend(engine.step(step, &rows).into_iter().map(|change| (step, change)));
    }
    found
}

#[test]
fn bursts_that_are_usual_on_a_busy_machine_are_no_fault_of_a_rank() {
    let bursts = |slow: std::ops::Range<u64>| {
        run_noisy(move |step, rank, number, row| {
            if number < 120 || rank == 3 && slow.contains(&step) {
                row[Series::Compute as usize] += 45.0;
                row[Series::Wait as usize] -= 25.0;
            }
        })
    };
    let found = bursts(70..75);
    assert!(found.is_empty(), "by chance a rank has five in a row: {found:?}");
    let found = bursts(70..110);
    let [(step, Change::Found(verdict))] = &found[..] else { panic!("{found:?}") };
    assert_eq!((&verdict.component, verdict.cause), (&Component::Rank(3), Cause::SlowRank));
    assert!(*step <= 82, "{step}");
}

#[test]
fn a_rank_that_computes_and_sends_late_is_no_slow_link() {
    let late = |computes: f32| {
        run_noisy(move |step, rank, _, row| {
            if step >= 70 {
                // Its transfers are late in the first step already, its computation three steps later.
                row[Series::Wait as usize] += 60.0;
                if rank == 2 && step >= 73 {
                    row[Series::Compute as usize] += computes;
                    row[Series::Wait as usize] -= computes / 2.0;
                }
            }
        })
    };
    let found = late(100.0);
    let [(_, Change::Found(verdict))] = &found[..] else { panic!("{found:?}") };
    assert_eq!((&verdict.component, verdict.cause), (&Component::Rank(2), Cause::SlowRank));
    let link = late(0.0);
    let [(step, Change::Found(verdict))] = &link[..] else { panic!("{link:?}") };
    assert!(verdict.cause == Cause::SlowLink && *step <= 78, "{link:?}");
}

#[test]
fn slow_storage_is_found_though_short_checkpoints_scatter_widely() {
    let found = run_noisy(|step, rank, number, row| {
        if step % 2 == 0 {
            let usual = f32::from(u16::try_from(number).unwrap_or_default());
            row[Series::Checkpoint as usize] = if number < 300 { usual / 30.0 } else { 1.0 };
            if step >= 70 {
                row[if rank == 0 { Series::Checkpoint } else { Series::Wait } as usize] += 280.0;
            }
        }
    });
    let [(step, Change::Found(verdict))] = &found[..] else { panic!("{found:?}") };
    assert_eq!((&verdict.component, verdict.cause), (&Component::Rank(0), Cause::SlowCheckpoint));
    assert!(*step <= 80, "{step}");
}

#[test]
fn a_step_with_another_number_of_rows_is_ignored() {
    let mut engine = FailSlow::new(Layout::grid(GRID));
    assert!(engine.step(1, &[[1.0; SERIES]; 3]).is_empty());
    assert!(FailSlow::new(Layout::new(Vec::new(), Vec::new())).step(1, &[]).is_empty());
}
