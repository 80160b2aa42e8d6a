//! Losses of whole hosts.

use super::expected::Moment;
use super::shapes::{FULL, SIX};
use super::{BASE, Expected, Injected, Scenario, Trial};
use taskd_examples::program::Failure;
use tokio::time::sleep;

/// Host of the manager, which has ranks, too.
pub(super) const MANAGER: &str = "h1";
/// Host with ranks, but without the manager.
pub(super) const HOST: &str = "h2";
/// Host with a rank of a job of six hosts, which does not vote.
pub(super) const PLAIN: &str = "h4";
/// Host without ranks.
pub(super) const SPARE: &str = "h3";

/// Seconds from the cut to the next step, with a spare host.
const SPARE_BOUND_S: f64 = 3.0;
/// Seconds from the cut to the next step of the smaller job.
const SHRUNK_BOUND_S: f64 = 3.0;
/// Seconds from the loss of the manager's host to the next step.
const MANAGER_BOUND_S: f64 = 5.0;

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "host-lost",
        about: "a host with two ranks loses its link and all its processes; a spare host takes over",
        bound_s: Some(SPARE_BOUND_S),
        inject: |trial| Box::pin(lose_host(trial, HOST)),
        ..BASE
    },
    Scenario {
        name: "spare-lost",
        about: "the spare host loses its link and all its processes",
        inject: |trial| Box::pin(lose_spare(trial)),
        ..BASE
    },
    Scenario {
        name: "six-host-lost",
        about: "of six hosts, one with a rank is lost; the spare host takes over",
        bound_s: Some(SPARE_BOUND_S),
        shape: SIX,
        inject: |trial| Box::pin(lose_host(trial, PLAIN)),
        ..BASE
    },
    Scenario {
        name: "six-voter-lost",
        about: "of six hosts, one with a rank and a voter is lost; the spare host takes over",
        bound_s: Some(SPARE_BOUND_S),
        shape: SIX,
        inject: |trial| Box::pin(lose_host(trial, HOST)),
        ..BASE
    },
    Scenario {
        name: "first-host-lost",
        about: "the host of rank 0, store and manager is lost; another manager and the spare host take over",
        bound_s: Some(MANAGER_BOUND_S),
        shape: SIX,
        inject: |trial| Box::pin(lose_first(trial)),
        ..BASE
    },
    Scenario {
        name: "host-lost-no-spare",
        about: "one of six hosts is lost without a spare one: the job shrinks, and grows when the host returns",
        bound_s: Some(SHRUNK_BOUND_S),
        shape: FULL,
        inject: |trial| Box::pin(shrink_and_grow(trial, PLAIN)),
        ..BASE
    },
    Scenario {
        name: "first-lost-no-spare",
        about: "the host of rank 0, store and manager is lost without a spare one: the job shrinks, and grows",
        bound_s: Some(MANAGER_BOUND_S),
        shape: FULL,
        inject: |trial| Box::pin(shrink_and_grow_first(trial)),
        ..BASE
    },
];

async fn lose_host(trial: &mut Trial, host: &str) -> Result<Injected, Failure> {
    let expected = trial.loss_of(host);
    let at = trial.lose(host).await?;
    Ok(Injected::new(format!("link of {host} down, SIGKILL to all its processes"), at, expected))
}

async fn lose_spare(trial: &mut Trial) -> Result<Injected, Failure> {
    let observe = trial.training.plan.lease * 2;
    let at = trial.lose(SPARE).await?;
    let expected = Expected::Undisturbed { host: Some(SPARE.into()), observe };
    Ok(Injected::new(format!("link of {SPARE}, which is spare, down, SIGKILL to all its processes"), at, expected))
}

async fn lose_first(trial: &mut Trial) -> Result<Injected, Failure> {
    let (host, epoch) = trial.elect_first().await?;
    let ranks = trial.ranks_on(&host);
    let expected = trial.loss_of(&host);
    let at = trial.lose(&host).await?;
    let what = format!("{host}, the host of the manager and of ranks {ranks:?}, down, SIGKILL to all its processes");
    let mut injected = Injected::new(what, at, expected);
    injected.figures.manager_s = Some(trial.next_manager(epoch, at).await?.1);
    Ok(injected)
}

async fn shrink_and_grow_first(trial: &mut Trial) -> Result<Injected, Failure> {
    let (host, _) = trial.elect_first().await?;
    shrink_and_grow(trial, &host).await
}

async fn shrink_and_grow(trial: &mut Trial, host: &str) -> Result<Injected, Failure> {
    let expected = trial.smaller_without(host);
    let (manager, epoch) = trial.manager()?;
    let at = trial.lose(host).await?;
    let mut injected = Injected::new(format!("{host} is lost without a spare host, and returns later"), at, expected);
    if manager == host {
        injected.figures.manager_s = Some(trial.next_manager(epoch, at).await?.1);
    }
    let lost = injected.expected.ranks();
    trial.trains_without(&lost, at).await?;
    sleep(trial.training.plan.lease).await; // trains for a while
    let back: Moment = trial.bring_back(host).await?;
    match trial.trains_again(&lost, back).await {
        Ok((_, whole)) => {
            injected.figures.grown_s = Some(whole - back.monotonic);
            injected.figures.paused_s = Some(trial.training.steps().longest_pause(back.monotonic, whole));
        }
        Err(error) => injected.problems.push(error.to_string()),
    }
    Ok(injected)
}
