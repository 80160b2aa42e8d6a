//! Scenarios of faults in a training on hosts in namespaces: what is injected, and whether the job blames the right one
//! and trains on. A file per group; [`all`] lists them.

mod agents;
mod expected;
mod hosts;
mod judge;
mod links;
mod managers;
mod random;
mod ranks;
mod reference;
mod row;
mod shapes;
mod trial;
mod two;
mod voters;

pub use expected::{Expected, Figures, Injected, Moment};
pub use random::RandomCase;
pub use reference::References;
pub use row::Row;
pub use shapes::{APART, FIVE_VOTERS, FULL, SIX, SWITCH, Shape, THREE, TWO, TWO_AND_VOTER};
pub use trial::Trial;

use crate::hosts::Hosts;
use crate::training::Training;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use taskd_examples::program::Failure;

/// Pause in each step, in milliseconds.
const PACE_MS: u64 = 20;

/// Carries out the fault of a scenario.
type Inject = for<'a> fn(&'a mut Trial) -> Pin<Box<dyn Future<Output = Result<Injected, Failure>> + 'a>>;

/// One scenario.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// What happens in it, in one sentence.
    pub about: &'static str,
    /// Reason why it does not pass yet, if that is known.
    pub known_gap: Option<&'static str>,
    /// Seconds from the fault within which training must go on, on a quiet machine with the default lease.
    pub bound_s: Option<f64>,
    /// The hosts of its job.
    pub shape: Shape,
    inject: Inject,
}

/// Default values of a scenario's fields; it injects nothing.
const BASE: Scenario = Scenario {
    name: "",
    about: "",
    known_gap: None,
    bound_s: None,
    shape: THREE,
    inject: |_| Box::pin(async { Err("this scenario injects nothing".into()) }),
};

/// What all runs have in common.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The Python interpreter, with torch.
    pub python: PathBuf,
    /// Lease of a host.
    pub lease: Duration,
    /// Processors of a host.
    pub cpus: f64,
    /// Time of training before the fault: a standby needs some to be ready.
    pub settle: Duration,
    /// Keeps the files of runs that fail.
    pub keep: bool,
    /// Undisturbed jobs, with which every step of a run is compared; `None`: nothing is compared.
    pub references: Option<Arc<References>>,
    /// What this machine can do, measured in the same run.
    pub machine: Machine,
}

/// Figures of the machine, beside which the times of a run are to be read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Machine {
    /// Seconds of a bare `import torch`.
    pub import_torch_s: Option<f64>,
    /// Bare mutual TLS handshakes per second.
    pub tls_handshakes_per_s: Option<f64>,
}

/// Returns all scenarios.
#[must_use]
pub fn all() -> Vec<Scenario> {
    let groups = [
        ranks::SCENARIOS,
        hosts::SCENARIOS,
        links::SCENARIOS,
        agents::SCENARIOS,
        managers::SCENARIOS,
        two::SCENARIOS,
        voters::SCENARIOS,
    ];
    groups.concat()
}

impl Scenario {
    /// Runs the scenario once: starts a job, injects the fault, and ends the job after it.
    ///
    /// # Errors
    /// This machine cannot have hosts in namespaces, or the job did not start. What happens after the fault is in the
    /// row.
    pub async fn run(&self, setting: &Setting, seed: u64) -> Result<Row, Failure> {
        let mut trial = begin(&self.shape, setting, seed).await?;
        let row = match (self.inject)(&mut trial).await {
            Ok(injected) => trial.finish(self, injected).await,
            Err(error) => Row::failed(self, &trial, &error),
        };
        finish(row, &mut trial, setting, &self.shape).await
    }
}

/// Starts a job on new hosts, and waits until it trains.
async fn begin(shape: &Shape, setting: &Setting, seed: u64) -> Result<Trial, Failure> {
    let hosts = Hosts::create(shape.hosts + shape.more_hosts, setting.cpus)?;
    hosts.notes().iter().for_each(|note| eprintln!("note          {note}"));
    Trial::begin(Training::start(shape.plan(setting.python.clone(), setting.lease), hosts)?, seed, setting.settle).await
}

/// Compares the run with an undisturbed one, and adds what all rows have in common.
async fn finish(row: Row, trial: &mut Trial, setting: &Setting, shape: &Shape) -> Result<Row, Failure> {
    let mut row = Row {
        import_torch_s: setting.machine.import_torch_s,
        tls_handshakes_per_s: setting.machine.tls_handshakes_per_s,
        ..row
    };
    if let Some(references) = &setting.references {
        references.compare(&mut row, trial, setting, shape).await?;
    }
    row.correct &= row.problems.is_empty();
    if !row.correct && setting.keep {
        eprintln!("kept          {}", trial.training.hosts.keep().display());
    }
    Ok(row)
}
