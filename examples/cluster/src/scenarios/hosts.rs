//! Losses of whole hosts.

use super::trial::Moment;
use super::{Expected, Injected, Scenario, Trial};
use taskd_examples::program::Failure;

/// Host of the manager, which has ranks, too.
pub(super) const MANAGER: &str = "h1";
/// Host with ranks, but without the manager.
pub(super) const HOST: &str = "h2";
/// Host without ranks.
pub(super) const SPARE: &str = "h3";

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "host-lost",
        about: "a host with two ranks loses its link and all its processes; a spare host takes over",
        known_gap: None,
        more_hosts: 0,
        inject: |trial| Box::pin(lose_host(trial)),
    },
    Scenario {
        name: "spare-lost",
        about: "the spare host loses its link and all its processes",
        known_gap: None,
        more_hosts: 0,
        inject: |trial| Box::pin(lose_spare(trial)),
    },
];

async fn lose_host(trial: &mut Trial) -> Result<Injected, Failure> {
    let expected = trial.loss_of(HOST);
    let at = lose(trial, HOST).await?;
    Ok(Injected::new(format!("link of {HOST} down, SIGKILL to all its processes"), at, expected))
}

async fn lose_spare(trial: &mut Trial) -> Result<Injected, Failure> {
    let observe = trial.training.plan.lease * 2;
    let at = lose(trial, SPARE).await?;
    let expected = Expected::Undisturbed { host: Some(SPARE.into()), observe };
    Ok(Injected::new(format!("link of {SPARE}, which is spare, down, SIGKILL to all its processes"), at, expected))
}

/// Takes a host away, as a power cut does.
async fn lose(trial: &mut Trial, host: &str) -> Result<Moment, Failure> {
    trial.part_of_a_step().await;
    let at = Moment::now();
    let host = trial.training.hosts.get(host)?;
    host.set_link(false)?;
    host.kill_all()?;
    Ok(at)
}
