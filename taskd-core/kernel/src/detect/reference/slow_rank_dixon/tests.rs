use super::*;

/// Positions that `judge_slow_rank` of msprof-analyze 26.2.0 returns for the times of [`times`] with the seeds from 0.
const GOLDEN: &str = include_str!("msprof_analyze_26_2.json");

/// A generator of pseudo-random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// Times of up to 159 ranks, as the program that made the golden values generates them: with ties, and with a short
/// time, a long one, or two short ones.
fn times(seed: u64) -> Vec<f64> {
    let mut random = Random(seed);
    let n = random.next() % 160;
    let spread = [4, 50, 1000, 100_000][(random.next() % 4) as usize];
    let mut times: Vec<f64> = (0..n).map(|_| (100_000 + random.next() % spread) as f64).collect();
    let kind = random.next() % 4;
    if n > 0 && kind < 2 {
        let at = usize::try_from(random.next() % n).unwrap();
        let change = (1 + random.next() % (4 * spread)) as f64;
        times[at] += if kind == 0 { -change } else { change };
    }
    if n > 1 && kind == 2 {
        let change = (1 + random.next() % (4 * spread)) as f64;
        for _ in 0..2 {
            times[usize::try_from(random.next() % n).unwrap()] -= change;
        }
    }
    times
}

#[test]
fn late_positions_equal_those_of_msprof_analyze() {
    let golden: Vec<Vec<usize>> = serde_json::from_str(GOLDEN).unwrap();
    for (seed, expected) in (0..).zip(&golden) {
        let mut late = late_positions(&times(seed));
        late.sort_unstable();
        assert_eq!(late, *expected, "seed {seed}: {:?}", times(seed));
    }
    let hits = golden.iter().filter(|late| !late.is_empty()).count();
    assert!(hits > 150 && hits < golden.len() - 150, "{hits} of {}", golden.len());
}

#[test]
fn critical_values_exist_for_3_to_100_values_only() {
    assert_eq!(
        [2, 3, 7, 8, 30, 100, 101].map(critical_value),
        [None, Some(0.994), Some(0.680), Some(0.723), Some(0.484), Some(0.341), None]
    );
}

#[test]
fn times_that_are_not_finite_or_too_few_give_no_verdict() {
    assert_eq!(late_positions(&[1.0, f64::NAN, 100.0, 101.0, 102.0]), [0; 0]);
    assert_eq!(late_positions(&[]), [0; 0]);
    assert_eq!(late_positions(&[1.0, 100.0, 101.0]), [0; 0], "three distinct values");
    assert_eq!(late_positions(&[100.0, 1.0, 101.0, 102.0, 103.0]), [1]);
}

#[test]
fn votes_are_counted_by_rank_over_comparable_collectives() {
    let ranks: Vec<(u32, f64)> = (0..5).zip([100.0, 101.0, 1.0, 102.0, 103.0]).collect();
    let of = |group: u32, ranks: &[(u32, f64)]| CollectiveTimes { group, ranks: ranks.to_vec() };
    let all = [of(0, &ranks), of(0, &ranks), of(1, &ranks), of(1, &ranks[..1])];
    let found = votes(&all);
    assert_eq!((found.late, found.collectives), (BTreeMap::from([(2, 2)]), 2));
}
