//! Scenarios of faults in a training on hosts in namespaces: what is injected, and whether the job blames the right one
//! and trains on. A file per group; [`all`] lists them.

mod agents;
mod hosts;
mod judge;
mod links;
mod ranks;
mod trial;

pub use judge::Row;
pub use trial::{Expected, Injected, Trial};

use crate::hosts::Hosts;
use crate::training::{Plan, Training};
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;
use taskd_examples::program::Failure;

/// Ranks of a scenario's job.
const RANKS: u32 = 4;
/// Ranks that a host of it can hold: the third host is a spare one.
const SLOTS: u32 = 2;
/// Hosts of the job.
const HOSTS: usize = 3;
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
    /// Further hosts, which are not part of the job.
    more_hosts: usize,
    inject: Inject,
}

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
}

/// Returns all scenarios.
pub fn all() -> Vec<Scenario> {
    [ranks::SCENARIOS, hosts::SCENARIOS, links::SCENARIOS, agents::SCENARIOS].concat()
}

impl Scenario {
    /// Runs the scenario once: starts a job, injects the fault, and ends the job after it.
    ///
    /// # Errors
    /// This machine cannot have hosts in namespaces, or the job did not start. What happens after the fault is in the
    /// row.
    pub async fn run(&self, setting: &Setting, seed: u64) -> Result<Row, Failure> {
        let hosts = Hosts::create(HOSTS + self.more_hosts, setting.cpus)?;
        hosts.notes().iter().for_each(|note| eprintln!("note          {note}"));
        let (python, lease) = (setting.python.clone(), setting.lease);
        let plan = Plan { python, ranks: RANKS, slots: SLOTS, hosts: HOSTS, lease, pace_ms: PACE_MS };
        let mut trial = Trial::begin(Training::start(plan, hosts)?, seed, setting.settle).await?;
        let row = match (self.inject)(&mut trial).await {
            Ok(injected) => trial.finish(self, injected).await,
            Err(error) => Row::failed(self, &trial, &error),
        };
        if !row.correct && setting.keep {
            eprintln!("kept          {}", trial.training.hosts.keep().display());
        }
        Ok(row)
    }
}
