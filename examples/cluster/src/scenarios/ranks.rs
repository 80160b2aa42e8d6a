//! Faults of single ranks.

use super::expected::Moment;
use super::hosts::HOST;
use super::shapes::SIX;
use super::{BASE, Injected, Scenario, Trial};
use rustix::process::Signal;
use taskd_core::detect::FaultClass;
use taskd_examples::program::Failure;

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "rank-killed",
        about: "the process of one rank gets SIGKILL",
        inject: |trial| Box::pin(kill_rank(trial)),
        ..BASE
    },
    Scenario {
        name: "six-rank-killed",
        about: "the process of one rank gets SIGKILL, in a job of six hosts",
        shape: SIX,
        inject: |trial| Box::pin(kill_rank(trial)),
        ..BASE
    },
    Scenario {
        name: "rank-stopped",
        about: "the process of one rank on another host than the manager's gets SIGSTOP",
        inject: |trial| Box::pin(stop_rank(trial)),
        ..BASE
    },
];

async fn kill_rank(trial: &mut Trial) -> Result<Injected, Failure> {
    let rank = trial.any_rank();
    trial.part_of_a_step().await;
    let at = Moment::now();
    trial.kill(rank)?;
    Ok(Injected::new(format!("SIGKILL to rank {rank}"), at, trial.exit_of(rank)))
}

async fn stop_rank(trial: &mut Trial) -> Result<Injected, Failure> {
    let rank = trial.any_rank_on(HOST)?;
    trial.part_of_a_step().await;
    let at = Moment::now();
    trial.signal(rank, Signal::STOP)?;
    Ok(Injected::new(format!("SIGSTOP to rank {rank} on {HOST}"), at, trial.fault_of(rank, FaultClass::Silence)))
}
