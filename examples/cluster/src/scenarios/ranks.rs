//! Faults of single ranks.

use super::shapes::SIX;
use super::trial::Moment;
use super::{BASE, Injected, Scenario, Trial};
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
];

async fn kill_rank(trial: &mut Trial) -> Result<Injected, Failure> {
    let rank = trial.any_rank();
    trial.part_of_a_step().await;
    let at = Moment::now();
    trial.kill(rank)?;
    Ok(Injected::new(format!("SIGKILL to rank {rank}"), at, trial.exit_of(rank)))
}
