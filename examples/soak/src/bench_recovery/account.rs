//! The account: the recovery times of each system, as a table and as JSON.

use super::Failure;
use super::candidates::Candidate;
use serde::Serialize;
use std::fmt::Write as _;
use taskd_examples::samples::Samples;

/// The result of one repetition.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Came {
    /// The job did not recover within the bound.
    NotBack,
    /// The job recovered.
    Back {
        /// From the fault to the first step that all ranks have completed.
        seconds: f64,
        steps_lost: u64,
        /// True if it had the undisturbed run's state after every step; `None` if the states cannot be compared.
        state_equal: Option<bool>,
    },
}

/// The recoveries of one system in one variant. Times are in seconds from the fault to the first step that all ranks
/// have completed.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    /// taskd, torchrun, `ft_launcher`, nvrx-inprocess, torchft or floor.
    pub(super) system: &'static str,
    /// The system's variant.
    pub(super) variant: &'static str,
    /// Ranks that trained before the fault.
    pub(super) ranks: u32,
    /// Number of faults.
    pub(super) n: usize,
    /// The median; null if the system never recovered.
    pub(super) median_s: Option<f64>,
    /// The minimum.
    pub(super) min_s: Option<f64>,
    /// The maximum.
    pub(super) max_s: Option<f64>,
    /// Faults after which the system did not recover within the bound; these are not among the times.
    pub(super) stalls: usize,
    /// Maximum of the steps that had been completed before a fault and were repeated.
    pub(super) steps_lost_max: Option<u64>,
    /// True if every step ended in the undisturbed run's state; null if fewer ranks have trained, or if the system
    /// never recovered.
    pub(super) state_equal: Option<bool>,
    /// True if the step that counts as the recovery was trained by as many ranks as before.
    pub(super) world_kept: bool,
    #[serde(skip)]
    candidate: Candidate,
}

impl Row {
    pub(crate) fn of(candidate: Candidate, ranks: u32, came: &[Came]) -> Row {
        let back = || came.iter().filter_map(Came::back);
        let times: Samples = back().map(|(seconds, ..)| seconds).collect();
        let figure = |value: f64| value.is_finite().then(|| (value * 1e4).round() / 1e4);
        let equal: Vec<bool> = back().filter_map(|(_, _, equal)| equal).collect();
        Row {
            system: candidate.system(),
            variant: candidate.variant(),
            ranks,
            n: came.len(),
            median_s: figure(times.median()),
            min_s: figure(times.min()),
            max_s: figure(times.max()),
            stalls: came.len() - back().count(),
            steps_lost_max: back().map(|(_, lost, _)| lost).max(),
            state_equal: (!equal.is_empty()).then(|| equal.into_iter().all(|equal| equal)),
            world_kept: candidate.keeps_world(),
            candidate,
        }
    }
}

impl Came {
    fn back(&self) -> Option<(f64, u64, Option<bool>)> {
        match *self {
            Came::NotBack => None,
            Came::Back { seconds, steps_lost, state_equal } => Some((seconds, steps_lost, state_equal)),
        }
    }
}

/// Returns the account as text: a row for each system and variant, each with `n` planned faults; then the comparison of
/// taskd with the other systems, as far as both were measured.
pub(crate) fn table(rows: &[Row], n: u32) -> String {
    let mut out = String::from(
        "\n  system          variant           ranks    n   median, s       min       max  stalls  steps lost  state    world kept\n",
    );
    for row in rows {
        let time = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.3}"));
        let state = match row.state_equal {
            Some(true) => "equal",
            Some(false) => "DIFFERS",
            None => "-",
        };
        let _ = writeln!(
            out,
            "  {:<14}  {:<16}  {:>5}  {:>3}  {:>10}  {:>8}  {:>8}  {:>6}  {:>10}  {:<7}  {}",
            row.system,
            row.variant,
            row.ranks,
            row.n,
            time(row.median_s),
            time(row.min_s),
            time(row.max_s),
            row.stalls,
            row.steps_lost_max.map_or("-".to_owned(), |lost| lost.to_string()),
            state,
            if row.world_kept { "yes" } else { "no" }
        );
    }
    let missing: usize = rows.iter().map(|row| (n as usize).saturating_sub(row.n)).sum();
    if missing > 0 {
        let _ = writeln!(out, "  {missing} jobs are not counted: see the reasons above");
    }
    out + &beside_peers(rows).unwrap_or_default() + &beside_floor(rows).unwrap_or_default()
}

/// Checks that taskd's rows are as expected.
///
/// # Errors
/// They are not.
pub(crate) fn judge(rows: &[Row]) -> Result<(), Failure> {
    match rows.iter().find(|row| row.candidate.is_ours() && row.state_equal == Some(false)) {
        Some(row) => Err(format!("taskd's ranks differ from the undisturbed run ({})", row.variant).into()),
        None => Ok(()),
    }
}

fn median_of(rows: &[Row], candidate: Candidate) -> Option<f64> {
    rows.iter().find(|row| row.candidate == candidate)?.median_s
}

fn beside_peers(rows: &[Row]) -> Option<String> {
    let ours = median_of(rows, Candidate::TaskdRecoverInPlace)?;
    let keeping = rows.iter().filter(|row| row.candidate.is_peer() && row.world_kept && row.median_s.is_some());
    let best = keeping.min_by(|a, b| a.median_s.unwrap_or(f64::MAX).total_cmp(&b.median_s.unwrap_or(f64::MAX)))?;
    let times = best.median_s? / ours;
    let name = format!("{} ({})", best.system, best.variant);
    Some(format!(
        "  the best other system that keeps the world, {name}, takes {times:.1} times as long as recover-in-place\n"
    ))
}

fn beside_floor(rows: &[Row]) -> Option<String> {
    let times = median_of(rows, Candidate::TaskdRestart)? / median_of(rows, Candidate::Floor)?;
    Some(format!("  a restart without standbys takes {times:.2} times as long as a shell loop\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn back(seconds: f64, steps_lost: u64, state_equal: Option<bool>) -> Came {
        Came::Back { seconds, steps_lost, state_equal }
    }

    #[test]
    fn a_row_has_every_field_and_its_times_exclude_stalled_jobs() {
        let came = [back(0.2, 0, Some(true)), Came::NotBack, back(0.1, 3, Some(true)), back(0.3, 1, Some(true))];
        let row = serde_json::to_value(Row::of(Candidate::TaskdRecoverInPlace, 2, &came)).unwrap();
        let expected = json!({
            "system": "taskd", "variant": "recover-in-place", "ranks": 2, "n": 4,
            "median_s": 0.2, "min_s": 0.1, "max_s": 0.3, "stalls": 1, "steps_lost_max": 3,
            "state_equal": true, "world_kept": true
        });
        assert_eq!(row, expected);
        let one_differs = [back(1.0, 0, Some(true)), back(1.0, 0, Some(false))];
        assert_eq!(Row::of(Candidate::Torchrun, 2, &one_differs).state_equal, Some(false));
    }

    #[test]
    fn uncounted_jobs_and_differing_states_of_taskd_are_reported() {
        let rows = |candidate| [Row::of(candidate, 2, &[back(1.0, 0, Some(false))])];
        assert!(judge(&rows(Candidate::Torchrun)).is_ok(), "not ours to judge");
        let error = judge(&rows(Candidate::TaskdRestart)).unwrap_err().to_string();
        assert_eq!(error, "taskd's ranks differ from the undisturbed run (restart)");
        assert!(table(&rows(Candidate::TaskdRestart), 3).contains("  2 jobs are not counted"));
    }

    #[test]
    fn row_fields_without_a_measurement_are_null() {
        let row = serde_json::to_value(Row::of(Candidate::NvrxShrink, 2, &[Came::NotBack])).unwrap();
        for name in ["median_s", "min_s", "max_s", "steps_lost_max", "state_equal"] {
            assert_eq!(row[name], Value::Null, "{name}: {row}");
        }
        assert_eq!((&row["stalls"], &row["world_kept"]), (&1.into(), &false.into()), "{row}");
    }

    #[test]
    fn the_table_compares_taskd_with_the_best_peer_and_with_the_floor() {
        let row = |candidate, seconds| Row::of(candidate, 2, &[back(seconds, 0, None)]);
        let rows = [
            row(Candidate::TaskdRecoverInPlace, 0.1),
            row(Candidate::TaskdRestart, 2.2),
            row(Candidate::Torchrun, 2.5),
            row(Candidate::NvrxReserve, 0.5),
            row(Candidate::NvrxShrink, 0.2),
            row(Candidate::Floor, 2.0),
        ];
        let table = table(&rows, 1);
        assert!(
            table.contains("nvrx-inprocess (tuned-reserve), takes 5.0 times as long as recover-in-place"),
            "{table}"
        );
        assert!(table.contains("restart without standbys takes 1.10 times as long"), "{table}");
        assert_eq!(table.lines().count(), 1 + 1 + rows.len() + 2, "{table}");
    }
}
