//! Times of steps from `step_trace_time.csv`, and the table of all ranks as msprof-analyze makes it.

use std::collections::BTreeMap;
use std::path::Path;

/// One line of `step_trace_time.csv`: the times of one step of one rank, in microseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepTimesRow {
    /// Step as the file names it; empty if the profile has no steps.
    pub step: String,
    /// Values by column in the order of the file, without `Step` and `Device_id`.
    pub values: Vec<f64>,
}

/// One line of the table of all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterRow {
    /// Step as the files name it.
    pub step: String,
    /// Ranks of the line: one, or all of a pipeline stage.
    pub ranks: Vec<u32>,
    /// True for a stage; its values are the maxima over its ranks.
    pub is_stage: bool,
    /// Values in the order of the columns, in microseconds.
    pub values: Vec<f64>,
}

/// Reads `step_trace_time.csv`: the names of the value columns, and one row for each step. A value that is not a number
/// becomes 0, as in msprof-analyze.
///
/// # Errors
/// Returns a sentence if the file cannot be read or has no column `Step`.
pub fn read_step_trace(path: &Path) -> Result<(Vec<String>, Vec<StepTimesRow>), String> {
    let named = |error: csv::Error| format!("{} was not read: {error}", path.display());
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_path(path).map_err(named)?;
    let header = reader.headers().map_err(named)?.clone();
    let is_value = |name: &str| !matches!(name, "Step" | "Device_id");
    let step = header.iter().position(|name| name == "Step");
    let step = step.ok_or_else(|| format!("{} has no column Step", path.display()))?;
    let columns = header.iter().filter(|name| is_value(name)).map(str::to_owned).collect();
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(named)?;
        let values = header.iter().zip(&record).filter(|(name, _)| is_value(name));
        let values = values.map(|(_, value)| value.trim().parse().unwrap_or(0.0)).collect();
        rows.push(StepTimesRow { step: record.get(step).unwrap_or_default().to_owned(), values });
    }
    Ok((columns, rows))
}

/// Returns the table that msprof-analyze writes as `cluster_step_trace_time.csv`: the rows of all ranks, then one row for
/// each step and stage with the maximum of each column. `stages` lists the ranks of each stage; ranks that are in none
/// have no stage row.
#[must_use]
pub fn cluster_step_trace(ranks: &BTreeMap<u32, Vec<StepTimesRow>>, stages: &[Vec<u32>]) -> Vec<ClusterRow> {
    let mut table = Vec::new();
    let mut of_stages: Vec<ClusterRow> = Vec::new();
    for (rank, rows) in ranks {
        let stage = stages.iter().find(|stage| stage.contains(rank));
        for StepTimesRow { step, values } in rows {
            let (step, values) = (step.clone(), values.clone());
            if let Some(stage) = stage {
                match of_stages.iter_mut().find(|row| row.step == step && row.ranks == *stage) {
                    Some(row) => row.values.iter_mut().zip(&values).for_each(|(max, value)| *max = max.max(*value)),
                    None => of_stages.push(ClusterRow {
                        step: step.clone(),
                        ranks: stage.clone(),
                        is_stage: true,
                        values: values.clone(),
                    }),
                }
            }
            table.push(ClusterRow { step, ranks: vec![*rank], is_stage: false, values });
        }
    }
    table.append(&mut of_stages);
    table
}
