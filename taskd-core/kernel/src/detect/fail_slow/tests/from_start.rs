//! Ranks that are slow from the first step, among peers with outliers in the learning phase.

use super::*;

const JOB: Grid = Grid { dp: 8, tp: 1, pp: 1, cp: 1, ep: 1, per_host: 1 };
/// Steps until the usual times are learned.
const LEARNED: u64 = 25;

/// Runs a job of 160 steps. Half of the ranks differ by 3 % until their usual times are learned. `factor` lengthens the
/// computation of a rank in a step. In the middle of the second look the engine is saved and restored.
fn run_from_start(grid: Grid, factor: impl Fn(u64, &Place) -> f32) -> Vec<(u64, Change)> {
    let layout = Layout::grid(grid);
    let mut engine = FailSlow::new(layout.clone());
    let mut found = Vec::new();
    for step in 1..=160_u64 {
        let compute = (0..).zip(layout.places()).map(|(rank, place): (u64, &Place)| {
            let noise = f32::from(u8::try_from((step * 7 + rank * 13) % 11).unwrap_or_default()) * 0.002;
            let outlier = match place.replica % 4 {
                _ if step > LEARNED => 0.0,
                1 => 0.03,
                2 => -0.03,
                _ => 0.0,
            };
            1000.0 * (1.0 + noise + outlier) * factor(step, place)
        });
        let compute: Vec<f32> = compute.collect();
        let longest = compute.iter().copied().fold(0.0, f32::max);
        let row = |own: &f32| [*own, 30.0 + longest - own, f32::NAN, f32::NAN, 2.0, f32::NAN, 330.0, 90.0];
        let rows: Vec<Row> = compute.iter().map(row).collect();
        found.extend(engine.step(step, &rows).into_iter().map(|change| (step, change)));
        if step == 50 {
            let saved = postcard::to_stdvec(&engine).expect("plain data");
            engine = postcard::from_bytes(&saved).expect("its own state");
            assert!(engine.is_sound());
        }
    }
    found
}

#[test]
fn a_rank_hidden_by_outliers_of_the_learning_phase_is_found_later() {
    let found = run_from_start(JOB, |_, place| if place.replica == 3 { 1.1 } else { 1.0 });
    let [(step, Change::Found(verdict))] = &found[..] else { panic!("{found:?}") };
    assert_eq!((&verdict.component, verdict.cause), (&Component::Rank(3), Cause::SlowRank));
    assert_eq!(verdict.onset_step, 1, "it has been slow from the first step");
    assert!((86..=100).contains(step), "{step}");
    assert!((8.0..12.0).contains(&verdict.slowdown_percent), "{verdict:?}");
}

#[test]
fn a_rank_that_drifts_to_the_time_of_its_peers_is_not_slow_from_the_start() {
    let drift = |step: u64, place: &Place| {
        let left = u8::try_from(85_u64.saturating_sub(step.max(LEARNED))).unwrap_or_default();
        if place.replica == 3 { 1.0 + 0.2 * f32::from(left) / 60.0 } else { 1.0 }
    };
    assert_eq!(run_from_start(JOB, drift), [], "it is 10 % slower on average");
}

#[test]
fn ranks_with_longer_steps_in_a_part_of_the_second_look_are_not_blamed() {
    let paused = |step: u64, place: &Place| if place.replica == 3 && (30..33).contains(&step) { 4.0 } else { 1.0 };
    assert_eq!(run_from_start(JOB, paused), []);
    let grid = Grid { tp: 4, ..JOB };
    let long = run_from_start(grid, |_, place| if place.replica == 3 { 1.1 } else { 1.0 });
    assert_eq!(long, [], "the sequences of a replica may be longer than those of others");
}
