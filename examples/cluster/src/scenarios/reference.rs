//! Undisturbed jobs: every step of a run is compared with theirs, bit by bit.

use super::row::Row;
use super::shapes::Shape;
use super::{Setting, Trial};
use crate::hosts::Hosts;
use crate::training::{Plan, Training};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use taskd_core::kernel::JobReport;
use taskd_examples::program::Failure;
use taskd_examples::recover::{Compared, StepLine, read_lines};
use tokio::sync::Mutex;

/// Steps of an undisturbed job. Later steps of a run are not compared.
const STEPS: usize = 3000;
/// Lease of an undisturbed job: no load ends it.
const LEASE: Duration = Duration::from_secs(120);

/// The completed steps of each rank.
type Lines = BTreeMap<u32, Vec<StepLine>>;

/// The steps of undisturbed jobs, by their number of ranks. Each is run when it is first needed.
#[derive(Debug, Default)]
pub struct References(Mutex<BTreeMap<u32, Arc<Lines>>>);

impl References {
    /// Compares the steps of a run with those of an undisturbed job of as many ranks. A difference is a problem, unless
    /// the job had other ranks for a time or was started again: then the row states that.
    pub(super) async fn compare(
        &self,
        row: &mut Row,
        trial: &Trial,
        setting: &Setting,
        shape: &Shape,
    ) -> Result<(), Failure> {
        let reference = self.of(setting, shape.ranks).await?;
        let compared = Compared::of(&reference, &read_lines(&trial.training.dir()));
        row.state_equal = Some(compared.state_equal && compared.loss_bit_equal);
        row.steps_compared = Some(compared.steps);
        if row.state_equal == Some(false) {
            let differences = compared.differences.join("; ");
            match &row.exception {
                Some(why) => row.notes.push(format!("the state differs, because {why}: {differences}")),
                None => row.problems.push(format!("the state differs from the undisturbed run's: {differences}")),
            }
        }
        Ok(())
    }

    async fn of(&self, setting: &Setting, ranks: u32) -> Result<Arc<Lines>, Failure> {
        let mut known = self.0.lock().await;
        if let Some(lines) = known.get(&ranks) {
            return Ok(Arc::clone(lines));
        }
        eprintln!("reference     an undisturbed job of {ranks} ranks, {STEPS} steps");
        let plan = Plan {
            python: setting.python.clone(),
            ranks,
            min_ranks: ranks,
            slots: vec![ranks],
            hosts: 1,
            voters: Vec::new(),
            leaf: Vec::new(),
            lease: LEASE,
            pace_ms: 0,
        };
        let mut training = Training::start(plan, Hosts::create(1, setting.cpus.max(f64::from(ranks)))?)?;
        training.begun(1).await?;
        training.until_step(STEPS).await?;
        training.end().await?;
        let lines = Arc::new(read_lines(&training.dir()));
        known.insert(ranks, Arc::clone(&lines));
        Ok(lines)
    }
}

/// Returns why a job cannot have the undisturbed job's state, if it cannot.
pub(super) fn exception(report: &JobReport) -> Option<String> {
    if let Some(period) = report.smaller.first() {
        return Some(format!("it trained with {} of its {} ranks for a time", period.ranks, period.of));
    }
    let restarts = |one: &&taskd_core::kernel::IncidentReport| {
        one.strategy.as_ref().is_some_and(|by| matches!(by.as_str(), "restart" | "dump"))
    };
    let restarted = report.incidents.iter().find(restarts)?;
    Some(format!("all ranks were started again for {} in {}", restarted.class, restarted.domain))
}
